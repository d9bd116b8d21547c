"""Order rows by columns or along a Z-curve, in bounded memory.

Rows that fit into memory are sorted there. More are first spread over buckets on local disk: a
64-bit *coarse key* is computed per row, monotone in the wanted order, and cut where a sample of all
rows says that buckets are of equal size. Then one bucket after the other is sorted exactly.

The coarse key of a sort is made of 16-bit ranks, one per column, against the sample. A row between
two sample values shares its rank with others, so whatever follows must not decide: the rest is 0
there. The Z-curve interleaves the bits of the ranks of all columns, and is its own exact key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import IdentityTransform

from tableformat.errors import UnsupportedError
from tableformat.integer_order import distinct, stable_order
from tableformat.memory import release_unused
from tableformat.spec.field_paths import field_path
from tableformat.temporary_disk import temporary_disk_errors, temporary_folder
from tableformat.write.order_bits import order_bits

MEMORY_BYTES_MAX = 256 << 20
BUCKETS_MAX = 256
SAMPLE_ROWS_MAX = 1 << 16
BATCH_ROWS = 1 << 16
COLUMNS_MAX = 4  # of which 16 bits each fit into one key
RANKS_MAX = 32_000  # two per sample value, and 0 and 1 for null: below 2**16

Keys = npt.NDArray[np.uint64]
ReadColumns = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SortColumn:
    """One column of an order; `path` goes into structs."""

    path: tuple[str, ...]
    descending: bool = False
    nulls_first: bool = True

    def values(self, rows: pa.Table) -> pa.ChunkedArray:
        """The column's values."""
        column = rows.column(self.path[0])
        for name in self.path[1:]:
            column = pc.struct_field(column, name)
        if isinstance(column.type, pa.BaseExtensionType):
            storage = [chunk.storage for chunk in column.chunks]
            column = pa.chunked_array(storage, column.type.storage_type)
        return column


def sort_order_columns(metadata: TableMetadata) -> list[SortColumn]:
    """The columns of the table's sort order; none without one.

    Raises:
        UnsupportedError: It has a transform.
    """
    schema, columns = metadata.schema(), []
    for field in metadata.sort_order().fields:
        path = field_path(schema, field.source_id) or ("",)
        if not isinstance(field.transform, IdentityTransform):
            raise UnsupportedError(
                "cannot sort by a transform",
                column=".".join(path),
                transform=field.transform,
                action="name columns with sort_by",
            )
        column = SortColumn(
            path=path,
            descending=field.direction == SortDirection.DESC,
            nulls_first=field.null_order == NullOrder.NULLS_FIRST,
        )
        columns.append(column)
    return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """What rows are ordered by."""

    columns: tuple[SortColumn, ...]
    is_z_order: bool = False


