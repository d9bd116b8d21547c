"""Scan planning: from a snapshot and a filter to data files with the deletes that reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import (
    each_manifest,
    load_manifest,
    load_manifest_list,
    open_manifest,
)
from tableformat.codec.avro.named_files import wanted
from tableformat.environment import Environment
from tableformat.errors import CorruptDataError, NotFoundError
from tableformat.scan.delete_index import DeleteIndex, sequence_number
from tableformat.scan.expired_snapshot import telling_expiry
from tableformat.scan.former_schema import check_readable
from tableformat.scan.key_fields import key_fields
from tableformat.scan.pruning import Pruner
from tableformat.scan.row_filter import normalize_filter, parse_filter
from tableformat.side_by_side import run_in_parts
from tableformat.spec.data_file import FileContent, ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tableformat.store.base import ObjectStore

MANIFEST_READERS_MAX = 8
BY_ID = "read snapshots of before by their ids, or by a tag: those have their own schema"

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScanTask:
    """One data file to read, and everything that decides which of its rows are returned.

    Attributes:
        entry: The live data file.
        dv: Its deletion vector. A DV makes position deletes void.
        position_deletes: Position delete files that may list it.
        equality_deletes: Equality delete files that are newer and in scope.
        residual: What of the filter the partition does not prove already; unbound.
    """

    entry: ManifestEntry
    dv: ManifestEntry | None = None
    position_deletes: tuple[ManifestEntry, ...] = ()
    equality_deletes: tuple[ManifestEntry, ...] = ()
    residual: BooleanExpression = field(default_factory=AlwaysTrue)

    @property
    def has_deletes(self) -> bool:
        """Whether any delete may kill a row of the file."""
        return bool(self.dv or self.position_deletes or self.equality_deletes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """What to read. Immutable and picklable; nothing in it is opened yet.

    Attributes:
        snapshot: The snapshot; None for a table or branch without one.
        schema: The schema rows are returned in.
        row_filter: The whole filter; unbound. Tasks carry what is left of it per file.
        tasks: Data files in manifest order.
        specs: Partition specs by id.
        schemas: Every schema of the table: equality deletes may use columns dropped since.
        properties: Table properties (the name mapping, for files without field ids).
    """

    snapshot: Snapshot | None
    schema: Schema
    row_filter: BooleanExpression
    tasks: tuple[FileScanTask, ...]
    specs: Mapping[int, PartitionSpec]
    schemas: tuple[Schema, ...]
    properties: Mapping[str, str] = field(default_factory=dict)


def plan_scan(
    environment: Environment,
    state: TableState,
    *,
    snapshot_id: int | None = None,
    row_filter: str | BooleanExpression | None = None,
    schema: Schema | None = None,
) -> ScanPlan:
    """Plan a read of one snapshot.

    Args:
        environment: Where manifests are read.
        state: The loaded table.
        snapshot_id: The snapshot; None: the head of `main`, if there is one.
        row_filter: Rows wanted, as text or an expression over `schema`.
        schema: The schema to read with; None: the table's current one.

    Raises:
        InvalidInputError: The filter cannot be read, or does not fit the schema.
        NotFoundError: There is no such snapshot, or it has expired.
        UnsupportedError: Files of it were written before the table was replaced.
        CorruptDataError: The snapshot's metadata break the format.
    """
    metadata = state.metadata
    schema = schema or metadata.schema()
    unbound = normalize_filter(parse_filter(row_filter), schema)
    specs = metadata.specs()
    pruner = Pruner(unbound, schema, specs)
    snapshot = _snapshot(state, snapshot_id)
    tasks: tuple[FileScanTask, ...] = ()
    if snapshot is not None:
        with telling_expiry(environment, state, [snapshot]):
            tasks = tuple(_plan_tasks(environment.store, state, schema, snapshot, pruner))
    return replace(plan_without_files(metadata, schema, unbound), snapshot=snapshot, tasks=tasks)


def plan_files(
    environment: Environment,
    state: TableState,
    snapshot: Snapshot,
    entries: Sequence[ManifestEntry],
) -> ScanPlan:
    """Plan a read of some data files that are live in a snapshot.

    Raises:
        CorruptDataError: As `plan_scan`.

    Cost: reads delete manifests; decodes little of them.
    """
    store, metadata = environment.store, state.metadata
    paths = wanted([entry.data_file.file_path for entry in entries])
    deletes: list[ManifestEntry] = []
    reaching = _reaching(load_manifest_list(store, snapshot), entries)
    for loaded in each_manifest(partial(open_manifest, store), reaching):
        deletes += loaded.live_vectors(paths)
        deletes += loaded.live_delete_files
    index = DeleteIndex(deletes, specs=metadata.specs(), key_fields=key_fields(metadata))
    tasks = tuple(plan_task(entry, AlwaysTrue(), index) for entry in entries)
    return replace(plan_without_files(metadata, metadata.schema()), snapshot=snapshot, tasks=tasks)


def plan_without_files(
    metadata: TableMetadata, schema: Schema, row_filter: BooleanExpression | None = None
) -> ScanPlan:
    """What reading any file of a version needs, and no file; opens nothing."""
    return ScanPlan(
        snapshot=None,
        schema=schema,
        row_filter=row_filter or AlwaysTrue(),
        tasks=(),
        specs=metadata.specs(),
        schemas=tuple(metadata.schemas),
        properties=metadata.properties,
    )


def narrow_plan(plan: ScanPlan, row_filter: BooleanExpression) -> ScanPlan:
    """The plan with one more condition; opens nothing.

    Args:
        plan: From `plan_scan`.
        row_filter: An unbound expression over the plan's schema.
    """
    unbound = normalize_filter(row_filter, plan.schema)
    pruner = Pruner(unbound, plan.schema, plan.specs)
    residuals = [pruner.residual(task.entry.data_file) for task in plan.tasks]
    tasks = tuple(
        replace(task, residual=And(task.residual, residual))
        for task, residual in zip(plan.tasks, residuals, strict=True)
        if not isinstance(residual, AlwaysFalse)
    )
    return replace(plan, row_filter=And(plan.row_filter, unbound), tasks=tasks)


def _snapshot(state: TableState, snapshot_id: int | None) -> Snapshot | None:
    if snapshot_id is None:
        return state.metadata.current_snapshot()
    snapshot = state.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise NotFoundError(f"there is no snapshot {snapshot_id}", table=state.name)
    return snapshot


def _plan_tasks(
    store: ObjectStore,
    state: TableState,
    schema: Schema,
    snapshot: Snapshot,
    pruner: Pruner,
) -> Iterable[FileScanTask]:
    metadata = state.metadata
    live = [each for each in load_manifest_list(store, snapshot) if each.has_live_files]
    _check_types(state, schema, (each.added_snapshot_id for each in live))
    manifests = [each for each in live if pruner.manifest_may_match(each)]
    data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
    selected: list[tuple[ManifestEntry, BooleanExpression]] = []
    entries = live_entries(store, data)
    _check_types(state, schema, (each.snapshot_id for each in entries))
    for entry in entries:
        if entry.data_file.content != FileContent.DATA:
            raise CorruptDataError(
                "a data manifest lists a delete file", location=entry.data_file.file_path
            )
        residual = pruner.residual(entry.data_file)
        if not isinstance(residual, AlwaysFalse):
            selected.append((entry, residual))
    reaching = _reaching(manifests, [entry for entry, _ in selected])
    fields = key_fields(metadata, schema)
    index = DeleteIndex(live_entries(store, reaching), specs=metadata.specs(), key_fields=fields)
    return [plan_task(entry, residual, index) for entry, residual in selected]


def _check_types(state: TableState, schema: Schema, snapshot_ids: Iterable[int | None]) -> None:
    """Bounds of another type would prune what they do not mean."""
    check_readable(state, schema, snapshot_ids, action=BY_ID, whole=False)


def _reaching(
    manifests: Iterable[ManifestFile], entries: Sequence[ManifestEntry]
) -> list[ManifestFile]:
    """Delete manifests but those that are older than every one of some data files."""
    oldest = min(map(sequence_number, entries), default=None)
    return [
        manifest
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
        and manifest.has_live_files
        and oldest is not None
        and (manifest.sequence_number or 0) >= oldest
    ]


def plan_task(
    entry: ManifestEntry, residual: BooleanExpression, index: DeleteIndex
) -> FileScanTask:
    """The task of one live data file."""
    found = index.for_data_file(entry)
    return FileScanTask(
        entry=entry,
        dv=found.dv,
        position_deletes=found.position_deletes,
        equality_deletes=found.equality_deletes,
        residual=residual,
    )


def live_entries(store: ObjectStore, manifests: Sequence[ManifestFile]) -> list[ManifestEntry]:
    """The live entries of some manifests, in their order."""
    loaded = map_ordered(lambda manifest: load_manifest(store, manifest), manifests)
    return [entry for entries in loaded for entry in entries if entry.is_live]


def map_ordered(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """`[function(item) for item in items]`, with the waiting for storage overlapped."""
    return run_in_parts(function, items, at_once=MANIFEST_READERS_MAX)
