"""Write rows as data files: check, conform, split by partition, cut to size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Literal

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tableformat.codec.parquet.options import parquet_options
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.data_file import DataFile
from tableformat.spec.missing_columns import MISSING_FIELD
from tableformat.spec.types import LINEAGE_FIELDS, arrow_schema
from tableformat.store.base import ObjectStore
from tableformat.write.file_set import FileSet
from tableformat.write.partitioning import Partitioner
from tableformat.write.rows import check_columns, conform_batch

# Rows are split by partition in pieces of about this size: large enough that a partition gets
# long runs, small enough that 32-bit string offsets and memory are never a question.
_SPLIT_BYTES = 64 << 20

Finish = Callable[[pa.RecordBatch], pa.RecordBatch]
StoredChoice = Literal["checked", "computed", "kept"]


def write_data_files(
    store: ObjectStore,
    rows: pa.Table | Iterable[pa.RecordBatch],
    *,
    schema: Schema,
    spec: PartitionSpec,
    properties: Mapping[str, str],
    location_for: Callable[[str], str],
    stored: StoredChoice = "checked",
) -> list[DataFile]:
    """Write rows into new Parquet data files.

    Args:
        store: Where the files go.
        rows: Columns by name, in any order; missing optional ones get the write default or null.
            `_row_id` and `_last_updated_sequence_number` (int64) may come along: they are stored
            under their reserved ids, for rows that keep their identity. So may the text of
            `spec.missing_columns`, for rows that are staged.
        schema: The table's schema.
        spec: The partition spec to write with.
        properties: Table properties (`write.*`).
        location_for: Gives a fresh absolute location for a partition path (`""` without one).
        stored: Stored computed columns: `checked`, computed, and a value that is given has to be
            equal; `computed`, whatever is given, which is of an older row; `kept` as they are, for
            rows that are moved unchanged.

    Returns:
        The files, in the order they were finished; none for no rows. Partition values are in
        internal form. Nothing is committed.

    Raises:
        InvalidInputError: A column or a value does not fit; the message names the column. A table
            is checked whole before anything is written, a stream batch by batch.
        StoreUnavailableError: The store refused a write.

    Effects: creates the files returned. If it raises, open files never appear and finished ones
    are deleted; a crash leaves unreferenced files for orphan removal.
    """
    finish = None if stored == "kept" else _computing(schema, properties, stored)
    first, batches = conform_rows(rows, schema, finish)
    if first is None:
        return []
    full_schema = first
    options = parquet_options(properties)
    partitioner = Partitioner(spec, full_schema)
    with FileSet(
        store,
        schema=full_schema,
        partitioner=partitioner,
        options=options,
        properties=properties,
        location_for=location_for,
    ) as files:
        for piece in pieces(batches):
            for partition, part in partitioner.split(piece):
                files.add(partition, part)
        return files.finish()


def conform_rows(
    rows: pa.Table | Iterable[pa.RecordBatch], schema: Schema, finish: Finish | None = None
) -> tuple[Schema | None, Iterator[pa.RecordBatch]]:
    """Rows in the schema's form, and the schema they then have.

    Args:
        rows: As for `write_data_files`.
        schema: The table's.
        finish: What else is done to conformed batches.

    Returns:
        The schema with the fields of icefold's own that came along, None if there are no batches at
        all; and the conformed batches. A table is conformed completely before this returns.
    """
    if isinstance(rows, pa.Table):
        full_schema = _with_lineage(schema, rows.schema)
        check_columns(rows.schema, full_schema)
        target = arrow_schema(full_schema)
        done = [
            conform_batch(part, full_schema, target)
            for batch in rows.to_batches()
            for part in _cut(batch)
        ]
        return full_schema, iter(done if finish is None else [finish(each) for each in done])
    iterator = iter(rows)
    head = next(iterator, None)
    if head is None:
        return None, iter(())
    conformed = _conform_stream(chain([head], iterator), schema)
    full_schema = _with_lineage(schema, head.schema)
    return full_schema, conformed if finish is None else map(finish, conformed)


def check_row_columns(given: pa.Schema, schema: Schema) -> None:
    """Check names and types of the columns that rows come in, as `write_data_files` does.

    Raises:
        InvalidInputError: See `check_columns`.
    """
    check_columns(given, _with_lineage(schema, given))


def _computing(
    schema: Schema, properties: Mapping[str, str], stored: StoredChoice
) -> Finish | None:
    """Computes the stored columns of conformed batches; None without any."""
    if not stored_columns(properties, schema):
        return None
    from tableformat.sql.computed_columns import StoredValues  # loads sqlglot

    values = StoredValues.of(properties, schema)
    return None if values is None else partial(values.written, checks=stored == "checked")


def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches joined into tables of about `_SPLIT_BYTES`."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= _SPLIT_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of at most `_SPLIT_BYTES` on average; none without rows."""
    parts = min(-(-batch.nbytes // _SPLIT_BYTES), batch.num_rows)
    if parts <= 1:
        if batch.num_rows:
            yield batch
        return
    rows = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _conform_stream(batches: Iterable[pa.RecordBatch], schema: Schema) -> Iterator[pa.RecordBatch]:
    checked: pa.Schema | None = None
    full_schema, target = schema, pa.schema([])
    for batch in batches:
        if checked is None or not batch.schema.equals(checked):
            if checked is None:
                full_schema = _with_lineage(schema, batch.schema)
                target = arrow_schema(full_schema)
            check_columns(batch.schema, full_schema)
            checked = batch.schema
        for part in _cut(batch):
            yield conform_batch(part, full_schema, target)


def _with_lineage(schema: Schema, given: pa.Schema) -> Schema:
    present = [each for each in (*LINEAGE_FIELDS, MISSING_FIELD) if each.name in given.names]
    known = set(schema.column_names)
    extra = [field for field in present if field.name not in known]
    return Schema(*schema.fields, *extra, schema_id=schema.schema_id) if extra else schema
