"""A planned scan as a table that Spark's optimizer asks for columns, filters and a limit.

PySpark's data sources in Python are offered filters (from 4.1), but neither columns nor limits.
Spark's own connector interfaces are: objects of this module implement them on the driver, and Spark
calls them back while it plans a query. What runs on the executors is PySpark's reader of Python
data sources, with the parts of the scan.

```
optimizer ── columns, filters, limit ─> ScanBuilder ─> narrower plan, projection ─> Scan
planner   ── partitions, reader ──────> Scan ─> ScanPart per task ─> workers ─> Arrow batches
```
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression
from pyspark import cloudpickle
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as offered
from pyspark.sql import types as spark_types
from pyspark.sql.udf import _wrap_function

from tableformat.errors import UnsupportedError
from tableformat.scan.plan import ScanPlan, narrow_plan
from tableformat.scan.projection import Projection, project
from tableformat.spark.arrow_scan import ScanPart, scan_parts
from tableformat.spark.source_filters import scan_filter
from tableformat.spark.types import spark_schema
from tableformat.store.base import ObjectStore

_CONNECTOR = "org.apache.spark.sql.connector"
_FILTERS = {
    name: getattr(offered, name)
    for name in (
        "EqualTo",
        "GreaterThan",
        "GreaterThanOrEqual",
        "In",
        "IsNotNull",
        "IsNull",
        "LessThan",
        "LessThanOrEqual",
        "Not",
        "StringStartsWith",
    )
}
# `java.sql` counts days before 1582 by another calendar. As text, so that years have four digits.
_CALENDAR_IS_ONE = "1900"

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowScan:
    """A scan as it stands after what Spark pushed down so far."""

    spark: SparkSession
    store: ObjectStore
    plan: ScanPlan
    projection: Projection
    label: str
    limit: int | None = None


def arrow_frame(scan: ArrowScan) -> DataFrame:
    """The scan's live rows that pass its filter, as a lazy frame.

    Effects: starts PySpark's callback server in this process, as `foreachBatch` does.

    Raises:
        UnsupportedError: The session is not in this process (Spark Connect).
    """
    jvm = getattr(scan.spark, "_jvm", None)
    if jvm is None:
        raise UnsupportedError(
            "Spark Connect cannot read this scan", action="use a classic session, or to_arrow()"
        )
    ensure_callback_server_started(_gateway(scan.spark))  # type: ignore[no-untyped-call]
    nothing = jvm.scala.Option.empty()
    relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation.create(
        _Table(scan), nothing, nothing
    )
    frame = jvm.org.apache.spark.sql.classic.Dataset.ofRows(scan.spark._jsparkSession, relation)
    return DataFrame(frame, scan.spark)


def read_parts(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs on a worker: Spark hands over one partition, as bytes in a row."""
    for batch in batches:
        for pickled in batch.column(0).to_pylist():
            part: ScanPart = pickle.loads(pickled)  # noqa: S301 - what `_Scan` pickled
            yield from part.rows()


class _Callback:
    """What Java asks of every object. Spark compares plans, and so the objects in them."""

    def __init__(self, scan: ArrowScan) -> None:
        self._scan = scan
        self._jvm: Any = scan.spark._jvm
        self._number = next(_numbers)

    def hashCode(self) -> int:
        return self._number & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        return hasattr(other, "toString") and str(other.toString()) == self.toString()

    def toString(self) -> str:
        return f"{self._scan.label} #{self._number}"

    def _array(self, name: str, items: Sequence[Any] = ()) -> Any:
        kind = reduce(getattr, name.split("."), self._jvm)
        made = _gateway(self._scan.spark).new_array(kind, len(items))
        for index, item in enumerate(items):
            made[index] = item
        return made

    def _schema(self) -> Any:
        schema = spark_schema(self._scan.projection.schema)
        return self._scan.spark._jsparkSession.parseDataType(schema.json())


class _Table(_Callback):
    """The relation in a query's plan."""

    class Java:
        implements = (f"{_CONNECTOR}.catalog.SupportsRead",)

    def name(self) -> str:
        return self._scan.label

    def schema(self) -> Any:
        return self._schema()

    def columns(self) -> Any:
        create = self._jvm.org.apache.spark.sql.connector.catalog.Column.create
        fields = self._schema().fields()
        made = [create(each.name(), each.dataType(), each.nullable()) for each in fields]
        return self._array(f"{_CONNECTOR}.catalog.Column", made)

    def partitioning(self) -> Any:
        return self._array(f"{_CONNECTOR}.expressions.Transform")

    def properties(self) -> Any:
        return self._jvm.java.util.HashMap()

    def capabilities(self) -> Any:
        catalog = self._jvm.org.apache.spark.sql.connector.catalog
        return self._jvm.java.util.Collections.singleton(catalog.TableCapability.BATCH_READ)

    def constraints(self) -> Any:
        return self._array(f"{_CONNECTOR}.catalog.constraints.Constraint")

    def id(self) -> None:
        return None

    def version(self) -> None:
        return None

    def newScanBuilder(self, options: Any) -> _ScanBuilder:  # noqa: ARG002
        return _ScanBuilder(self._scan)


