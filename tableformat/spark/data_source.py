"""`format("icefold")` of `spark.read`, `write`, `readStream` and `writeStream`.

Spark's API for data sources in Python: rows travel as Arrow batches between Python and the JVM. It
tells a source which rows are wanted (from Spark 4.1), but never which columns, so a query of a few
columns of a wide table is faster through `table.scan(...).to_spark(spark)`; or name the columns
with the option `columns`.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from tableformat.errors import InvalidInputError
from tableformat.spark.changelog_frame import changes_schema
from tableformat.spark.source_options import ReadOptions, parse_source_options
from tableformat.spark.source_reader import (
    ChangesReader,
    PinnedScan,
    RowsReader,
    is_changes,
    plan_changes,
)
from tableformat.spark.source_stream import ChangesStream
from tableformat.spark.source_writer import change_writer, rows_writer, stream_writer
from tableformat.spark.types import spark_schema

FORMAT_NAME = "icefold"
PUSH_DOWN_CONF = "spark.sql.python.filterPushdown.enabled"  # from Spark 4.1


class IcefoldSource(DataSource):
    """See the module's text. Options: `source_options`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type, unused-ignore]  # a dict before 4.2
        self._pinned: PinnedScan | None = None

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Columns of a read; fixes the version that is read."""
        options = parse_source_options(self.options, ReadOptions)
        if is_changes(options):
            return changes_schema(plan_changes(options, from_option=False).columns)
        self._pinned = PinnedScan.of(options)
        return spark_schema(self._pinned.result_schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of rows, or of changes."""
        options = parse_source_options(self.options, ReadOptions)
        if is_changes(options):
            return ChangesReader(options)
        pinned = self._pinned or PinnedScan.of(options)
        _check_schema(schema, spark_schema(pinned.result_schema()))
        return RowsReader(pinned)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A changelog that goes on as the branch does."""
        stream = ChangesStream(parse_source_options(self.options, ReadOptions))
        _check_schema(schema, stream.spark_schema())
        return stream

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of rows, or of changes in a format."""
        if "format" in self.options:
            return change_writer(self.options, schema, overwrite=overwrite)
        return rows_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool):  # type: ignore[no-untyped-def]  # noqa: N802
        """A writer of changes, exactly once by query and batch id."""
        return stream_writer(self.options, schema, overwrite=overwrite)


def _check_schema(given: StructType, known: StructType) -> None:
    if given.names != known.names:
        raise InvalidInputError(
            "the schema of a read cannot be given",
            action="leave `.schema(...)` out; choose with the option 'columns'",
            found=", ".join(known.names),
        )
