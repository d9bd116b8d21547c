"""Flink's mini cluster with Iceberg's sinks, from Maven.

Eclipse's compiler compiles the job: a JRE has none.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tableformat.spark.java import find_java
from tests.pipeline.service import Service
from tests.support.maven import CACHE, fetch_jars, one_at_a_time
from tests.writers.job import Job

FLINK = "2.1.0"
ICEBERG = "1.11.0"  # the newest runtime for Flink 2.1 that is published
HADOOP = "3.4.1"
_FLINK_PARTS = (
    *("clients", "connector-base", "connector-datagen", "metrics-dropwizard"),
    *("table-api-java-bridge", "table-planner-loader", "table-runtime"),
)
JARS = (
    *(f"org.apache.flink:flink-{part}:{FLINK}" for part in _FLINK_PARTS),
    f"org.apache.iceberg:iceberg-flink-runtime-2.1:{ICEBERG}",
    f"org.apache.hadoop:hadoop-client-api:{HADOOP}",
    f"org.apache.hadoop:hadoop-client-runtime:{HADOOP}",
    "org.slf4j:slf4j-simple:1.7.36",
)
COMPILER = ("org.eclipse.jdt:ecj:3.38.0",)
SOURCE = Path(__file__).with_name("FlinkWriter.java")
_JARS, _COMPILER = CACHE / f"flink-sql-{FLINK}-{ICEBERG}", CACHE / "ecj-3.38.0"


def missing_flink() -> str | None:
    """What is missing; fetches the jars."""
    if find_java() is None:
        return "there is no Java: Flink cannot run"
    missing = fetch_jars(_JARS, JARS, transitive=True)
    return missing or fetch_jars(_COMPILER, COMPILER, transitive=True)


def flink_writer(sink: str, job: Job) -> Service:
    """A job with one of the sinks, or SQL; started anew it goes on from its newest checkpoint."""
    java = find_java()
    assert java is not None
    classes = job.folder / "classes"
    classes.mkdir()
    class_path = os.pathsep.join(map(str, [classes, *sorted(_JARS.glob("*.jar"))]))
    with one_at_a_time():
        compiler = [java, "-jar", *_COMPILER.glob("ecj-*.jar"), "-17", "-nowarn"]
        subprocess.run([*compiler, "-cp", class_path, "-d", classes, SOURCE], check=True)
    options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options += [
        f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in ("lang", "nio", "util")
    ]
    options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    options += ["-Dorg.slf4j.simpleLogger.log.org.apache.iceberg.flink.sink=info"]
    options += ["-Dorg.slf4j.simpleLogger.showDateTime=true"]
    namespace = job.tables[0].partition(".")[0]
    words = [
        *(sink, job.uri, namespace, ",".join(name.partition(".")[2] for name in job.tables)),
        *(job.branch, str(job.events), str(job.keys), str(job.per_second)),
        *(str(job.folder / "checkpoints"), str(int(job.checkpoint_s * 1000))),
    ]
    program = [str(java), *options, "-cp", class_path, "FlinkWriter"]
    return Service("writer", words, job.folder, program=program)