class _ScanBuilder(_Callback):
    """Hears what a query needs."""

    class Java:
        implements = tuple(
            f"{_CONNECTOR}.read.SupportsPushDown{what}"
            for what in ("RequiredColumns", "Filters", "Limit")
        )

    def __init__(self, scan: ArrowScan) -> None:
        super().__init__(scan)
        self._pushed: list[Any] = []

    def pushFilters(self, filters: Sequence[Any]) -> Any:
        """Takes what the reader evaluates exactly as Spark would; gives back the rest."""
        taken: list[BooleanExpression] = []
        rest = []
        for each in filters:
            found = _convert(each)
            expression = None if found is None else scan_filter(found, self._scan.plan.schema)
            if expression is None:
                rest.append(each)
            else:
                taken.append(expression)
                self._pushed.append(each)
        if taken:
            plan = narrow_plan(self._scan.plan, reduce(And, taken))
            self._scan = replace(self._scan, plan=plan)
        return self._array("org.apache.spark.sql.sources.Filter", rest)

    def pushedFilters(self) -> Any:
        return self._array("org.apache.spark.sql.sources.Filter", self._pushed)

    def pruneColumns(self, required: Any) -> None:
        """Whole columns: of a struct, Spark takes the fields it needs."""
        schema = self._scan.projection.schema
        names = list(required.fieldNames()) or [_cheapest(spark_schema(schema))]
        self._scan = replace(self._scan, projection=project(self._scan.plan, names))

    def pushLimit(self, limit: int) -> bool:
        self._scan = replace(self._scan, limit=limit)
        return True

    def isPartiallyPushed(self) -> bool:
        return True  # every task stops there; Spark counts over all of them

    def build(self) -> _Scan:
        return _Scan(self._scan)


class _Scan(_Callback):
    """What a query reads."""

    class Java:
        implements = tuple(
            f"{_CONNECTOR}.read.{name}"
            for name in ("SupportsReportStatistics", "Statistics", "Batch")
        )

    def readSchema(self) -> Any:
        return self._schema()

    def description(self) -> str:
        plan, limit = self._scan.plan, self._scan.limit
        text = f"[filter {plan.row_filter}, files {len(plan.tasks)}"
        return f"{text}]" if limit is None else f"{text}, limit {limit}]"

    def columnarSupportMode(self) -> Any:
        return self._jvm.org.apache.spark.sql.connector.read.Scan.ColumnarSupportMode.UNSUPPORTED

    def supportedCustomMetrics(self) -> Any:
        return self._array(f"{_CONNECTOR}.metric.CustomMetric")

    def reportDriverMetrics(self) -> Any:
        return self._array(f"{_CONNECTOR}.metric.CustomTaskMetric")

    def estimateStatistics(self) -> _Scan:
        return self

    def sizeInBytes(self) -> Any:
        """Tells Spark whether a join should broadcast the rows."""
        sizes = [task.entry.data_file.file_size_in_bytes for task in self._scan.plan.tasks]
        return self._jvm.java.util.OptionalLong.of(sum(sizes))

    def estimateSizeInBytes(self) -> Any:
        return self.sizeInBytes()

    def reflectsFullyPushedDownFilters(self) -> bool:
        return False  # files are counted whole

    def numRows(self) -> Any:
        return self._jvm.java.util.OptionalLong.empty()

    def columnStats(self) -> Any:
        return self._jvm.java.util.HashMap()

    def toBatch(self) -> _Scan:
        return self

    def planInputPartitions(self) -> Any:
        scan = self._scan
        parts = scan_parts(scan.store, scan.plan, scan.projection, limit=scan.limit)
        made = [
            _python(self._jvm).PythonInputPartition(index, pickle.dumps(part))
            for index, part in enumerate(parts)
        ]
        return self._array(f"{_CONNECTOR}.read.InputPartition", made)

    def createReaderFactory(self) -> Any:
        schema = spark_schema(self._scan.projection.schema)
        python = _python(self._jvm)
        source = python.UserDefinedPythonDataSource(
            _wrap_function(self._scan.spark.sparkContext, read_parts)
        )
        command = cloudpickle.dumps((read_parts, schema))  # type: ignore[no-untyped-call]
        # Sessions of Spark Connect and their artifacts: how many there are is the version's.
        factory = python.PythonPartitionReaderFactory
        count = factory._java_lang_class.getConstructors()[0].getParameterCount()
        none = [self._jvm.scala.Option.empty()] * (count - 3)
        return factory(source, command, self._schema(), *none)


def _gateway(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway


def _python(jvm: Any) -> Any:
    return jvm.org.apache.spark.sql.execution.datasources.v2.python


def _cheapest(schema: spark_types.StructType) -> str:
    """The column to read when a query needs no column, only rows."""
    fields = schema.fields
    numbers = (each.name for each in fields if isinstance(each.dataType, spark_types.NumericType))
    return next(numbers, fields[0].name)


def _convert(given: Any) -> offered.Filter | None:
    """A filter of Spark's as PySpark offers it to data sources in Python; None for others."""
    name = given.getClass().getSimpleName()
    make: Any = _FILTERS.get(name)
    if make is None:
        return None
    if name == "Not":
        inner = _convert(given.child())
        return None if inner is None else make(inner)
    made: offered.Filter
    attribute = (given.attribute(),)
    try:
        if name in ("IsNull", "IsNotNull"):
            made = make(attribute)
        elif name == "In":
            made = make(attribute, tuple(_value(each) for each in given.values()))
        else:
            made = make(attribute, _value(given.value()))
    except ValueError:  # a moment that Python has no value for
        return None
    return made


def _value(given: Any) -> Any:
    """A literal of Spark's in Python; what is none of ours stays as it is, and fits no column."""
    if not hasattr(given, "getClass"):
        return given
    name, text = str(given.getClass().getName()), str(given.toString())
    if name == "java.sql.Timestamp":
        text = str(given.toInstant().toString())
    if name.startswith("java.sql.") and not text > _CALENDAR_IS_ONE:
        raise ValueError(text)
    match name:
        case "java.sql.Date" | "java.time.LocalDate":
            return date.fromisoformat(text)
        case "java.sql.Timestamp" | "java.time.Instant" | "java.time.LocalDateTime":
            return datetime.fromisoformat(text)
    return given
