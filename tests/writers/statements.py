"""Spark and Trino as writers: a streaming append, and MERGE."""

from __future__ import annotations

import sys
from pathlib import Path

from tableformat.spark.java import ensure_java
from tests.pipeline.service import Service
from tests.support.java_iceberg import Missing, missing_java_iceberg, runtime_session
from tests.support.trino import JAVA_MIN, java_from, missing_trino
from tests.writers.job import Job


def missing_spark() -> str | None:
    """What is missing; fetches the jar and its PySpark."""
    return missing_java_iceberg()


def spark_writer(kind: str, job: Job) -> Service:
    """A query that goes on from its checkpoint when it is started anew."""
    found = runtime_session()
    assert not isinstance(found, Missing)
    jar, packages = found
    words = [
        *(kind, jar, job.uri, job.tables[0], job.branch, str(job.events), str(job.keys)),
        *(str(job.per_second), str(job.checkpoint_s), str(job.folder)),
    ]
    program = [sys.executable, str(Path(__file__).with_name("spark_writer.py"))]
    environment = {
        "PYTHONPATH": str(packages),
        "JAVA_HOME": str(ensure_java()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return Service("writer", words, job.folder, program=program, environment=environment)


def missing_trino_server() -> str | None:
    """What is missing; fetches the jars."""
    if java_from(JAVA_MIN) is None:
        return f"Trino needs Java {JAVA_MIN}"
    return missing_trino()


def trino_writer(job: Job) -> Service:
    """A server and its client, killed together."""
    batch = max(1, int(job.per_second * job.checkpoint_s))
    words = [
        *(job.uri, job.tables[0], str(job.events), str(job.keys), str(batch)),
        *(str(job.checkpoint_s), str(job.folder / "done")),
    ]
    program = [sys.executable, "-m", "tests.writers.trino_writer"]
    return Service("writer", words, job.folder, program=program)
