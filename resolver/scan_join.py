"""Equality deletes on other columns than the indexed key: read the columns, compare, as always.

Only files that such a delete can reach are read: those of its partition when it is scoped, and
staged files only when a later commit deletes. The columns are few and the comparison is the same
as for the indexed key (match.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from pyiceberg.table.metadata import TableMetadata

from resolver.convert import DeadPositions
from resolver.cycle_input import CycleInput, KeyedDeletes, OrderedFile
from resolver.key_reader import READERS_MAX, KeyReader
from resolver.keys import factorize
from resolver.match import GLOBAL_SCOPE, TARGET_ORDER, Int64s, dead_rows, newest_deletes
from resolver.scopes import Scopes
from resolver.target import LiveFiles
from tableformat.environment import Environment


def add_joined_positions(
    environment: Environment,
    metadata: TableMetadata,
    batch: CycleInput,
    live: LiveFiles,
    dead: DeadPositions,
    *,
    in_place: bool,
) -> None:
    """Add to `dead` the rows that the batch's other equality deletes reach.

    Args:
        environment: Where the columns are read.
        metadata: Schemas and specs.
        batch: The cycle's input; nothing happens without `other_deletes`.
        live: The target's live files.
        dead: Grows.
        in_place: Orders are sequence numbers, and all files are the target's.
    """
    for deletes in batch.other_deletes:
        candidates = [*_target_files(live, in_place=in_place), *batch.files]
        join = _Join(
            deletes=deletes,
            scopes=batch.scopes,
            reader=KeyReader(environment.store, metadata, deletes.key.field_ids),
        )
        reachable = [each for each in candidates if join.may_reach(each)]
        with ThreadPoolExecutor(min(READERS_MAX, max(os.cpu_count() or 1, 2))) as pool:
            for each, positions in zip(reachable, pool.map(join.dead_in, reachable), strict=True):
                dead.add(each.file.file_path, positions)


def _target_files(live: LiveFiles, *, in_place: bool) -> Iterable[OrderedFile]:
    for entry in live.data.values():
        assert entry.sequence_number is not None
        yield OrderedFile(entry.data_file, entry.sequence_number if in_place else TARGET_ORDER)


@dataclass(frozen=True, slots=True)
class _Join:
    deletes: KeyedDeletes
    scopes: Scopes
    reader: KeyReader

    def may_reach(self, each: OrderedFile) -> bool:
        """Whether any delete is newer than the file and in its scope."""
        deletes = self.deletes
        scope = self.scopes.of_rows(each.file.spec_id, each.file.partition)
        in_scope = (deletes.scope == GLOBAL_SCOPE) | ((deletes.scope == scope) & (scope >= 0))
        return bool((in_scope & (deletes.order > each.order)).any())

    def dead_in(self, each: OrderedFile) -> Int64s:
        """Positions of the file's rows that die."""
        keys = self.reader.read_file(each.file)
        numbers = factorize(self.deletes.keys, keys)
        delete_number, row_number = numbers.numbers
        newest = newest_deletes(
            key=delete_number,
            order=self.deletes.order,
            scope=self.deletes.scope,
            key_count=numbers.count,
            scope_count=len(self.scopes),
        )
        scope = self.scopes.of_rows(each.file.spec_id, each.file.partition)
        return np.flatnonzero(
            dead_rows(
                newest,
                key=row_number,
                order=np.full(len(keys), each.order, dtype=np.int64),
                scope=np.full(len(keys), scope, dtype=np.int64),
            )
        )
