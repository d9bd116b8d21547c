"""Spark and Trino as writers: a streaming append, MERGE, and INSERT, UPDATE and DELETE."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tableformat.spark.java import ensure_java
from tests.pipeline.service import Service
from tests.support.java_iceberg import Missing, missing_java_iceberg, runtime_session
from tests.support.trino import CATALOG, JAVA_MIN, java_from, missing_trino
from tests.writers.events import Events
from tests.writers.job import Job

MERGE = (
    "MERGE INTO {table} t USING (VALUES {rows}) s (id, region, v, deletes) ON t.id = s.id "
    "WHEN MATCHED AND s.deletes THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v "
    "WHEN NOT MATCHED AND NOT s.deletes "
    "THEN INSERT (id, region, v) VALUES (s.id, s.region, s.v)"
)
# In the SQL of both. The same rows, however often it is run.
INSERT = (
    "INSERT INTO {table} SELECT CAST(id AS BIGINT), region, v FROM (VALUES {rows}) "
    "AS s(id, region, v) WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE {where})"
)
UPDATE = (
    "UPDATE {table} SET v = concat('v', "
    "CAST({first} + CAST((id - {group}) / {groups} AS BIGINT) AS VARCHAR(20))) WHERE {where}"
)
DELETE = "DELETE FROM {table} WHERE {where}"


def missing_spark() -> str | None:
    """What is missing; fetches the jar and its PySpark."""
    return missing_java_iceberg()


def spark_writer(kind: str, job: Job) -> Service:
    """A query that goes on from its checkpoint when it is started anew; or statements."""
    found = runtime_session()
    assert not isinstance(found, Missing)
    jar, packages = found
    if kind == "spark-statements":
        branch = "" if job.branch == "main" else f".branch_{job.branch}"
        _write(job, _statements(job, f"rest.{job.tables[0]}{branch}"))
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


def trino_writer(kind: str, job: Job) -> Service:
    """A server and its client, killed together."""
    lines = _statements if kind == "trino-statements" else _merges
    at = _write(job, lines(job, f"{CATALOG}.{job.tables[0]}"))
    words = [job.uri, str(at), str(job.checkpoint_s), str(job.folder / "done")]
    program = [sys.executable, "-m", "tests.writers.trino_writer"]
    return Service("writer", words, job.folder, program=program)


def _write(job: Job, lines: Iterator[str]) -> Path:
    at = job.folder / "statements.sql"
    at.write_text("\n".join(lines))
    return at


def _merges(job: Job, table: str) -> Iterator[str]:
    """The newest event of each key, batch by batch."""
    events, size = Events.of(job.events, job.keys), job.batch
    for first in range(0, job.events, size):
        newest = {row[0]: row for row in events.rows(first, min(first + size, job.events))}
        rows = ", ".join(
            f"(BIGINT '{key}', '{region}', '{v}', {gone})"
            for key, region, v, gone in newest.values()
        )
        yield MERGE.format(table=table, rows=rows)


def _statements(job: Job, table: str) -> Iterator[str]:
    """Each group of events is one statement."""
    events, groups = Events.of_groups(job.events, job.keys, job.batch), job.keys // job.batch
    there: set[int] = set()
    for first in range(0, len(events), events.whole):
        rows = events.rows(first, first + events.whole)
        group, _, _, deletes = rows[0]
        text = DELETE if deletes else UPDATE if group in there else INSERT
        (there.discard if deletes else there.add)(group)
        yield text.format(
            table=table,
            rows=", ".join(f"({key}, '{region}', '{v}')" for key, region, v, _ in rows),
            where=f"id % {groups} = {group}",
            first=first,
            group=group,
            groups=groups,
        )
