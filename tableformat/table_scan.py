"""One planned read: its snapshot is fixed when it is made, its files when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.scan.plan import ScanPlan, plan_scan
from tableformat.scan.reader import read_scan, scan_schema
from tableformat.scan.snapshot_selection import SelectedSnapshot, select_snapshot

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import DataFrame, SparkSession


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

    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return scan_schema(self.plan, columns=self.columns)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches, with bounded memory; deletes are applied."""
        return read_scan(self.environment, self.plan, columns=self.columns, limit=self.limit)

    def to_arrow(self) -> pa.Table:
        """The rows as one Arrow table."""
        return pa.Table.from_batches(self.to_batches(), schema=self.arrow_schema())

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """The rows as a Spark DataFrame: Spark's own Parquet scan with the deletes applied."""
        from tableformat.spark.reader import scan_to_spark

        frame = scan_to_spark(self.environment, self.plan, spark, columns=self.columns)
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
    if branch is not None and tag is not None:
        raise InvalidInputError("a scan reads a branch or a tag, not both", table=state.name)
    if limit is not None and limit < 0:
        raise InvalidInputError("the limit of a scan cannot be negative", limit=limit)
    selected = select_snapshot(
        state, snapshot_id=snapshot_id, ref=branch or tag, timestamp_ms=as_of_ms
    )
    return Scan(
        environment=environment,
        state=state,
        selected=selected,
        row_filter=row_filter,
        columns=None if columns is None else tuple(columns),
        limit=limit,
    )
