"""Deletes against files that the index does not answer for: read their keys, compare, as always.

Used for equality deletes on other columns than the indexed key, and for data files that others
committed to the target while a cycle was under way. Only files that a delete can reach are read:
those of its partition when it is scoped, that are older than it, and whose statistics leave it open
that they hold a value that is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from pyiceberg.types import NestedField

from resolver.cycle_input import KeyedDeletes, OrderedFile
from resolver.key_reader import KeyReader
from resolver.keys import factorize
from resolver.match import GLOBAL_SCOPE, Int64s, dead_rows, newest_deletes
from resolver.merge_deletes import DeadPositions
from resolver.scopes import Scopes
from resolver.target_view import TargetView
from tableformat.scan.bounds import KeyRange, enclosing_range, key_range, ranges_overlap
from tableformat.scan.key_fields import key_fields


def add_joined_positions(
    view: TargetView,
    deletes: Iterable[KeyedDeletes],
    scopes: Scopes,
    files: Iterable[OrderedFile],
    dead: DeadPositions,
) -> None:
    """Add to `dead` the rows of `files` that `deletes` reach.

    Args:
        view: The target; the columns are read where its runner works.
        deletes: Equality deletes, one set of columns each.
        scopes: The numbers of their scopes.
        files: Data files and their orders; not looked at without deletes.
        dead: Grows.

    Raises:
        CorruptDataError: A file is damaged.
    """
    deletes = [each for each in deletes if len(each.keys)]
    files = list(files) if deletes else []
    fields = key_fields(view.metadata) if deletes else {}
    for each in deletes:
        ranges = tuple(
            (field, enclosing_range([key_range(file, field) for file in each.files]))
            for field in map(fields.get, each.key.field_ids)
            if field is not None and each.files
        )
        reader = KeyReader(view.environment.store, view.metadata, each.key.field_ids)
        join = _Join(each, scopes, reader, ranges)
        reachable = [file for file in files if join.may_reach(file)]
        found = view.runner.run(join.dead_in, reachable)
        for file, positions in zip(reachable, found, strict=True):
            dead.add(file.file.file_path, positions)


@dataclass(frozen=True, slots=True)
class _Join:
    deletes: KeyedDeletes
    scopes: Scopes
    reader: KeyReader
    ranges: tuple[tuple[NestedField, KeyRange], ...]  # of the values that are deleted

    def may_reach(self, each: OrderedFile) -> bool:
        """Whether any delete is newer than the file, in its scope, and may name a value of it."""
        deletes = self.deletes
        scope = self.scopes.of_rows(each.file.spec_id, each.file.partition)
        in_scope = (deletes.scope == GLOBAL_SCOPE) | ((deletes.scope == scope) & (scope >= 0))
        return bool((in_scope & (deletes.order > each.order)).any()) and all(
            ranges_overlap(deleted, key_range(each.file, field)) for field, deleted in self.ranges
        )

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
