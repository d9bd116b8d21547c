"""One table. A facade: every method hands an immutable table version to a function that does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import CommitResult, commit
from tableformat.environment import Environment
from tableformat.paths import data_file_locations
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH
from tableformat.table_scan import Scan, new_scan
from tableformat.write.data_files import write_data_files
from tableformat.write.stage import stage_rows

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class Table:
    """A primary-keyed Iceberg v3 table at one version; `refresh` and every write move it on."""

    def __init__(self, environment: Environment, state: TableState) -> None:
        self.environment = environment
        self.state = state

    def __repr__(self) -> str:
        return f"Table({self.name!r}, primary_key={list(self.primary_key)})"

    @property
    def identifier(self) -> Identifier:
        """Namespace and name."""
        return self.state.identifier

    @property
    def name(self) -> str:
        """`namespace.table`."""
        return self.state.name

    @property
    def schema(self) -> Schema:
        """The current schema."""
        return self.state.metadata.schema()

    @property
    def partition_spec(self) -> PartitionSpec:
        """The current partition spec."""
        return self.state.metadata.spec()

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Key columns in field-id order; nested ones with dots."""
        ids = sorted(self.schema.identifier_field_ids)
        return tuple(self.schema.find_column_name(field_id) or str(field_id) for field_id in ids)

    @property
    def metadata_location(self) -> str:
        """The metadata file of this version: what other engines open."""
        return self.state.metadata_location

    def refresh(self) -> Table:
        """Move to the table's current version."""
        self.state = self.environment.catalog.load_table(self.identifier)
        return self

    def append(
        self, rows: pa.Table | pa.RecordBatchReader | pa.RecordBatch, *, branch: str = MAIN_BRANCH
    ) -> CommitResult:
        """Add rows without looking for older rows of the same keys.

        Args:
            rows: Columns by name; a missing optional column gets its default or null.
            branch: Where to.

        Raises:
            InvalidInputError: Unknown or missing columns, wrong types, nulls where none may be.

        Effects: data files are written first, then one commit makes them visible. A crash before
            the commit leaves unreferenced files for orphan removal.
        """
        metadata = self.refresh().state.metadata
        files = write_data_files(
            self.environment.store,
            pa.table(rows) if isinstance(rows, pa.RecordBatch) else rows,
            schema=self.schema,
            spec=self.partition_spec,
            properties=metadata.properties,
            location_for=data_file_locations(metadata, self.environment.runtime.ids),
        )
        changeset = Changeset(kind=CommitKind.APPEND, branch=branch, added_data_files=tuple(files))
        return self._moved_on(commit(self.environment, self.identifier, changeset))

    def stage(
        self,
        upserts: pa.Table | None = None,
        deletes: pa.Table | None = None,
        *,
        branch: str = STAGING_BRANCH,
    ) -> CommitResult:
        """Commit changed rows and deleted keys to a staging branch, for `resolver.resolve`.

        Args:
            upserts: Whole rows; each replaces every older row of its key. One row per key.
            deletes: Keys of rows to delete: the key columns by name; others are ignored.
            branch: The staging branch; created from `main` when it does not exist.

        Raises:
            InvalidInputError: Unknown or missing columns, wrong types, a key twice in `upserts`,
                or `branch="main"` (readers there never see equality deletes).
        """
        result = stage_rows(
            self.environment, self.identifier, upserts=upserts, deletes=deletes, branch=branch
        )
        return self._moved_on(result)

    def write_stream(
        self,
        events: DataFrame,
        *,
        checkpoint: str,
        format_name: str = "debezium-json",
        options: Mapping[str, str] | None = None,
        branch: str = STAGING_BRANCH,
        query_id: str | None = None,
        trigger: Mapping[str, object] | None = None,
    ) -> StreamingQuery:
        """Stage a stream of change events on Spark, exactly once; see `spark.stream_writer`."""
        from tableformat.spark.stream_writer import write_stream

        return write_stream(
            self.environment,
            self.identifier,
            events,
            checkpoint=checkpoint,
            format_name=format_name,
            options=options,
            branch=branch,
            query_id=query_id,
            trigger=trigger,
        )

    def scan(
        self,
        filter: str | BooleanExpression | None = None,
        columns: Sequence[str] | None = None,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: int | None = None,
        as_of_ms: int | None = None,
        limit: int | None = None,
    ) -> Scan:
        """Plan a read of the newest version of a branch (default `main`) or of an older one.

        Args:
            filter: Rows wanted: SQL-like text (`amount > 10 and region = 'EU'`) or an expression.
            columns: Columns wanted; None: all.
            branch: A branch; `staging` is read merged-on-read, unresolved deletes applied.
            tag: A tag.
            snapshot_id: A snapshot.
            as_of_ms: The snapshot `main` (or `branch`) pointed at then, wall-clock milliseconds.
            limit: At most so many rows.

        Raises:
            InvalidInputError: The filter cannot be parsed, a column is unknown, or several of
                branch, tag and snapshot are given.
            NotFoundError: There is no such branch, tag or snapshot.
        """
        self.refresh()
        return new_scan(
            self.environment,
            self.state,
            row_filter=filter,
            columns=columns,
            branch=branch,
            tag=tag,
            snapshot_id=snapshot_id,
            as_of_ms=as_of_ms,
            limit=limit,
        )

    def _moved_on(self, result: CommitResult) -> CommitResult:
        self.state = result.state
        return result
