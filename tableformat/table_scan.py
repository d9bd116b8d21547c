"""One planned read: its snapshot is fixed when it is made, its files when it is used."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, overload

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot

from tableformat.cached import cached_property
from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.html_text import fields_html
from tableformat.inspect.snapshot_list import snapshot_text
from tableformat.scan.expired_snapshot import rows_telling_expiry
from tableformat.scan.exports import (
    RowStream,
    rows_to_duckdb,
    rows_to_lazy_polars,
    rows_to_pandas,
    rows_to_polars,
)
from tableformat.scan.plan import ScanPlan, plan_scan
from tableformat.scan.reader import read_scan, scan_schema
from tableformat.scan.snapshot_selection import SelectedSnapshot, select_version
from tableformat.spec.computed_columns import computed_columns
from tableformat.spec.types import POS_FIELD

if TYPE_CHECKING:  # optional dependencies
    import duckdb
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from tableformat.sql.computed_columns import ResultColumns  # loads sqlglot


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Rows of one snapshot: reading it twice gives the same, whatever is committed meanwhile."""

    environment: Environment
    state: TableState
    selected: SelectedSnapshot
    row_filter: str | BooleanExpression | None
    columns: tuple[str, ...] | None
    limit: int | None

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that is read; None for an empty table."""
        return self.selected.snapshot

    @property
    def schema(self) -> Schema:
        """The schema rows are read with, before `columns`."""
        return self.selected.schema

    def _repr_html_(self) -> str:
        """What is read, without reading it."""
        fields = [
            ("snapshot", "none" if self.snapshot is None else snapshot_text(self.snapshot)),
            ("columns", ", ".join(self.columns or self.schema.column_names)),
            ("filter", "none" if self.row_filter is None else self.row_filter),
            ("limit", "none" if self.limit is None else self.limit),
        ]
        return fields_html(f"scan of {self.state.name}", fields)

    @cached_property
    def plan(self) -> ScanPlan:
        """Files to read and the deletes that reach them."""
        return plan_scan(
            self.environment,
            self.state,
            snapshot_id=None if self.snapshot is None else self.snapshot.snapshot_id,
            row_filter=self.row_filter,
            schema=self.schema,
        )

    @cached_property
    def _result(self) -> ResultColumns | None:
        """What is computed of the rows; None: nothing."""
        if not computed_columns(self.state.metadata.properties):
            return None
        from tableformat.sql.computed_columns import result_columns

        return result_columns(self.state.metadata, self.schema, self.columns)

    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        if self._result is not None:
            return self._result.arrow_schema(scan_schema(self.plan, columns=self._result.read))
        return scan_schema(self.plan, columns=self.columns)

    def count(self) -> int:
        """How many rows there are; files that metadata can count are not read."""
        known, unknown = 0, []
        for task in self.plan.tasks:
            by_reading = task.position_deletes or task.equality_deletes
            if isinstance(task.residual, AlwaysTrue) and not by_reading:
                dead = 0 if task.dv is None else task.dv.data_file.record_count
                known += task.entry.data_file.record_count - dead
            else:
                unknown.append(task)
        plan = replace(self.plan, tasks=tuple(unknown))
        with closing(self._read(plan, [POS_FIELD.name])) as batches:
            rows: int = known + sum(batch.num_rows for batch in batches)
        return rows if self.limit is None else min(rows, self.limit)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches, with bounded memory; deletes are applied.

        Raises:
            NotFoundError: The snapshot has expired, and files of it are gone (on a batch, too).
        """
        if self._result is None:
            return self._read(self.plan, self.columns, self.limit)
        return self._result.finished(self._read(self.plan, self._result.read, self.limit))

    def _read(
        self, plan: ScanPlan, columns: Sequence[str] | None, limit: int | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        rows = read_scan(self.environment, plan, columns=columns, limit=limit)
        return rows_telling_expiry(self.environment, self.state, [self.snapshot], rows)

    def to_arrow(self) -> pa.Table:
        """The rows as one Arrow table."""
        return pa.Table.from_batches(self.to_batches(), schema=self.arrow_schema())

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as an Arrow stream, with bounded memory."""
        return RowStream(self.arrow_schema(), self.to_batches).reader()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's stream interface: DuckDB, polars, pandas and others take a scan as a table."""
        stream = RowStream(self.arrow_schema(), self.to_batches)
        return stream.__arrow_c_stream__(requested_schema)

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None, *, view: str | None = None
    ) -> duckdb.DuckDBPyConnection:
        """The rows as a view in DuckDB; every query of it reads this scan as a stream.

        Args:
            connection: Where to; None: a new database in memory.
            view: The view's name; None: the table's, without its namespace.

        Returns:
            The connection: `scan.to_duckdb(view="orders").sql("SELECT count(*) FROM orders")`.

        Raises:
            UnsupportedError: DuckDB is not installed.
        """
        name = view or self.state.identifier[-1]
        return rows_to_duckdb(self.arrow_schema(), self.to_batches, connection, name)

    @overload
    def to_polars(self, *, lazy: Literal[False] = False) -> pl.DataFrame: ...

    @overload
    def to_polars(self, *, lazy: Literal[True]) -> pl.LazyFrame: ...

    def to_polars(self, *, lazy: bool = False) -> pl.DataFrame | pl.LazyFrame:
        """The rows as a polars frame; `lazy` reads them in batches when it is collected or sunk.

        Raises:
            UnsupportedError: polars is not installed.
        """
        if not lazy:
            return rows_to_polars(self.to_arrow())

        def read(columns: list[str] | None, limit: int | None) -> Iterator[pa.RecordBatch]:
            limits = [each for each in (self.limit, limit) if each is not None]
            narrowed = self if columns is None else replace(self, columns=tuple(columns))
            return replace(narrowed, limit=min(limits, default=None)).to_batches()

        return rows_to_lazy_polars(self.arrow_schema(), read)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas frame of Arrow-backed columns, every type as it is.

        `scan.to_arrow().to_pandas()` gives NumPy's types; integers with NULL become floats there.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        return rows_to_pandas(self.to_arrow())

    def to_spark(self, spark: SparkSession, *, runtime: bool = True) -> DataFrame:
        """The rows as a Spark DataFrame; what a query needs of it is all that is read.

        Args:
            spark: A classic session.
            runtime: Whether Apache Iceberg's Spark runtime reads them, where the session has it and
                it can; False, and everywhere else: icefold's Arrow reader on the workers.

        Raises:
            UnsupportedError: Workers cannot reach the store, because it lives in this process.
        """
        from tableformat.spark.reader import snapshot_to_spark

        frame = snapshot_to_spark(
            self.environment,
            self.state,
            self.selected,
            spark,
            row_filter=self.row_filter,
            columns=self.columns if self._result is None else self._result.read,
            runtime=runtime,
        )
        if self._result is not None:
            frame = self._result.on_spark(frame)
        return frame if self.limit is None else frame.limit(self.limit)


def new_scan(
    environment: Environment,
    state: TableState,
    *,
    row_filter: str | BooleanExpression | None = None,
    columns: Sequence[str] | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: int | None = None,
    as_of_ms: int | None = None,
    limit: int | None = None,
) -> Scan:
    """Check what can be checked without reading a file, and fix the snapshot.

    Raises:
        InvalidInputError: Several of branch, tag and snapshot are given, or the limit is negative.
        NotFoundError: There is no such branch, tag or snapshot.
    """
    if limit is not None and limit < 0:
        raise InvalidInputError("the limit of a scan cannot be negative", limit=limit)
    selected = select_version(
        state, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of_ms=as_of_ms
    )
    return Scan(
        environment=environment,
        state=state,
        selected=selected,
        row_filter=row_filter,
        columns=None if columns is None else tuple(columns),
        limit=limit,
    )
