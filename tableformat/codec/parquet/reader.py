"""Read one Parquet data or delete file as rows of a wanted schema.

What is checked, because a wrong file must never become wrong rows: the object's size, the checksums
of footer and column chunks (of pages, in files of other writers), all that `check` names,
the stored types against the wanted ones, nulls in required columns. Whatever fails is a
`CorruptDataError` that names the file. Batches may have been handed out before a file turns out to
be broken: rows count only when the iterator has ended.

Row positions are ordinals in the whole file, also when row groups are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import ValidationError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField

from tableformat.codec.parquet.check import (
    check_chunks,
    check_row_count,
    check_stored_ids,
)
from tableformat.codec.parquet.chunk_metadata import statistics_can_be_read
from tableformat.codec.parquet.chunk_reader import ChunkReader, parquet_file
from tableformat.codec.parquet.columns import (
    FileColumn,
    file_columns,
    has_field_ids,
    map_columns,
    select_columns,
)
from tableformat.codec.parquet.footer_checksum import FooterReads
from tableformat.codec.parquet.projection import columns_by_id, missing_column, project_column
from tableformat.codec.parquet.row_groups import RowGroupFilter, matching_row_groups
from tableformat.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
    error_context,
)
from tableformat.spec.arrow_arrays import constant_array
from tableformat.spec.data_file import PARQUET_FORMAT, DataFile
from tableformat.spec.names import LAST_UPDATED_SEQUENCE_NUMBER_FIELD_ID, ROW_ID_FIELD_ID
from tableformat.spec.types import POS_FIELD, arrow_field, arrow_schema
from tableformat.store.base import ObjectStore

NAME_MAPPING_PROPERTY = "schema.name-mapping.default"
BATCH_ROWS = 1 << 16
# Large values (documents, images) make rows of megabytes: batches are bounded in bytes, too.
BATCH_BYTES = 64 << 20
EXPANSION = 4  # of stored to decoded bytes, roughly
_INT64 = pa.int64()


def read_data_file(
    store: ObjectStore,
    data_file: DataFile,
    *,
    schema: Schema,
    spec: PartitionSpec,
    properties: Mapping[str, str] | None = None,
    sequence_number: int | None = None,
    batch_rows: int | None = None,
    positions: bool = False,
    row_group_filter: RowGroupFilter | None = None,
    wanted: NDArray[np.int64] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file.

    Args:
        store: Where the file is.
        data_file: The manifest entry's file. Deletes are not applied here.
        schema: The fields wanted, by id; a table schema or a projection of one. It may contain
            `ROW_ID_FIELD` and `LAST_UPDATED_FIELD` of `spec.types`.
        spec: The partition spec of the file's manifest.
        properties: Table properties; only the name mapping is looked at.
        sequence_number: The entry's data sequence number, for `_last_updated_sequence_number`.
        batch_rows: Rows per batch at most; None: see `rows_of_batch`.
        positions: Add the int64 column `_pos` at the end: ordinals in the file from 0.
        row_group_filter: Told the statistics of one row group (as a `DataFile`), says False if it
            can be skipped. Positions and lineage of the other rows stay what they are.
        wanted: Only the rows with these ordinals, ascending and distinct; row groups that hold
            none of them are not read.

    Yields:
        Batches with columns as `arrow_schema(schema)`, in file order.

    Raises:
        CorruptDataError: See above.
        NotFoundError: The file does not exist.
        UnsupportedError: The file is not Parquet.

    Source: spec, Column Projection and Row Lineage.
    """
    location = data_file.file_path
    if data_file.file_format.upper() != PARQUET_FORMAT:
        raise UnsupportedError(f"cannot read {data_file.file_format} files", location=location)
    with error_context(location=location), store.open_input(location) as source:
        reader = open_parquet(source, data_file)
        columns = wanted_columns(reader, data_file, schema, properties)
        plan = RowProjector(data_file, schema, spec, columns, sequence_number, positions=positions)
        footer = reader.metadata
        groups: Sequence[int] = range(footer.num_row_groups)
        if row_group_filter is not None and statistics_can_be_read(source, footer):
            with as_corrupt(location):
                groups = matching_row_groups(
                    footer, data_file, columns, schema.fields, row_group_filter
                )
        if wanted is not None:
            groups = _groups_with(footer, groups, wanted)
        batch_rows = batch_rows or rows_of_batch(data_file)
        yield from _batches(source, footer, plan, batch_rows, groups, wanted)


def rows_of_batch(file: DataFile) -> int:
    """Rows that keep a batch of whole rows near `BATCH_BYTES`, by the file's own size."""
    row_bytes = EXPANSION * file.file_size_in_bytes / max(file.record_count, 1)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1))))


