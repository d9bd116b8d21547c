"""Tables put together by hand: every sequence number, spec and delete file is the test's choice.

The commit engine would refuse much of what a reader must understand (position deletes on v3, two
DVs for one file, deletes of other writers), so entries go straight into manifests. Beside the
files a plain list of rows and deletes is kept, and `live_rows` applies the spec's rules to it one
row at a time: the oracle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest import describe_manifest, encode_manifest
from tableformat.codec.avro.manifest_list import encode_manifest_list
from tableformat.codec.puffin.deletion_vector import build_positions
from tableformat.codec.puffin.dv_file import DeletionVector, write_deletion_vectors
from tableformat.environment import Environment
from tableformat.spec.data_file import DataFile, EntryStatus, FileContent, ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tableformat.store.base import ObjectStore
from tableformat.write.data_files import write_data_files
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.memory_store import MemoryObjectStore

SNAPSHOT_ID = 77
PATH_FIELD = pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"})
POS_FIELD = pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"})


@dataclass
class ModelRow:
    """One stored row; `values` are by field id, so that renames do not matter."""

    entry: ManifestEntry
    position: int
    values: dict[int, Any]


@dataclass
class EqualityDelete:
    """One deleted key."""

    entry: ManifestEntry
    key: dict[int, Any]


@dataclass
class HandMadeTable:
    """See the module's text."""

    schema: Schema
    specs: list[PartitionSpec] = field(default_factory=lambda: [UNPARTITIONED_PARTITION_SPEC])
    store: ObjectStore = field(default_factory=MemoryObjectStore)
    location: str = "memory://warehouse/t"
    properties: dict[str, str] = field(default_factory=dict)
    schemas: list[Schema] = field(default_factory=list)
    sequence_number: int = 0
    next_row_id: int = 0
    data: list[ManifestEntry] = field(default_factory=list)
    deletes: list[ManifestEntry] = field(default_factory=list)
    rows: list[ModelRow] = field(default_factory=list)
    equality: list[EqualityDelete] = field(default_factory=list)
    positions: list[tuple[ManifestEntry, str, int]] = field(default_factory=list)
    files_made: int = 0

    def __post_init__(self) -> None:
        self.schemas = self.schemas or [self.schema]

    def commit(self) -> int:
        """Start the next sequence number; what is added from now on carries it."""
        self.sequence_number += 1
        return self.sequence_number

    def evolve(self, schema: Schema) -> None:
        """Make `schema` the current one."""
        self.schemas.append(schema)
        self.schema = schema

    def add(self, rows: pa.Table, spec_id: int = 0) -> list[ManifestEntry]:
        """Write data files; values are taken over by the model."""
        files = write_data_files(
            self.store,
            rows,
            schema=self.schema,
            spec=self.spec(spec_id),
            properties=self.properties,
            location_for=self._location,
        )
        return [self.register(file) for file in files]

    def register(
        self, file: DataFile, rows: Sequence[Mapping[int, Any]] | None = None
    ) -> ManifestEntry:
        """Add a written file; its rows are read back naively unless given by field id."""
        entry = self.entry(file.with_(first_row_id=self.next_row_id))
        self.next_row_id += file.record_count
        self.data.append(entry)
        values = self._stored(file) if rows is None else [dict(row) for row in rows]
        self.rows += [ModelRow(entry, at, each) for at, each in enumerate(values)]
        return entry

    def delete_keys(
        self, keys: pa.Table, equality_ids: Sequence[int], spec_id: int = 0
    ) -> list[ManifestEntry]:
        """Write equality deletes; columns that neither key nor partition need are left out."""
        spec = self.spec(spec_id)
        needed = {*equality_ids, *(part.source_id for part in spec.fields)}
        keys = keys.select([f.name for f in self.schema.fields if f.field_id in needed])
        files = write_equality_deletes(
            self.store,
            keys,
            schema=self.schema,
            equality_ids=equality_ids,
            spec=spec,
            properties=self.properties,
            location_for=self._location,
        )
        entries = [self.entry(file) for file in files]
        for entry in entries:
            for stored in self._stored(entry.data_file):
                key = {field_id: stored.get(field_id) for field_id in equality_ids}
                self.equality.append(EqualityDelete(entry, key))
        self.deletes += entries
        return entries

    def delete_vector(self, target: ManifestEntry, positions: Iterable[int]) -> ManifestEntry:
        """Replace the target's DV by one with these positions and the old ones."""
        old = [entry for entry in self.deletes if self._is_dv_of(entry, target)]
        self.deletes = [entry for entry in self.deletes if entry not in old]
        merged = {at for entry, _, at in self.positions if entry in old} | set(positions)
        self.positions = [each for each in self.positions if each[0] not in old]
        vector = DeletionVector(target.data_file, build_positions(_int64(sorted(merged))))
        [file] = write_deletion_vectors(
            self.store, [vector], location_for=lambda: self._location(""), placement="packed"
        )
        entry = self.entry(file)
        self.deletes.append(entry)
        self.positions += [(entry, target.data_file.file_path, at) for at in merged]
        return entry

    def delete_positions(
        self, targets: Sequence[tuple[ManifestEntry, int]], *, file_scoped: bool = False
    ) -> ManifestEntry:
        """Write a v2 position delete file, all targets of one partition."""
        first = targets[0][0].data_file
        pairs = sorted((entry.data_file.file_path, at) for entry, at in targets)
        table = pa.table(
            [[path for path, _ in pairs], [at for _, at in pairs]],
            schema=pa.schema([PATH_FIELD, POS_FIELD]),
        )
        location = self._location("")
        size = write_parquet(self.store, location, table)
        entry = self.entry(
            DataFile(
                content=FileContent.POSITION_DELETES,
                file_path=location,
                file_format="PARQUET",
                spec_id=first.spec_id,
                partition=first.partition,
                record_count=len(pairs),
                file_size_in_bytes=size,
                referenced_data_file=first.file_path if file_scoped else None,
            )
        )
        self.deletes.append(entry)
        self.positions += [(entry, path, at) for path, at in pairs]
        return entry

    def live_rows(self) -> list[ModelRow]:
        """The spec's rules, one row at a time."""
        return [row for row in self.rows if not self._is_dead(row)]

    def state(self, *, manifests_per_kind: int = 1) -> TableState:
        """Write manifests, list and metadata, and return the table as a catalog would load it."""
        manifests: list[ManifestFile] = []
        for content, entries in (
            (ManifestContent.DATA, self.data),
            (ManifestContent.DELETES, self.deletes),
        ):
            for spec in self.specs:
                mine = [each for each in entries if each.data_file.spec_id == spec.spec_id]
                for part in range(manifests_per_kind):
                    if mine[part::manifests_per_kind]:
                        manifests.append(
                            self._manifest(mine[part::manifests_per_kind], spec, content)
                        )
        encoded = encode_manifest_list(
            manifests,
            snapshot_id=SNAPSHOT_ID,
            parent_snapshot_id=None,
            sequence_number=self.sequence_number,
            first_row_id=0,
        )
        location = self._location("list")
        self.store.put(location, encoded.data)
        return TableState(("db", "t"), self._metadata(location), f"{self.location}/x.metadata.json")

    def environment(self) -> Environment:
        """For `plan_scan` and `read_scan`, which use the store only."""
        return Environment(catalog=None, store=self.store)  # type: ignore[arg-type]

    def spec(self, spec_id: int) -> PartitionSpec:
        """The spec with this id."""
        return next(spec for spec in self.specs if spec.spec_id == spec_id)

    def _is_dead(self, row: ModelRow) -> bool:
        file = row.entry.data_file
        sequence = row.entry.sequence_number or 0
        dvs = [e for e in self.deletes if self._is_dv_of(e, row.entry)]
        for entry, path, at in self.positions:
            if path != file.file_path or at != row.position:
                continue
            if entry.data_file.is_dv or (
                not dvs
                and (entry.sequence_number or 0) >= sequence
                and entry.data_file.partition_key == file.partition_key
            ):
                return True
        for delete in self.equality:
            scope = delete.entry.data_file
            fields = self.spec(scope.spec_id).fields
            is_global = all(str(each.transform) == "void" for each in fields)
            in_scope = is_global or scope.partition_key == file.partition_key
            newer = (delete.entry.sequence_number or 0) > sequence
            if in_scope and newer and all(row.values.get(k) == v for k, v in delete.key.items()):
                return True
        return False

    @staticmethod
    def _is_dv_of(entry: ManifestEntry, target: ManifestEntry) -> bool:
        path = target.data_file.file_path
        return entry.data_file.is_dv and entry.data_file.referenced_data_file == path

    def entry(self, file: DataFile) -> ManifestEntry:
        """The file with the current sequence number."""
        return ManifestEntry(
            status=EntryStatus.EXISTING,
            snapshot_id=SNAPSHOT_ID,
            sequence_number=self.sequence_number,
            file_sequence_number=self.sequence_number,
            data_file=file,
        )

    def _stored(self, file: DataFile) -> list[dict[int, Any]]:
        """Rows of a file by field id, with pyarrow alone; columns it lacks get their default."""
        table = pq.read_table(self.store.open_input(file.file_path))
        ids = [int((f.metadata or {}).get(b"PARQUET:field_id", -1)) for f in table.schema]
        columns = {
            field_id: column.to_pylist()
            for field_id, column in zip(ids, table.columns, strict=True)
        }
        defaults = {f.field_id: f.initial_default for f in self.schema.fields}
        return [
            {**defaults, **{field_id: values[at] for field_id, values in columns.items()}}
            for at in range(table.num_rows)
        ]

    def _location(self, partition_path: str) -> str:
        self.files_made += 1
        suffix = {"list": "avro"}.get(partition_path, "parquet")
        folder = f"{partition_path}/" if partition_path not in {"", "list"} else ""
        return f"{self.location}/data/{folder}{self.files_made:05d}.{suffix}"

    def _manifest(
        self, entries: Sequence[ManifestEntry], spec: PartitionSpec, content: ManifestContent
    ) -> ManifestFile:
        data = encode_manifest(entries, schema=self.schema, spec=spec, content=content)
        location = self._location("list")
        self.store.put(location, data)
        return describe_manifest(
            entries,
            location=location,
            length=len(data),
            schema=self.schema,
            spec=spec,
            content=content,
            snapshot_id=SNAPSHOT_ID,
        )

    def _metadata(self, manifest_list: str) -> TableMetadataV3:
        snapshot = Snapshot(
            snapshot_id=SNAPSHOT_ID,
            parent_snapshot_id=None,
            sequence_number=self.sequence_number,
            timestamp_ms=1_700_000_000_000,
            manifest_list=manifest_list,
            summary=Summary(Operation.APPEND),
            schema_id=self.schema.schema_id,
            first_row_id=0,
            added_rows=self.next_row_id,
        )
        return TableMetadataV3(
            location=self.location,
            table_uuid="9c12d441-03fe-4693-9a96-a0705ddf69c1",
            last_updated_ms=1_700_000_000_000,
            last_column_id=max(s.highest_field_id for s in self.schemas),
            schemas=self.schemas,
            current_schema_id=self.schema.schema_id,
            partition_specs=self.specs,
            default_spec_id=self.specs[-1].spec_id,
            last_partition_id=1100,
            sort_orders=[UNSORTED_SORT_ORDER],
            default_sort_order_id=0,
            properties=self.properties,
            current_snapshot_id=SNAPSHOT_ID,
            snapshots=[snapshot],
            refs={
                "main": SnapshotRef(
                    snapshot_id=SNAPSHOT_ID, snapshot_ref_type=SnapshotRefType.BRANCH
                )
            },
            last_sequence_number=self.sequence_number,
            next_row_id=self.next_row_id,
        )


def write_parquet(
    store: ObjectStore, location: str, table: pa.Table, *, row_group_size: int | None = None
) -> int:
    """Store a table as a Parquet file without our writer; returns its size in bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=row_group_size)
    data = sink.getvalue().to_pybytes()
    store.put(location, data)
    return len(data)


def _int64(values: list[int]) -> Any:
    return pa.array(values, pa.int64()).to_numpy()
