"""Spark's classes as the JVM lays them out in memory, in `<checkout>/.cache`.

Neither parsed nor verified again: a session with one query takes 5 s of CPU instead of 10.

Made once for each Spark, Java and class path. A JVM that an archive does not fit ignores it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
# What makes long programs fast costs short ones seconds: 16 s of CPU for a session and one query,
# 10 s with these.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_MAKE_MAX_S = 600
# Uses what the tests use; the archive is written when the JVM ends.
_SCRIPT = """
import sys
from pyspark import SparkContext
from tableformat.spark.session import local_session

class_path, folder = sys.argv[1:]
conf = {"spark.driver.extraClassPath": class_path} if class_path else {}
spark = local_session("archive", cores=1, conf=conf)
rows = spark.range(100).selectExpr("id", "id % 7 as k", "cast(id as string) as s")
rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(f"{folder}/rows")
read = spark.read.parquet(f"{folder}/rows")
assert read.join(read.groupBy("k").count(), "k").orderBy("id").toPandas().shape == (100, 4)
stream = spark.readStream.schema(read.schema).parquet(f"{folder}/rows")
writer = stream.writeStream.foreachBatch(lambda batch, number: batch.count())
writer.trigger(availableNow=True).start().awaitTermination()
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def spark_options(class_path: str = "") -> dict[str, str]:
    """Environment variables that let a Spark with this `spark.driver.extraClassPath` start fast."""
    archive = _archive(class_path)
    shared = f" -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else ""
    return {"SPARK_SUBMIT_OPTS": SHORT_LIVED + shared, "SPARK_LAUNCHER_OPTS": SHORT_LIVED}


def make_archive(class_path: str = "") -> None:
    """Write the archive that is not there. Where that fails, Spark starts as slowly as before."""
    archive = _archive(class_path)
    if archive.exists():
        return
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        made = Path(folder, "made.jsa")
        options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
        subprocess.run(
            [sys.executable, "-c", _SCRIPT, class_path, folder],
            env=os.environ | {"SPARK_SUBMIT_OPTS": options, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=_MAKE_MAX_S,
        )
        if made.exists():
            made.replace(archive)


def _archive(class_path: str) -> Path:
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    jars = Path(spark.origin).parent / "jars"
    java = os.path.realpath(shutil.which("java") or "")
    key = f"{jars} {jars.stat().st_mtime_ns} {java} {class_path}"
    return CACHE / f"spark-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"
