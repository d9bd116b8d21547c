"""Live staged rows of one partition, as they are written once more: read, filled, in order.

Rows of a small batch are read ahead, while the index is asked: nothing of their values and of their
order depends on which of them live, or on their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from resolver.filled_columns import STAYS, Fill, FilledColumns
from resolver.match import Bools, Int64s
from resolver.row_identity import NO_ROW_ID
from tableformat.codec.parquet.reader import read_data_file
from tableformat.codec.puffin.deletion_vector import build_positions, position_array
from tableformat.scan.ordered_stream import stream_ordered
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.data_file import DataFile
from tableformat.spec.missing_columns import replaced
from tableformat.spec.types import ROW_ID_FIELD, arrow_schema
from tableformat.store.base import ObjectStore
from tableformat.store.locations import readers_of
from tableformat.write.one_partition import OnePartition
from tableformat.write.ordering import BATCH_ROWS, Ordering, ordered

if TYPE_CHECKING:
    from tableformat.sql.computed_columns import StoredValues  # loads sqlglot

PLACE = "_icefold_place"
DEAD = NO_ROW_ID - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Live rows of a staged file.

    Attributes:
        file: The file; without `first_row_id`, ids are given here.
        dead: Positions of its other rows.
        row_id: Shape `(rows of the file,)`; `NO_ROW_ID`: it gets one with the commit.
        row: Ordinal in the batch of the file's first row.
    """

    file: DataFile
    dead: BitMap64
    row_id: Int64s
    row: int

    def __len__(self) -> int:
        return len(self.row_id) - len(self.dead)

    @property
    def position(self) -> Int64s | None:
        """Shape `(rows,)`, ascending; None: all of the file's."""
        if not self.dead:
            return None
        alive: Bools = np.ones(len(self.row_id), dtype=np.bool_)
        alive[position_array(self.dead)] = False
        return np.flatnonzero(alive)

    @property
    def live_row_id(self) -> Int64s:
        """Shape `(rows,)`: those of the live rows."""
        position = self.position
        return self.row_id if position is None else self.row_id[position]

    @property
    def places(self) -> Int64s:
        """Ordinals in the batch, ascending; shape `(rows,)`."""
        position = self.position
        return self.row + (np.arange(len(self)) if position is None else position)

    def only(self, places: Int64s) -> StagedRows:
        """Some of the rows, given by their ordinals in the batch."""
        others = BitMap64(range(len(self.row_id))) - build_positions(places - self.row)
        return replace(self, dead=others)

    def is_same(self, other: StagedRows) -> bool:
        """Whether the same rows are written."""
        if self.file.file_path != other.file.file_path or self.dead != other.dead:
            return False
        return np.array_equal(self.live_row_id, other.live_row_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteJob:
    """The live rows of one partition of one spec. Picklable.

    Attributes:
        rows: By file, oldest first.
        partition: Where they go.
        schema: Of the table.
        ordering: The order they are written in.
        sort_bytes: Arrow bytes that are sorted at a time.
        fill: Where their missing columns come from; None: none is missing.
        ahead: `read_in_order` of all rows of the files; None: they are still to be read.
    """

    rows: tuple[StagedRows, ...]
    partition: OnePartition
    schema: Schema
    ordering: Ordering
    sort_bytes: int
    fill: Fill | None = None
    ahead: pa.Table | None = None

    def is_same(self, other: RewriteJob) -> bool:
        """Whether the same rows are written."""
        return (
            len(self.rows) == len(other.rows)
            and self.schema == other.schema
            and (other.fill is None if self.fill is None else self.fill.is_same(other.fill))
            and all(a.is_same(b) for a, b in zip(self.rows, other.rows, strict=True))
        )


class StagedSource:
    """Reads the live rows of a job: the table's columns, row ids, and places in the batch."""

    def __init__(self, store: ObjectStore, job: RewriteJob) -> None:
        self._store = store
        self._job = job
        self.stored = Schema(*job.schema.fields, ROW_ID_FIELD)
        last = max((each.row + len(each.row_id) for each in job.rows), default=0)
        place = pa.int32() if last <= np.iinfo(np.int32).max else pa.int64()
        self.arrow = arrow_schema(self.stored).append(pa.field(PLACE, place))
        self.names: list[str] = self.arrow.names
        self._filled: FilledColumns | None = None
        self._computed: StoredValues | None = None
        if job.fill is not None:
            properties = job.partition.properties
            self._filled = job.fill.read(store, job.schema, properties)
            if stored_columns(properties, job.schema):
                from tableformat.sql.computed_columns import StoredValues  # loads sqlglot

                self._computed = StoredValues.of(properties, job.schema)

    def in_order(self) -> Iterator[pa.RecordBatch]:
        """All columns of all rows, in the order in which they are written."""
        if self._job.ahead is None:
            return self._ordered(self.read(self.names))
        rows = _live_rows(self._job, self._job.ahead)
        return iter(rows.select(self.names).to_batches(BATCH_ROWS))

    def read_in_order(self, bytes_max: int) -> pa.Table | None:
        """In that order, without row ids; None: the rows take more Arrow bytes."""
        fields = [field for field in self.arrow if field.name != ROW_ID_FIELD.name]
        batches, left = list[pa.RecordBatch](), bytes_max
        for batch in self.read([field.name for field in fields]):
            left -= batch.nbytes
            if left < 0:
                return None
            batches.append(batch)
        return pa.Table.from_batches(self._ordered(iter(batches)), schema=pa.schema(fields))

    def _ordered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        job = self._job
        rows = sum(len(each) for each in job.rows)
        return ordered(job.ordering, batches, self.read, rows=rows, memory_bytes=job.sort_bytes)

    def read(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, file by file."""
        producers = [partial(self._rows, each, names) for each in self._job.rows]
        threads = readers_of(self._job.rows[0].file.file_path)
        with stream_ordered(producers, threads=threads) as batches:
            yield from batches

    def _rows(self, rows: StagedRows, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        read = set(names)
        if self._computed is not None:
            read |= self._computed.inputs(names, self._job.schema)
        wanted = Schema(*(each for each in self._job.schema.fields if each.name in read))
        done, ids, places = 0, rows.live_row_id, rows.places
        for batch in read_data_file(
            self._store,
            rows.file,
            schema=wanted,
            spec=self._job.partition.spec,
            properties=self._job.partition.properties,
            wanted=rows.position,
        ):
            here = slice(done, done + batch.num_rows)
            done += batch.num_rows
            yield self._with_ids(batch, ids[here], places[here], names)

    def _with_ids(
        self, batch: pa.RecordBatch, ids: Int64s, places: Int64s, names: Sequence[str]
    ) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self._filled is not None:
            is_filled = self._filled.fill(columns, places)
            if self._computed is not None and is_filled.any():
                self._compute(columns, is_filled)
        columns[ROW_ID_FIELD.name] = pa.array(ids, mask=ids == NO_ROW_ID)
        columns[PLACE] = pa.array(places, type=self.arrow.field(PLACE).type)
        schema = pa.schema([self.arrow.field(name) for name in names])
        return pa.RecordBatch.from_arrays([columns[name] for name in names], schema=schema)

    def _compute(self, columns: dict[str, pa.Array], is_filled: Bools) -> None:
        """Replace the stored computed columns, as far as they are there, of rows that were filled.

        The others were computed when they were staged.
        """
        assert self._computed is not None
        wanted = self._computed.columns.keys() & columns.keys()
        if not wanted:
            return
        used = wanted | self._computed.inputs(wanted, self._job.schema)
        given = pa.RecordBatch.from_pydict({name: columns[name] for name in used})
        filled = given.filter(pa.array(is_filled))
        at = np.where(is_filled, np.cumsum(is_filled) - 1, STAYS)
        for name in wanted:
            values = self._computed.compute(name, filled)
            columns[name] = replaced(columns[name], values, at)


def _live_rows(job: RewriteJob, ahead: pa.Table) -> pa.Table:
    """Those of the rows that were read ahead which live, with their ids."""
    place = ahead.column(PLACE).to_numpy()
    row_id = np.full(int(place.max(initial=-1)) + 1, DEAD, dtype=np.int64)
    for each in job.rows:
        row_id[each.places] = each.live_row_id
    row_id = row_id[place]
    is_live = row_id != DEAD
    if not is_live.all():
        ahead, row_id = ahead.filter(pa.array(is_live)), row_id[is_live]
    ids = pa.array(row_id, mask=row_id == NO_ROW_ID)
    return ahead.append_column(ROW_ID_FIELD.name, ids)