class RowProjector:
    """Where every wanted column comes from."""

    def __init__(
        self,
        data_file: DataFile,
        schema: Schema,
        spec: PartitionSpec,
        columns: tuple[FileColumn, ...],
        sequence_number: int | None,
        *,
        positions: bool,
    ) -> None:
        self.data_file = data_file
        self.location = data_file.file_path
        self.leaves = [leaf for column in columns for leaf in column.leaves()]
        self.columns = columns
        self._index = columns_by_id(columns)
        self._fields: tuple[NestedField, ...] = tuple(schema.fields)
        self._sequence_number = sequence_number
        self._constants = _identity_constants(data_file, spec)
        self._positions = positions
        self.target = arrow_schema(schema)
        if positions:
            self.target = self.target.append(arrow_field(POS_FIELD))

    def project(self, stored: Sequence[pa.Array], start: int, count: int) -> pa.RecordBatch:
        """Rows `[start, start + count)` of the file in the wanted form."""
        return self._batch(stored, lambda: np.arange(start, start + count, dtype=np.int64), count)

    def project_wanted(
        self,
        stored: Sequence[pa.Array],
        start: int,
        count: int,
        wanted: NDArray[np.int64] | None,
    ) -> pa.RecordBatch | None:
        """As `project`, but only the rows that are wanted; None when none is.

        Args:
            stored: Stored values of the rows `[start, start + count)`.
            start: The first row's ordinal in the file.
            count: How many rows these are.
            wanted: Ascending, distinct ordinals in the file; None: every row is.
        """
        if wanted is None:
            return self.project(stored, start, count)
        first, last = np.searchsorted(wanted, [start, start + count])
        if first == last:
            return None
        rows = pa.array(wanted[first:last] - start)
        return self.project_rows([each.take(rows) for each in stored], wanted[first:last])

    def project_rows(
        self, stored: Sequence[pa.Array], positions: NDArray[np.int64]
    ) -> pa.RecordBatch:
        """The rows at `positions` of the file, whose stored values are `stored`."""
        return self._batch(stored, lambda: positions, len(positions))

    def _batch(
        self, stored: Sequence[pa.Array], positions: Callable[[], NDArray[np.int64]], count: int
    ) -> pa.RecordBatch:
        arrays = [self._field(field, stored, positions, count) for field in self._fields]
        if self._positions:
            arrays.append(pa.array(positions()))
        return pa.RecordBatch.from_arrays(arrays, schema=self.target)

    def _field(
        self,
        field: NestedField,
        stored: Sequence[pa.Array],
        positions: Callable[[], NDArray[np.int64]],
        count: int,
    ) -> pa.Array:
        index = self._index.get(field.field_id)
        found = None
        if index is not None:
            found = project_column(stored[index], self.columns[index], field, field.name)
        is_lineage = field.field_id in (ROW_ID_FIELD_ID, LAST_UPDATED_SEQUENCE_NUMBER_FIELD_ID)
        if is_lineage and found is not None and not found.null_count:
            return found  # nothing is inherited
        if field.field_id == ROW_ID_FIELD_ID:
            first = self.data_file.first_row_id
            return _inherit(found, None if first is None else pa.array(first + positions()), count)
        if field.field_id == LAST_UPDATED_SEQUENCE_NUMBER_FIELD_ID:
            number = self._sequence_number
            if self.data_file.first_row_id is None or number is None:
                return _inherit(found, None, count)
            # A tenth of what `pa.repeat` takes.
            return _inherit(found, pa.array(np.full(count, number, np.int64)), count)
        if found is not None:
            return found
        if field.field_id in self._constants:
            value = self._constants[field.field_id]
            if value is None and field.required:
                raise CorruptDataError("required column holds nulls", column=field.name)
            return constant_array(value, field.field_type, count)
        return missing_column(field, count, field.name)


def _groups_with(
    footer: pq.FileMetaData, row_groups: Sequence[int], wanted: NDArray[np.int64]
) -> list[int]:
    """The row groups that hold a wanted ordinal."""
    starts = _group_starts(footer)
    first = np.searchsorted(wanted, starts)
    return [index for index in row_groups if first[index] < first[index + 1]]


def _group_starts(footer: pq.FileMetaData) -> list[int]:
    sizes = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
    starts: list[int] = np.cumsum([0, *sizes]).tolist()
    return starts


