"""Which data files two snapshots see differently, and the deletes that reach them in each.

Manifests that both snapshots list are the same in both, so mostly only the others are read:

```
data manifests of one snapshot only ─> files added, files removed
delete manifests of one only ───────> deletes that came or went ─> data files they may reach
```

A deletion vector names its file. Equality deletes, and position deletes of several files, may
reach any: then every data file is held against them, by partition, age and statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.expressions import AlwaysFalse, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import load_manifest_list
from tableformat.scan.delete_index import DeleteIndex, referenced_path, sequence_number
from tableformat.scan.former_schema import check_readable
from tableformat.scan.key_fields import key_fields
from tableformat.scan.plan import FileScanTask, live_entries, plan_task
from tableformat.scan.pruning import Pruner
from tableformat.spec.data_file import ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tableformat.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class FileChange:
    """One data file as each of the two snapshots sees it; None: not at all."""

    old: FileScanTask | None
    new: FileScanTask | None


def diff_files(
    store: ObjectStore,
    state: TableState,
    old: Snapshot | None,
    new: Snapshot | None,
    *,
    schema: Schema,
    row_filter: BooleanExpression,
    read: Schema | None = None,
) -> list[FileChange]:
    """The data files whose live rows may differ, those of `old` first.

    Args:
        store: Where manifests are.
        state: The table.
        old: None: the empty table.
        new: Likewise.
        schema: The schema that rows are read with, and the filter is about.
        row_filter: Files without a matching row are left out; unbound, normalized.
        read: The part of `schema` that files have to give; None: all of it.

    Raises:
        CorruptDataError: Manifests break the format.
        NotFoundError: A manifest is gone.
        UnsupportedError: The table was replaced in between: the schema does not read both.
    """
    pruner = Pruner(row_filter, schema, state.metadata.specs())
    lists = [[] if each is None else load_manifest_list(store, each) for each in (old, new)]
    shared = {m.manifest_path for m in lists[0]} & {m.manifest_path for m in lists[1]}
    read = read or schema
    sides = [_Side(store, state, schema, read, manifests, shared, pruner) for manifests in lists]
    before, after = sides
    moved = _moved_deletes(before.own_deletes, after.own_deletes)
    touched = _touched(state.metadata, schema, sides, moved)
    touched |= {
        path
        for path, entry in before.own_data.items()
        if path in after.own_data
        and sequence_number(entry) != sequence_number(after.own_data[path])
    }
    only_old = {path: e for path, e in before.own_data.items() if path not in after.own_data}
    only_new = {path: e for path, e in after.own_data.items() if path not in before.own_data}
    both = touched - only_old.keys() - only_new.keys()
    old_tasks = before.tasks(only_old | before.find(both))
    new_tasks = after.tasks(only_new | after.find(both))
    paths = dict.fromkeys([*old_tasks, *new_tasks])
    return [FileChange(old_tasks.get(path), new_tasks.get(path)) for path in paths]


class _Side:
    """One of the two snapshots."""

    def __init__(
        self,
        store: ObjectStore,
        state: TableState,
        schema: Schema,
        read: Schema,
        manifests: Sequence[ManifestFile],
        shared: set[str],
        pruner: Pruner,
    ) -> None:
        self._store = store
        self._state = state
        self._schema = schema
        self._read = read
        self._pruner = pruner
        live = [each for each in manifests if each.has_live_files]
        self._check(m.added_snapshot_id for m in live if m.manifest_path not in shared)
        self._data = [
            each
            for each in live
            if each.content == ManifestContent.DATA and pruner.manifest_may_match(each)
        ]
        self._deletes = [each for each in live if each.content == ManifestContent.DELETES]
        own = [each for each in self._data if each.manifest_path not in shared]
        self._shared_data = [each for each in self._data if each.manifest_path in shared]
        self.own_data = _by_path(live_entries(store, own))
        self.own_deletes = live_entries(
            store, [each for each in self._deletes if each.manifest_path not in shared]
        )

    def find(self, paths: Iterable[str]) -> dict[str, ManifestEntry]:
        """Live data files by path; those that are not there, or cannot match, are left out."""
        wanted = set(paths)
        found = {path: self.own_data[path] for path in wanted if path in self.own_data}
        if len(found) < len(wanted):
            rest = wanted - found.keys()
            for entry in live_entries(self._store, self._shared_data):
                if entry.data_file.file_path in rest:
                    found[entry.data_file.file_path] = entry
        return found

    def all_data(self) -> list[ManifestEntry]:
        """Every live data file that may match."""
        return live_entries(self._store, self._data)

    def tasks(self, entries: dict[str, ManifestEntry]) -> dict[str, FileScanTask]:
        """Tasks with every delete that reaches the files in this snapshot."""
        self._check(entry.snapshot_id for entry in entries.values())
        residuals = {
            path: self._pruner.residual(entry.data_file) for path, entry in entries.items()
        }
        kept = {
            path: entry
            for path, entry in entries.items()
            if not isinstance(residuals[path], AlwaysFalse)
        }
        if not kept:
            return {}
        oldest = min(sequence_number(entry) for entry in kept.values())
        reaching = [each for each in self._deletes if (each.sequence_number or 0) >= oldest]
        deletes = [
            entry
            for entry in live_entries(self._store, reaching)
            if not entry.data_file.is_dv or entry.data_file.referenced_data_file in kept
        ]
        index = _index(deletes, self._state.metadata, self._schema)
        return {path: plan_task(entry, residuals[path], index) for path, entry in kept.items()}

    def _check(self, snapshot_ids: Iterable[int | None]) -> None:
        check_readable(
            self._state,
            self._read,
            snapshot_ids,
            action="ask for the changes of each of the two tables: up to the last snapshot of the "
            "one, and from the empty table, or the first snapshot, of the other",
        )


def _by_path(entries: Iterable[ManifestEntry]) -> dict[str, ManifestEntry]:
    return {entry.data_file.file_path: entry for entry in entries}


def _index(
    deletes: Iterable[ManifestEntry], metadata: TableMetadata, schema: Schema
) -> DeleteIndex:
    return DeleteIndex(deletes, specs=metadata.specs(), key_fields=key_fields(metadata, schema))


def _moved_deletes(
    old: Iterable[ManifestEntry], new: Iterable[ManifestEntry]
) -> list[ManifestEntry]:
    """Deletes that one side has and the other has not."""
    before = {(each.data_file.identity, each.sequence_number): each for each in old}
    after = {(each.data_file.identity, each.sequence_number): each for each in new}
    return [before[key] for key in before.keys() - after.keys()] + [
        after[key] for key in after.keys() - before.keys()
    ]


def _touched(
    metadata: TableMetadata,
    schema: Schema,
    sides: Sequence[_Side],
    moved: Iterable[ManifestEntry],
) -> set[str]:
    """Paths of data files that deletes which came or went may reach."""
    touched: set[str] = set()
    others: list[ManifestEntry] = []
    for entry in moved:
        path = entry.data_file.referenced_data_file if entry.data_file.is_dv else None
        path = path or (None if entry.data_file.equality_ids else referenced_path(entry.data_file))
        if path is None:
            others.append(entry)
        else:
            touched.add(path)
    if others:
        index = _index(others, metadata, schema)
        for entry in (entry for side in sides for entry in side.all_data()):
            found = index.for_data_file(entry)
            if found.equality_deletes or found.position_deletes:
                touched.add(entry.data_file.file_path)
    return touched
