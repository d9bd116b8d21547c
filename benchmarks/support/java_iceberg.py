"""Apache Iceberg's Spark runtime as a peer, set for large queries."""

from __future__ import annotations

from pathlib import Path

from tests.support.java_iceberg import JavaIceberg, Missing, start_java_iceberg

_FAST = {
    "spark.driver.extraJavaOptions": "-Xss4m -XX:+UseParallelGC",
    "spark.driver.memory": "6g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
}


class NoPeerError(Exception):
    """The peer cannot run here; the text says why."""


def fast_java_iceberg(warehouse: Path, *, catalog: str = "peer") -> JavaIceberg:
    """A process with a Hadoop catalog in `warehouse`.

    Raises:
        NoPeerError: No Java, or Maven is not there or not reachable.
    """
    started = start_java_iceberg(_FAST)
    if isinstance(started, Missing):
        raise NoPeerError(started.reason)
    started.add_catalog(catalog, {"type": "hadoop", "warehouse": warehouse.as_uri()})
    return started
