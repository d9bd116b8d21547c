"""One table in a round: what changed, and the rows of some values before and after it.

Rows are looked up in the new version only, where the index is. The old version differs from it by
the changes of the round, which the changelog gives with their before-images: so the old rows are
the new ones, less those that came, and those that left.

Reading random rows of a large table costs as much as reading their columns, and the joins of a
round lead to the same rows again and again. So no row is looked up twice in a round, and none that
the changelog has brought.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot

from tableformat.cached import cached_property
from tableformat.catalog.base import TableState
from tableformat.changelog.change_columns import CHANGE_TYPE
from tableformat.changelog.changes import Changes, new_changes
from tableformat.changelog.pairing import one_array
from tableformat.changelog.step_rows import StepRows
from tableformat.changelog.steps import ChangeStep
from tableformat.changelog.value_codes import value_codes
from tableformat.codec.puffin.deletion_vector import Positions, position_array
from tableformat.environment import Environment
from tableformat.errors import NotFoundError
from tableformat.integer_order import distinct_first
from tableformat.join.plan import Columns, SidePlan
from tableformat.join.rows import NOWHERE, Found, Versions, columns_of, distinct, place_in
from tableformat.lookup.result import LookupSource
from tableformat.lookup.session import Lookup
from tableformat.scan.key_fields import key_path
from tableformat.scan.plan import plan_scan, plan_without_files
from tableformat.scan.projection import project
from tableformat.scan.reader import read_scan, scan_schema
from tableformat.scan.row_filter import arrow_filter, bind_filter, filter_field_ids, parse_filter
from tableformat.scan.snapshot_selection import select_snapshot

BEFORE, AFTER = ("-D", "-U"), ("+I", "+U")
# Bounds what a round remembers of a table; beyond, all is forgotten but what changed.
KNOWN_ROWS_MAX = 500_000


@dataclass(frozen=True, slots=True)
class _Known:
    """Distinct values of some columns, and all rows of the new version that have one of them."""

    values: pa.Table
    rows: pa.Table

    def lacks(self, values: pa.Table) -> pa.BooleanArray:
        """Which of some values are not known."""
        return pa.array(place_in(self.values, values) == NOWHERE)

    def with_(self, values: pa.Table, rows: pa.Table) -> _Known:
        """With more values, none of them known so far, and their rows."""
        return _Known(pa.concat_tables([self.values, values]), pa.concat_tables([self.rows, rows]))


@dataclass(frozen=True)
class Side:
    """One table between two snapshots.

    Attributes:
        is_first: Nothing was there before the new one.
        scans: Why lookups were scans; grows.
    """

    environment: Environment
    plan: SidePlan
    lookup: Lookup
    state: TableState
    old: Snapshot | None
    new: Snapshot | None
    is_first: bool
    scans: list[str] = field(default_factory=list)
    _fetched: dict[Columns, _Known] = field(default_factory=dict)
    _known: dict[Columns, _Known] = field(default_factory=dict)

    @cached_property
    def changes(self) -> pa.Table:
        """What changed of the columns that the join reads, both images; filtered, in order.

        Snapshot by snapshot, so that compactions are skipped; net where one has expired.
        """
        found, steps = self._steps
        reader = replace(found.reader, files=self.lookup.files)
        batches = (batch for step, rows in steps for batch in reader.changes(step, rows))
        return pa.Table.from_batches(batches, found.arrow_schema())

    @cached_property
    def _steps(self) -> tuple[Changes, list[tuple[ChangeStep, StepRows]]]:
        found = self._changes(net=False)
        try:
            _ = found.steps
        except NotFoundError:
            found = self._changes(net=True)
        return found, [(step, found.step_rows(step)) for step in found.steps]

    @cached_property
    def rows_to_read(self) -> int:
        """How many rows are read for `changes`; known without reading them."""
        sources = [source for _, rows in self._steps[1] for source in rows.sources]
        return sum(
            each.task.entry.data_file.record_count
            if each.positions is None
            else len(each.positions)
            for each in sources
        )

    def open_indexes(self) -> None:
        """Be ready for lookups."""
        if self.new is None:
            return
        for index, indexed in self.plan.indexes.values():
            keys = columns_of(self.no_rows, indexed)
            self.lookup.find(keys, indexed, index=index, snapshot_id=self.new.snapshot_id)

    def note_changes(self) -> None:
        """Let lookups that decode columns of old rows keep what `changes` reads of them."""
        dead: dict[str, list[Positions]] = {}
        for source in (source for _, rows in self._steps[1] for source in rows.sources):
            if source.positions is not None:
                path = source.task.entry.data_file.file_path
                dead.setdefault(path, []).append(source.positions)
        self.lookup.files.note(
            {path: position_array(reduce(or_, parts)) for path, parts in dead.items()}
        )

    def changed_values(self, columns: Columns) -> pa.Table:
        """What rows that left or came have in some columns; also of rows that only moved."""
        found, steps = self._steps
        reader = replace(
            found.reader,
            columns=replace(found.columns, read=project(found.plan, columns)),
            files=self.lookup.files,
        )
        sources = [source for _, rows in steps for source in rows.sources]
        rows = pa.Table.from_batches(reader.rows(sources), reader.columns.read.arrow_schema)
        return columns_of(rows, columns)

    def fetch(self, columns: Columns, values: pa.Table) -> None:
        """Read rows of the new version that `look_up` will be asked for, by their values."""
        values = values.rename_columns(list(columns))
        rows = _placed(self._found(columns, values), columns, values).rows
        if values.num_rows + rows.num_rows <= KNOWN_ROWS_MAX:
            self._fetched[columns] = _Known(values, rows)

    def _changes(self, *, net: bool) -> Changes:
        return new_changes(
            self.environment,
            self.state,
            from_snapshot=None if self.old is None else self.old.snapshot_id,
            to_snapshot=None if self.new is None else self.new.snapshot_id,
            net=net,
            columns=self.plan.columns,
            row_filter=self.plan.row_filter,
        )

    @cached_property
    def before(self) -> pa.Table:
        """Rows of the old version that left or changed: what a key's first change says of it."""
        return self._images(BEFORE, first=True)

    @cached_property
    def after(self) -> pa.Table:
        """Rows of the new version that came or changed: what a key's last change says of it."""
        return self._images(AFTER, first=False)

    def _images(self, kinds: tuple[str, str], *, first: bool) -> pa.Table:
        codes = value_codes([one_array(self.changes, name) for name in self.plan.key])
        _, at = distinct_first(codes if first else codes[::-1])
        rows = self.changes.take(pa.array(at if first else len(codes) - 1 - at))
        is_wanted = pc.is_in(rows[CHANGE_TYPE], pa.array(kinds))
        return columns_of(rows.filter(is_wanted), self.plan.columns)

    def scan(self) -> Iterator[pa.RecordBatch]:
        """All rows of the new version, with bounded memory."""
        if self.new is None:
            return iter(())
        plan = plan_scan(
            self.environment,
            self.state,
            snapshot_id=self.new.snapshot_id,
            row_filter=self.plan.row_filter,
            schema=self._schema,
        )
        return read_scan(self.environment, plan, columns=self.plan.columns)

    def look_up(self, columns: Columns, values: pa.Table) -> Versions:
        """The rows of both versions that have some values.

        Args:
            columns: Where: the key's, or those of a join.
            values: As many columns, of their types; distinct, without nulls.
        """
        new = self.look_up_new(columns, values)
        if self.is_first:
            return Versions(Found(new.rows.slice(0, 0), new.place[:0]), new)
        return Versions(self._undone(columns, values, new), new)

    def look_up_new(self, columns: Columns, values: pa.Table) -> Found:
        """The rows of the new version that have some values; see `look_up`."""
        values = values.rename_columns(list(columns))
        if self.is_first:  # comes upon a value once, and reads the whole table
            return _placed(self._read(columns, values), columns, values)
        known = self._known_by(columns)
        missing = values.filter(known.lacks(values))
        if missing.num_rows:
            rows = _placed(self._read(columns, missing), columns, missing).rows
            known = known.with_(missing, rows)
            self._remember(columns, known)
            if columns != self.plan.key:
                by_key = self._known_by(self.plan.key)
                keys = columns_of(rows, self.plan.key)
                are_new = by_key.lacks(keys)
                by_key = by_key.with_(keys.filter(are_new), rows.filter(are_new))
                self._remember(self.plan.key, by_key)
        return _placed(known.rows, columns, values)

    def _known_by(self, columns: Columns) -> _Known:
        if columns in self._known:
            return self._known[columns]
        if columns != self.plan.key:
            return _Known(columns_of(self.no_rows, columns), self.no_rows)
        keys = distinct(*(columns_of(rows, columns) for rows in (self.before, self.after)))
        return _Known(keys, self.after)  # rows of keys that changed are in the changes

    def _remember(self, columns: Columns, known: _Known) -> None:
        is_small = known.values.num_rows + known.rows.num_rows <= KNOWN_ROWS_MAX
        if is_small:
            self._known[columns] = known
        else:
            self._known.pop(columns, None)

    def _read(self, columns: Columns, values: pa.Table) -> pa.Table:
        fetched = self._fetched.get(columns)
        if fetched is None:
            return self._found(columns, values)
        missing = values.filter(fetched.lacks(values))
        others = self._found(columns, missing)
        parts = ((fetched.rows, values), (others, missing))
        return pa.concat_tables([_placed(rows, columns, of).rows for rows, of in parts])

    def _found(self, columns: Columns, values: pa.Table) -> pa.Table:
        if self.new is None or not values.num_rows:
            return self.no_rows
        index, indexed = self.plan.indexes[columns]
        keys = distinct(columns_of(values, indexed))
        names, only = self._filtered
        found = self.lookup.find(keys, names, index=index, snapshot_id=self.new.snapshot_id)
        if found.source == LookupSource.SCAN:
            self.scans.append(str(found.reason))
        return columns_of(found.rows.filter(only), self.plan.columns)

    def _undone(self, columns: Columns, values: pa.Table, new: Found) -> Found:
        came = columns_of(self.after, self.plan.key)
        stayed = place_in(came, columns_of(new.rows, self.plan.key)) == NOWHERE
        left = _placed(self.before, columns, values)
        return Found(
            pa.concat_tables([new.rows.filter(pa.array(stayed)), left.rows]),
            np.concatenate([new.place[stayed], left.place]),
        )

    @cached_property
    def _filtered(self) -> tuple[list[str], pc.Expression]:
        """What is read of a row to filter it, and the filter."""
        bound = bind_filter(parse_filter(self.plan.row_filter), self._schema)
        tested = filter_field_ids(bound)
        roots = [key_path(self._schema, field_id)[0] for field_id in sorted(tested)]
        names = dict.fromkeys([*self.plan.columns, *roots])
        return list(names), arrow_filter(bound, self._schema)

    @cached_property
    def _schema(self) -> Schema:
        """What the new version is read with."""
        if self.new is None:
            return self.state.metadata.schema()
        return select_snapshot(self.state, snapshot_id=self.new.snapshot_id).schema

    @cached_property
    def no_rows(self) -> pa.Table:
        """No rows, with the columns that the join reads."""
        schema = scan_schema(
            plan_without_files(self.state.metadata, self._schema), columns=self.plan.columns
        )
        return columns_of(schema.empty_table(), self.plan.columns)


def _placed(rows: pa.Table, columns: Columns, values: pa.Table) -> Found:
    """The rows that have one of the values; an index may be on some of the columns only."""
    place = place_in(values, columns_of(rows, columns))
    return Found(rows.filter(pa.array(place != NOWHERE)), place[place != NOWHERE])
