"""Matching by tasks: what becomes of a key is decided where the index has it.

1. `split`: one task per some staged files reads keys, and hands them to the shards that they are
   in. The driver has none of them.
2. `match`: one task per shard (or share of one, where a batch is large and the table is not)
   compares its keys with the index and among themselves, by the functions that a cycle in this
   process runs (`resolution`). What dies, by data file, and what changes in the index is left in
   shared storage; the answer says where.

A task that is repeated leaves another object, and only one answer counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap64

from resolver.cycle_input import CycleInput, UnreadInput
from resolver.index.base import Entries, IndexChanges
from resolver.index.entry import KeyedRows, concat_rows
from resolver.index.left import LeftBytes, LeftChange, bitmaps_to_bytes, leave
from resolver.index.spill import keyed_to_bytes
from resolver.index.task_lookup import IndexOnTasks
from resolver.key_reader import FileKeys, KeyReader, file_keys
from resolver.keys import EncodedKeys, concat_keys
from resolver.match import Int64s
from resolver.merge_deletes import DeadPositions
from resolver.resolution import (
    MatchedBatch,
    index_changes,
    judge_by_arrival,
    number_keys,
    resolve_batch,
)
from resolver.staged_on_target import without_staged_rows
from tableformat.spec.data_file import DataFile

CHUNK_ROWS = 500_000  # read and split by one task
SHARE_KEYS = 1_500_000  # matched by one task: some 300 bytes each


@dataclass(frozen=True, slots=True)
class RowFiles:
    """Staged data files, by their ordinals in the batch."""

    files: tuple[tuple[int, DataFile], ...]


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A staged delete file.

    Attributes:
        file: The file.
        order: Of the commit that it came with.
        scope: Where it reaches.
        own_scope: Where those of its keys reach that are filed in a partition not their own.
    """

    file: DataFile
    order: int
    scope: int
    own_scope: int


@dataclass(frozen=True, slots=True)
class SplitDeletes:
    """Deletes of one share: shape `(n,)` each."""

    keys: EncodedKeys
    order: int
    scope: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFindings:
    """What was found of one share of the keys. Small, however many keys there are.

    Attributes:
        file_ids: A serialized bitmap: ids of files of the target of which rows die.
        staged: The same of staged files, by their ordinals.
        dead: Their dead positions by group of files, under `number_of_staged` or the id.
        change: What changes in the index.
    """

    file_ids: bytes
    staged: bytes
    dead: tuple[LeftBytes, ...]
    change: LeftChange


def number_of_staged(ordinal: int) -> int:
    """The number of a staged file, which no id is."""
    return -1 - ordinal


