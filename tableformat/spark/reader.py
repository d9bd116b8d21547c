"""A snapshot as a Spark DataFrame.

```
Apache Iceberg's runtime in the session, and it reads the columns as we do ─> its scan
otherwise ─> our Arrow reader on the workers (arrow_relation)
```

Either way the frame keeps reading the same snapshot as long as its files exist, deletes are
applied, and what a query needs is pushed down. `explain` shows which way was taken, and why not the
first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyiceberg.expressions import BooleanExpression
from pyspark.sql import DataFrame, SparkSession

from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.scan.plan import ScanPlan, plan_scan, plan_without_files
from tableformat.scan.projection import project
from tableformat.scan.row_filter import normalize_filter, parse_filter
from tableformat.scan.snapshot_selection import SelectedSnapshot
from tableformat.spark.arrow_relation import ArrowScan, arrow_frame
from tableformat.spark.arrow_scan import check_reachable
from tableformat.spark.iceberg_runtime import NotReadableError, runtime_frame

logger = logging.getLogger("icefold.spark")


def snapshot_to_spark(
    environment: Environment,
    state: TableState,
    selected: SelectedSnapshot,
    spark: SparkSession,
    *,
    row_filter: str | BooleanExpression | None = None,
    columns: Sequence[str] | None = None,
    runtime: bool = True,
) -> DataFrame:
    """The rows of a snapshot: deletes applied, the filter exact.

    Args:
        environment: Where manifests are read.
        state: The loaded table.
        selected: The snapshot, and the schema to read it with.
        spark: A session; `tableformat.spark.session.local_session` makes one.
        row_filter: Rows wanted.
        columns: Result columns in order, metadata columns included; None: every table column.
        runtime: Whether Apache Iceberg's runtime may read it, where the session has it.

    Returns:
        A lazy DataFrame. Types are those of `spark.types.spark_schema`. What is done to it later is
        pushed into the read: columns, filters, limits.

    Raises:
        InvalidInputError: A wrong filter, an unknown or repeated column.
        CorruptDataError: The snapshot's metadata break the format.
        UnsupportedError: Workers cannot reach the store, because it lives in this process.
    """
    schema = selected.schema
    unbound = normalize_filter(parse_filter(row_filter), schema)
    projection = project(plan_without_files(state.metadata, schema), columns)
    reason = "it was not wanted"
    if runtime:
        try:
            return runtime_frame(spark, state, selected, row_filter=unbound, projection=projection)
        except NotReadableError as error:
            reason = str(error)
    logger.info("%s: read without Apache Iceberg's Spark runtime: %s", state.name, reason)
    snapshot_id = None if selected.snapshot is None else selected.snapshot.snapshot_id
    plan = plan_scan(environment, state, snapshot_id=snapshot_id, row_filter=unbound, schema=schema)
    label = f"icefold {state.name} (without Iceberg's runtime: {reason})"
    return plan_to_spark(environment, plan, spark, columns=columns, label=label)


def plan_to_spark(
    environment: Environment,
    plan: ScanPlan,
    spark: SparkSession,
    *,
    columns: Sequence[str] | None = None,
    label: str = "icefold",
) -> DataFrame:
    """The rows of a planned scan, read by our Arrow reader on the workers.

    Args:
        environment: Where the workers read.
        plan: From `plan_scan`.
        spark: A session.
        columns: As for `snapshot_to_spark`.
        label: What `explain` calls the scan.

    Raises:
        InvalidInputError: An unknown or repeated column.
        UnsupportedError: Workers cannot reach the store, because it lives in this process.
    """
    check_reachable(environment.store, instead="to_arrow()")
    projection = project(plan, columns)
    return arrow_frame(
        ArrowScan(
            spark=spark, store=environment.store, plan=plan, projection=projection, label=label
        )
    )