def _batches(
    source: pa.NativeFile,
    footer: pq.FileMetaData,
    plan: RowProjector,
    batch_rows: int,
    row_groups: Sequence[int],
    wanted: NDArray[np.int64] | None,
) -> Iterator[pa.RecordBatch]:
    starts = _group_starts(footer)
    for first, last in _runs(row_groups):
        position, end = starts[first], starts[last + 1]
        if not plan.leaves:
            for start in range(position, end, batch_rows):
                rows = plan.project_wanted([], start, min(batch_rows, end - start), wanted)
                if rows is not None:
                    yield rows
            continue
        groups = list(range(first, last + 1))
        reader = ChunkReader(source, footer, plan.leaves, groups, keep_codes=wanted is not None)
        stream = reader.batches(batch_rows)
        while (batch := _next(stream, plan.location)) is not None:
            rows = plan.project_wanted(batch.columns, position, batch.num_rows, wanted)
            if rows is not None:
                yield rows
            position += batch.num_rows
        if position != end:
            raise CorruptDataError(
                "columns hold another number of rows than the footer says",
                expected=end,
                found=position,
            )
        with as_corrupt(plan.location):
            check_chunks(footer, plan.leaves, groups)


def open_parquet(source: pa.NativeFile, data_file: DataFile) -> pq.ParquetFile:
    """Parse the footer, and hold size and row count against the manifest entry.

    Columns are to be read by a `ChunkReader`: this one does not check them.
    """
    with as_corrupt(data_file.file_path):
        size_bytes = source.size()
        if size_bytes != data_file.file_size_in_bytes:
            raise CorruptDataError(
                "file size differs from the manifest entry",
                expected=data_file.file_size_in_bytes,
                found=size_bytes,
            )
        reads = FooterReads(source)
        tapped = reads.tapped()
        with tapped.errors():
            reader = parquet_file(tapped)
        footer = reads.checked(reader.metadata, data_file.file_path)
        if footer is not reader.metadata:
            reader = parquet_file(source, footer)
        check_row_count(reader.metadata, data_file)
    return reader


def wanted_columns(
    reader: pq.ParquetFile,
    data_file: DataFile,
    schema: Schema,
    properties: Mapping[str, str] | None,
) -> tuple[FileColumn, ...]:
    """What must be read of the file; `properties` may hold a name mapping."""
    mapping = _name_mapping((properties or {}).get(NAME_MAPPING_PROPERTY))
    with as_corrupt(data_file.file_path):
        tree = file_columns(reader)
        mapped = not has_field_ids(tree)
        if mapped:
            tree = map_columns(tree, mapping)
        columns = select_columns(tree, schema.fields)
    if not mapped:
        check_stored_ids(data_file, columns, schema)
    return columns


@contextmanager
def as_corrupt(location: str) -> Iterator[None]:
    """Arrow's complaints about bytes as ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError("file does not exist", location=location) from error
    except OSError as error:
        if error.errno is not None:  # the system's complaint, not about the bytes
            raise StoreUnavailableError(f"cannot read: {error}", location=location) from error
        raise CorruptDataError(f"broken Parquet file: {error}", location=location) from error
    except (pa.ArrowException, UnicodeDecodeError) as error:  # names in the footer are text
        raise CorruptDataError(f"broken Parquet file: {error}", location=location) from error


def _next(stream: Iterator[pa.RecordBatch], location: str) -> pa.RecordBatch | None:
    with as_corrupt(location):
        return next(stream, None)


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of every run of neighbours."""
    run: tuple[int, int] | None = None
    for index in indices:
        if run is not None and index == run[1] + 1:
            run = (run[0], index)
            continue
        if run is not None:
            yield run
        run = (index, index)
    if run is not None:
        yield run


def _inherit(stored: pa.Array | None, inherited: pa.Array | None, count: int) -> pa.Array:
    """Row lineage: the stored value, else the inherited one, null where nothing is inherited."""
    if inherited is None:
        return pa.nulls(count, _INT64)
    return inherited if stored is None else pc.coalesce(stored, inherited)


def _identity_constants(data_file: DataFile, spec: PartitionSpec) -> dict[int, object]:
    """Values of columns that equal a partition value, by source field id (internal form)."""
    if len(spec.fields) != len(data_file.partition):
        raise CorruptDataError("the entry's partition does not fit its spec", spec_id=spec.spec_id)
    return {
        field.source_id: value
        for field, value in zip(spec.fields, data_file.partition, strict=True)
        if isinstance(field.transform, IdentityTransform)
    }


@lru_cache(maxsize=64)
def _name_mapping(text: str | None) -> NameMapping | None:
    if text is None:
        return None
    try:
        return parse_mapping_from_json(text)
    except ValidationError as error:
        raise InvalidInputError(
            "name mapping is not valid", property=NAME_MAPPING_PROPERTY
        ) from error