def staged_chunks(unread: UnreadInput) -> list[RowFiles | DeleteFile]:
    """What a task reads at a time. Delete files bring scopes, so they are numbered here."""
    scopes = unread.batch.scopes
    chunks: list[RowFiles | DeleteFile] = [
        DeleteFile(
            each.file,
            each.order,
            scopes.of_delete(each.file, one_spec=each.one_spec),
            scopes.of_delete(each.file),
        )
        for each in unread.deletes
    ]
    files: list[tuple[int, DataFile]] = []
    rows = 0
    for ordinal, each in enumerate(unread.batch.files):
        if files and rows + each.file.record_count > CHUNK_ROWS:
            chunks.append(RowFiles(tuple(files)))
            files, rows = [], 0
        files.append((ordinal, each.file))
        rows += each.file.record_count
    return [*chunks, RowFiles(tuple(files))] if files else chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMatch:
    """The tasks of one match. Pickles.

    Attributes:
        index: Where keys are looked up.
        reader: Reads keys.
        batch: The batch without keys.
        shares: Shares of each shard.
        groups: Groups of files that dead positions are left by.
    """

    index: IndexOnTasks
    reader: KeyReader
    batch: CycleInput
    shares: int
    groups: int

    @property
    def share_count(self) -> int:
        """Shares of all shards."""
        return len(self.index.places) * self.shares

    def split(self, chunk: RowFiles | DeleteFile) -> Iterator[tuple[int, FileKeys | SplitDeletes]]:
        """Read staged files and split their keys by share.

        Raises:
            CorruptDataError: A file is damaged.
        """
        if isinstance(chunk, DeleteFile):
            keys, at_home = self.reader.read_filed(chunk.file)
            scope = np.where(at_home, chunk.scope, chunk.own_scope).astype(np.int64)
            for share, rows in self._split(keys):
                yield share, SplitDeletes(keys.take(rows), chunk.order, scope[rows])
            return
        found = file_keys([self.reader.read_file(file) for _, file in chunk.files])
        ordinals = np.array([ordinal for ordinal, _ in chunk.files], dtype=np.int64)
        for share, rows in self._split(found.keys):
            yield (
                share,
                FileKeys(
                    keys=found.keys.take(rows),
                    file=ordinals[found.file[rows]],
                    position=found.position[rows],
                ),
            )

    def match(self, share: int, parts: Iterable[FileKeys | SplitDeletes]) -> ShareFindings | None:
        """Decide what dies of one share; None: no key of it is staged.

        Raises:
            IndexDamagedError: Rebuild the index.

        Effects: an object; see `index.left`.
        """
        parts = list(parts)
        if not parts:
            return None
        batch = self._part_of_batch(parts)
        del parts
        numbered = number_keys(batch)
        matches = without_staged_rows(self.index.look_up(numbered.lookup), batch)
        matched = MatchedBatch(batch=batch, numbered=numbered, matches=matches)
        resolution = resolve_batch(matched, judge_by_arrival(matched))
        number_of = {file.file_path: number for number, file in matches.files.items()}
        for ordinal, each in enumerate(batch.files):
            number_of[each.file.file_path] = number_of_staged(ordinal)
        dead = _numbered(resolution.dead, number_of)
        changes = index_changes(batch, resolution, set(batch.paths))
        return self._leave(share // self.shares, dead, changes)

    def _leave(
        self, shard: int, dead: Sequence[tuple[int, BitMap64]], changes: IndexChanges
    ) -> ShareFindings:
        groups: list[list[tuple[int, BitMap64]]] = [[] for _ in range(self.groups)]
        for number, positions in dead:
            groups[number % self.groups].append((number, positions))
        cleared = concat_keys(list(changes.removed_keys))
        rows = (
            KeyedRows(keys=cleared, rows=np.zeros(len(cleared), dtype=np.uint64)),
            _keyed(changes.removed),
            _keyed(changes.put),
        )
        sections = [*map(bitmaps_to_bytes, groups), *map(keyed_to_bytes, rows)]
        *left, gone, removed, put = leave(self.index.depot, sections)
        numbers = [number for number, _ in dead]
        return ShareFindings(
            file_ids=BitMap64([each for each in numbers if each >= 0]).serialize(),
            staged=BitMap64([number_of_staged(each) for each in numbers if each < 0]).serialize(),
            dead=tuple(left),
            change=LeftChange(shard=shard, cleared=gone, removed=removed, put=put),
        )

    def _split(self, keys: EncodedKeys) -> Iterator[tuple[int, Int64s]]:
        for shard, rows in self.index.shards.split(keys):
            if self.shares == 1:
                yield shard, rows
                continue
            part = keys.take(rows).hash64() % np.uint64(self.shares)
            for number in range(self.shares):
                some = rows[part == number]
                if len(some):
                    yield shard * self.shares + number, some

    def _part_of_batch(self, parts: Sequence[FileKeys | SplitDeletes]) -> CycleInput:
        rows = [each for each in parts if isinstance(each, FileKeys)]
        deletes = [each for each in parts if isinstance(each, SplitDeletes)]
        none = np.empty(0, dtype=np.int64)
        return replace(
            self.batch,
            rows=FileKeys(
                keys=concat_keys([each.keys for each in rows]),
                file=np.concatenate([none, *(each.file for each in rows)]),
                position=np.concatenate([none, *(each.position for each in rows)]),
            ),
            deletes=replace(
                self.batch.deletes,
                keys=concat_keys([each.keys for each in deletes]),
                order=np.concatenate(
                    [none, *(np.full(len(each.keys), each.order) for each in deletes)]
                ),
                scope=np.concatenate([none, *(each.scope for each in deletes)]),
            ),
        )


def _numbered(dead: DeadPositions, number_of: dict[str, int]) -> list[tuple[int, BitMap64]]:
    return sorted((number_of[path], positions) for path, positions in dead.by_path.items())


def _keyed(entries: Iterable[Entries]) -> KeyedRows:
    return concat_rows([KeyedRows.of(each) for each in entries])
