"""The same index in a dict, for the simulator and as the reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from resolver.index.base import Entries, IndexBinding, IndexChanges, IndexedFile, Matches, Prepared
from resolver.index.entry import FILE_ID_LIMIT, pack_rows
from resolver.keys import EncodedKeys
from tableformat.errors import InternalError, InvalidInputError
from tableformat.runtime import Runtime

Row = tuple[int, int]  # file id, position


@dataclass(frozen=True, slots=True)
class _State:
    """One immutable state; a change makes the next one."""

    number: int
    rows: dict[bytes, frozenset[Row]]
    files: dict[int, IndexedFile]
    next_file_id: int
    binding: IndexBinding


@dataclass(slots=True)
class MemoryIndex:
    """A `PrimaryKeyIndex` that lives and dies with the process."""

    runtime: Runtime
    _state: _State
    _prepared: dict[str, _State] = field(default_factory=dict)
    _closed: bool = False

    @staticmethod
    def create(binding: IndexBinding, *, runtime: Runtime) -> MemoryIndex:
        """An empty index."""
        return MemoryIndex(runtime, _State(0, {}, {}, 0, binding))

    @property
    def binding(self) -> IndexBinding:
        """See `PrimaryKeyIndex`."""
        return self._state.binding

    def lookup(self, keys: EncodedKeys) -> Matches:
        """See `PrimaryKeyIndex`."""
        state = self._usable()
        found = [
            (ordinal, file_id, position)
            for ordinal, key in enumerate(keys.to_list())
            for file_id, position in sorted(state.rows.get(key, ()))
            if file_id in state.files
        ]
        columns = np.array(found, dtype=np.int64).reshape(-1, 3)
        file_ids = columns[:, 1].astype(np.int32)
        files = {file_id: state.files[file_id] for file_id in np.unique(file_ids).tolist()}
        return Matches(columns[:, 0], file_ids, columns[:, 2], files)

    def file_ids(self, paths: Iterable[str]) -> dict[str, int]:
        """See `PrimaryKeyIndex`."""
        wanted = set(paths)
        files = self._usable().files
        return {file.file_path: i for i, file in files.items() if file.file_path in wanted}

    def files(self) -> dict[int, IndexedFile]:
        """See `PrimaryKeyIndex`."""
        return dict(self._usable().files)

    def entries(self) -> Iterator[Entries]:
        """See `PrimaryKeyIndex`."""
        state = self._usable()
        for key, rows in state.rows.items():
            live = sorted(row for row in rows if row[0] in state.files)
            if live:
                yield Entries(
                    EncodedKeys(binary=pa.array([key] * len(live), type=pa.large_binary())),
                    np.array([row[0] for row in live], dtype=np.int32),
                    np.array([row[1] for row in live], dtype=np.int64),
                )

    def prepare(self, changes: IndexChanges) -> Prepared:
        """See `PrimaryKeyIndex`."""
        state = self._usable()
        files = dict(state.files)
        dropped = self.file_ids(changes.dropped_files)
        for file_id in dropped.values():
            del files[file_id]
        ids, next_file_id = _assign_ids(changes.added_files, files, state.next_file_id)
        rows = dict(state.rows)
        for keys in changes.removed_keys:
            for key in keys.to_list():
                rows.pop(key, None)
        for entries in changes.removed:
            for key, row in _pairs(entries, None):
                rows[key] = rows.get(key, frozenset()) - {row}
        for entries in changes.put:
            for key, row in _pairs(entries, ids):
                rows[key] = rows.get(key, frozenset()) | {row}
        name = self.runtime.ids.uuid().hex
        self._prepared[name] = _State(state.number + 1, rows, files, next_file_id, state.binding)
        self.runtime.fail_point("index.prepare.written")
        return Prepared(id=name, base=str(state.number))

    def apply(self, prepared: Prepared, binding: IndexBinding) -> None:
        """See `PrimaryKeyIndex`."""
        if self._prepared.get(prepared.id) is None:
            raise InvalidInputError("this change was applied or discarded", prepared=prepared.id)
        if prepared.base != str(self._usable().number):
            raise InvalidInputError(
                "the index has changed since this change was prepared", prepared=prepared.id
            )
        mine = self.binding.at(snapshot_id=None, sequence_number=0)
        if binding.at(snapshot_id=None, sequence_number=0) != mine:
            raise InvalidInputError("an index keeps its table, branch and key", binding=binding)
        self.runtime.fail_point("index.apply.before")
        new = self._prepared[prepared.id]
        self._state = _State(new.number, new.rows, new.files, new.next_file_id, binding)
        self._prepared.clear()
        self.runtime.fail_point("index.apply.after")

    def discard(self, prepared: Prepared) -> None:
        """See `PrimaryKeyIndex`."""
        self._prepared.pop(prepared.id, None)

    def close(self) -> None:
        """See `PrimaryKeyIndex`."""
        self._closed = True

    def _usable(self) -> _State:
        if self._closed:
            raise InternalError("the index is closed")
        return self._state


def _assign_ids(
    added: Iterable[IndexedFile], files: dict[int, IndexedFile], next_file_id: int
) -> tuple[list[int], int]:
    """An id per added file, entered into `files`."""
    known = {file.file_path: file_id for file_id, file in files.items()}
    ids = []
    for file in added:
        file_id = known.get(file.file_path)
        if file_id is None:
            file_id, next_file_id = next_file_id, next_file_id + 1
            known[file.file_path] = file_id
        files[file_id] = file
        ids.append(file_id)
    assert next_file_id <= FILE_ID_LIMIT
    return ids, next_file_id


def _pairs(entries: Entries, ids: list[int] | None) -> Iterator[tuple[bytes, Row]]:
    pack_rows(0, entries.position)  # the same limits as on disk
    for key, file_id, position in zip(
        entries.keys.to_list(), entries.file_id.tolist(), entries.position.tolist(), strict=True
    ):
        yield key, (file_id if ids is None else ids[file_id], position)
