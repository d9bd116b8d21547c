"""Spark: session set-up, distributed readers and writers, `format("icefold")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # optional; modules here that do without are used without
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("icefold")` known to a session.

    Effects: switches filter push-down into Python data sources on; Spark refuses a source that can
    do it while it is off.
    """
    from tableformat.spark.data_source import PUSH_DOWN_CONF, IcefoldSource

    spark.conf.set(PUSH_DOWN_CONF, "true")
    spark.dataSource.register(IcefoldSource)
