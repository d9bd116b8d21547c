"""A scan's rows in other libraries' hands. Each library is optional.

Everything travels as one Arrow stream of batches, so nothing is held that the library does not ask
for. What a library lacks is given as what holds the value exactly: DuckDB has no nanosecond
timestamps with a zone and gets them without one, in UTC; polars has no uuid and gets its 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tableformat.errors import UnsupportedError
from tableformat.spec.types import is_list

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

Batches = Callable[[], Iterator[pa.RecordBatch]]


def optional_module(name: str, extra: str, what: str) -> Any:
    """Import a library that icefold works without.

    Raises:
        UnsupportedError: It is not installed; says how to install it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{what} needs {name}", action=f"pip install 'icefold[{extra}]'"
        ) from error


class RowStream:
    """Rows that may be read any number of times, each time from the files.

    Libraries that know Arrow's stream interface (`__arrow_c_stream__`) take it as a table.
    """

    def __init__(self, schema: pa.Schema, batches: Batches) -> None:
        self.schema = schema
        self._batches = batches

    def reader(self) -> pa.RecordBatchReader:
        """The rows, once."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)


def rows_to_duckdb(
    schema: pa.Schema,
    batches: Batches,
    connection: duckdb.DuckDBPyConnection | None,
    view: str,
) -> duckdb.DuckDBPyConnection:
    """Make the rows a view of a connection; each query of the view reads them anew, as a stream."""
    module = optional_module("duckdb", "duckdb", "to_duckdb")
    target = _without_zoned_nanoseconds(schema)
    stream = RowStream(schema, batches)
    if target != schema:
        stream = RowStream(target, lambda: (batch.cast(target) for batch in batches()))
    opened: duckdb.DuckDBPyConnection = module.connect() if connection is None else connection
    opened.register(view, stream)
    return opened


def rows_to_polars(table: pa.Table) -> pl.DataFrame:
    """The rows as a frame."""
    module = optional_module("polars", "polars", "to_polars")
    frame: pl.DataFrame = module.from_arrow(table)
    return frame


def rows_to_lazy_polars(
    schema: pa.Schema,
    read: Callable[[list[str] | None, int | None], Iterator[pa.RecordBatch]],
) -> pl.LazyFrame:
    """The rows as a lazy frame, batch by batch; polars' choice of columns and rows is taken over.

    Args:
        schema: Of all columns.
        read: Reads the rows, given the columns wanted and how many rows at most.
    """
    module = optional_module("polars", "polars", "to_polars")
    plugins = import_module("polars.io.plugins")

    def source(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        with closing(_generator(read(with_columns, n_rows))) as batches:
            for batch in batches:
                frame = module.from_arrow(pa.Table.from_batches([batch]))
                yield frame if predicate is None else frame.filter(predicate)

    empty = module.from_arrow(schema.empty_table())
    frame: pl.LazyFrame = plugins.register_io_source(source, schema=empty.schema)
    return frame


def rows_to_pandas(table: pa.Table) -> pd.DataFrame:
    """The rows as a frame of Arrow-backed columns: integers with NULL, decimals stay exact."""
    module = optional_module("pandas", "pandas", "to_pandas")
    frame: pd.DataFrame = table.to_pandas(types_mapper=module.ArrowDtype)
    return frame


def _generator(batches: Iterable[pa.RecordBatch]) -> Any:
    yield from batches


def _without_zoned_nanoseconds(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_plain(field) for field in schema], schema.metadata)


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns" and kind.tz is not None:
        return pa.timestamp("ns")
    if pa.types.is_struct(kind):
        return pa.struct([_plain(field) for field in kind])
    if is_list(kind):
        return pa.list_(_plain(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    return kind
