"""Deletes against files that the index does not answer for: read their keys, compare, as always.

Used for equality deletes on other columns than the indexed key, and for data files that others
committed to the target while a cycle was under way. Only files that a delete can reach are read:
those of its partition when it is scoped, and those that are older than it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from pyiceberg.table.metadata import TableMetadata

from resolver.cycle_input import KeyedDeletes, OrderedFile
from resolver.key_reader import KeyReader
from resolver.keys import factorize
from resolver.match import GLOBAL_SCOPE, Int64s, dead_rows, newest_deletes
from resolver.merge_deletes import DeadPositions
from resolver.runner import LocalRunner, Runner
from resolver.scopes import Scopes
from tableformat.environment import Environment


def add_joined_positions(
    environment: Environment,
    metadata: TableMetadata,
    deletes: Iterable[KeyedDeletes],
    scopes: Scopes,
    files: Iterable[OrderedFile],
    dead: DeadPositions,
    runner: Runner | None = None,
) -> None:
    """Add to `dead` the rows of `files` that `deletes` reach.

    Args:
        environment: Where the columns are read.
        metadata: Schemas and specs.
        deletes: Equality deletes, one set of columns each.
        scopes: The numbers of their scopes.
        files: Data files and their orders; not looked at without deletes.
        dead: Grows.
        runner: Where the files are read; None: in this process.

    Raises:
        CorruptDataError: A file is damaged.
    """
    deletes = [each for each in deletes if len(each.keys)]
    files = list(files) if deletes else []
    for each in deletes:
        join = _Join(each, scopes, KeyReader(environment.store, metadata, each.key.field_ids))
        reachable = [file for file in files if join.may_reach(file)]
        found = (runner or LocalRunner()).run(join.dead_in, reachable)
        for file, positions in zip(reachable, found, strict=True):
            dead.add(file.file.file_path, positions)


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