def ordered(
    ordering: Ordering,
    batches: Iterator[pa.RecordBatch],
    read_columns: ReadColumns,
    *,
    rows: int,
    memory_bytes: int = MEMORY_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """The same rows in order.

    Args:
        ordering: The order.
        batches: All rows; read once.
        read_columns: Reads some columns of all rows again, for the sample.
        rows: At least as many as there are.
        memory_bytes: Arrow bytes of one bucket, and of what is sorted without buckets.

    Raises:
        StoreUnavailableError: There is no room for temporary files.

    Effects: temporary files on local disk, about as large as the rows, removed at the end.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes > memory_bytes:
            break
    else:
        if held:
            table = pa.Table.from_batches(held)
            yield from _sorted(table, ordering, None)
        return
    held_rows = sum(batch.num_rows for batch in held)
    expected_bytes = held_bytes * rows // max(held_rows, 1)
    # Half full on average: a sample does not cut exactly.
    buckets = min(2 * expected_bytes // memory_bytes + 1, BUCKETS_MAX)
    names = sorted({column.path[0] for column in ordering.columns})
    ranks = _Ranks.of(ordering, _sample(read_columns(names), rows))
    yield from _by_buckets(ordering, chain(_let_go(held), batches), ranks, buckets)


def _let_go(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while held:
        yield held.pop(0)


def _by_buckets(
    ordering: Ordering, batches: Iterable[pa.RecordBatch], ranks: _Ranks, buckets: int
) -> Iterator[pa.RecordBatch]:
    bounds = ranks.bounds(buckets)
    with temporary_folder("icefold-sort-") as folder:
        paths = [Path(folder) / f"{number}.arrow" for number in range(len(bounds) + 1)]
        with temporary_disk_errors(), ExitStack() as stack:
            writers: dict[int, pa.RecordBatchFileWriter] = {}
            for batch in batches:
                table = pa.Table.from_batches([batch])
                bucket = np.searchsorted(bounds, ranks.keys(table), side="right")
                order = np.argsort(bucket.astype(np.uint16), kind="stable")
                spread = batch.take(pa.array(order))
                starts = np.searchsorted(bucket[order], np.arange(len(paths) + 1))
                for number in np.unique(bucket).tolist():
                    if number not in writers:
                        sink = pa.ipc.new_file(str(paths[number]), batch.schema)
                        writers[number] = stack.enter_context(sink)
                    start, end = int(starts[number]), int(starts[number + 1])
                    writers[number].write_batch(spread.slice(start, end - start))
        for path in paths:
            if path.exists():
                with pa.memory_map(str(path)) as source:
                    table = pa.ipc.open_file(source).read_all()
                    yield from _sorted(table, ordering, ranks)
                del table
                path.unlink()
                release_unused()


def _sorted(table: pa.Table, ordering: Ordering, ranks: _Ranks | None) -> Iterator[pa.RecordBatch]:
    """`ranks`: against a sample of more rows than these; None: these are all."""
    if ordering.is_z_order:
        ranks = ranks or _Ranks.of(ordering, table)
        order = pa.array(stable_order(ranks.keys(table)))
    else:
        order = _order_of_integers(table, ordering)
        if order is None:
            order = _exact_order(table, ordering)
    return iter(table.take(order).combine_chunks().to_batches(BATCH_ROWS))


def _order_of_integers(table: pa.Table, ordering: Ordering) -> pa.Array | None:
    """As `_exact_order`, in a tenth of the time; None: not one column of integers or times."""
    if len(ordering.columns) > 1:
        return None
    [column] = ordering.columns
    values = column.values(table)
    is_whole = pa.types.is_integer(values.type) or pa.types.is_temporal(values.type)
    if values.null_count or not is_whole:
        return None
    keys = order_bits(values).keys
    return pa.array(stable_order(~keys if column.descending else keys))


def _exact_order(table: pa.Table, ordering: Ordering) -> pa.Array:
    """Indices in order; nulls of each column where the column wants them."""
    arrays: list[pa.ChunkedArray] = []
    keys: list[tuple[str, str]] = []
    for number, column in enumerate(ordering.columns):
        values = column.values(table)
        if values.null_count:
            keys.append((f"null{number}", "ascending" if column.nulls_first else "descending"))
            arrays.append(pc.is_valid(values))
        keys.append((f"key{number}", "descending" if column.descending else "ascending"))
        arrays.append(values)
    sorting = pa.Table.from_arrays(arrays, names=[name for name, _ in keys])
    return pc.sort_indices(sorting, sort_keys=keys)


def _sample(batches: Iterator[pa.RecordBatch], rows: int) -> pa.Table:
    """Every n-th row."""
    step = max(rows // SAMPLE_ROWS_MAX, 1)
    parts: list[pa.RecordBatch] = []
    skip = 0
    for batch in batches:
        if skip < batch.num_rows:
            parts.append(batch.take(pa.array(np.arange(skip, batch.num_rows, step))))
        skip = (skip - batch.num_rows) % step
    return pa.Table.from_batches(parts)


class _Ranks:
    """Coarse keys of rows against a sample of all rows."""

    def __init__(self, ordering: Ordering, sample: pa.Table) -> None:
        self._ordering = ordering
        self._values: list[Keys] = []
        for column in ordering.columns:
            bits = order_bits(column.values(sample))
            values = distinct(bits.keys[bits.valid])
            if len(values) > RANKS_MAX:
                picked = np.linspace(0, len(values) - 1, RANKS_MAX).astype(np.int64)
                values = values[picked]
            self._values.append(values)
        self._sample = np.sort(self.keys(sample))

    @classmethod
    def of(cls, ordering: Ordering, sample: pa.Table) -> _Ranks:
        """From a sample that has at least the ordering's columns."""
        return cls(ordering, sample)

    def keys(self, rows: pa.Table) -> Keys:
        """One coarse key per row, monotone in the order."""
        if self._ordering.is_z_order:
            return self._z_keys(rows)
        result = np.zeros(rows.num_rows, dtype=np.uint64)
        decided = np.zeros(rows.num_rows, dtype=np.bool_)
        columns = list(zip(self._ordering.columns, self._values, strict=True))[:COLUMNS_MAX]
        for number, (column, known) in enumerate(columns):
            bits = order_bits(column.values(rows))
            at = np.searchsorted(known, bits.keys)
            found = np.zeros(rows.num_rows, dtype=np.bool_)
            if len(known):
                found = known[np.minimum(at, len(known) - 1)] == bits.keys
            rank = 2 * at.astype(np.int64) + found + 1
            if column.descending:
                rank = 2 * RANKS_MAX + 4 - rank
            rank[~bits.valid] = 0 if column.nulls_first else (1 << 16) - 1
            rank[decided] = 0
            result |= rank.astype(np.uint64) << np.uint64(16 * (COLUMNS_MAX - 1 - number))
            decided |= bits.valid & ~(found & bits.is_exact)
        return result

    def bounds(self, buckets: int) -> Keys:
        """Keys at which a new bucket begins, so that the sample is spread evenly."""
        at = np.linspace(0, len(self._sample), buckets + 1)[1:-1].astype(np.int64)
        return distinct(self._sample[np.minimum(at, len(self._sample) - 1)])

    def _z_keys(self, rows: pa.Table) -> Keys:
        result = np.zeros(rows.num_rows, dtype=np.uint64)
        count = len(self._values)
        for number, (column, known) in enumerate(
            zip(self._ordering.columns, self._values, strict=True)
        ):
            bits = order_bits(column.values(rows))
            at = np.searchsorted(known, bits.keys, side="right").astype(np.uint64)
            # Spread over all 16 bits, so that every column has the same say.
            rank = at * np.uint64((1 << 16) - 1) // np.uint64(max(len(known), 1))
            rank[~bits.valid] = 0
            for bit in range(16):
                picked = (rank >> np.uint64(bit)) & np.uint64(1)
                result |= picked << np.uint64(bit * count + number)
        return result
