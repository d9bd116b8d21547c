"""The reference implementation, Apache Iceberg's Spark runtime, beside our own Spark.

It supports an older Spark than the tests run on, so it lives in an environment and a process of
its own: `<checkout>/.cache/java-iceberg` holds a venv with that PySpark and the jars, which Maven
fetches (Spark's own downloader knows no mirrors). Both are made once. Where Java or Maven is
missing, the tests say so and are skipped. One process serves all tests of a run.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tableformat.errors import UnsupportedError
from tableformat.spark.java import ensure_java
from tests.support import maven

ICEBERG = "1.12.0"  # the newest release
SPARK = "4.1.4"  # the newest Spark that release supports
JARS = (
    f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
_JAR_NAMES = tuple(f"{name}-{version}.jar" for _, name, version in (j.split(":") for j in JARS))
CACHE = maven.CACHE / "java-iceberg"
_JAR_FOLDER, _ENVIRONMENT = CACHE / f"jars-{ICEBERG}", CACHE / f"pyspark-{SPARK}"
WORKER = Path(__file__).with_name("interop_spark_worker.py")
LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
_OURS = ("SPARK_", "PYSPARK_", "PYTHONPATH", "PYTHONHOME", "JAVA_HOME")


class JavaIcebergError(Exception):
    """Spark refused; the text is its own."""


@dataclass
class JavaIceberg:
    """Spark with the runtime, in a child process."""

    process: subprocess.Popen[str]
    folder: Path
    _numbers: Iterable[int] = field(default_factory=itertools.count)

    def sql(self, text: str) -> None:
        """Run a statement."""
        self.request("sql", text=text)

    def query(self, text: str) -> pa.Table:
        """Rows of a query."""
        return self._rows("query", text=text)

    def read(
        self,
        metadata_location: str,
        columns: Sequence[str] = ("*",),
        where: str = "true",
        **options: str,
    ) -> pa.Table:
        """Rows of the table that a metadata file describes.

        Args:
            metadata_location: The file.
            columns: SQL expressions.
            where: A condition.
            **options: Iceberg's read options; `snapshot_id` stands for `snapshot-id`.
        """
        named = {name.replace("_", "-"): text for name, text in options.items()}
        return self._rows(
            "load",
            location=metadata_location,
            options=named,
            columns=[*columns],
            where=where,
        )

    def add_catalog(self, name: str, properties: Mapping[str, str]) -> None:
        """Make `<name>.<namespace>.<table>` resolvable."""
        prefix = f"spark.sql.catalog.{name}"
        conf = {prefix: "org.apache.iceberg.spark.SparkCatalog", f"{prefix}.cache-enabled": "false"}
        self.configure(conf | {f"{prefix}.{key}": text for key, text in properties.items()})

    def configure(self, conf: Mapping[str, str | None]) -> None:
        """Change settings of the session; None unsets one."""
        self.request("configure", conf=dict(conf))

    def row_delta(
        self,
        table: str,
        *,
        rows: Sequence[Mapping[int, Any]] = (),
        deleted: Sequence[Mapping[int, Any]] = (),
        equality_ids: Sequence[int],
        branch: str | None = None,
    ) -> None:
        """Commit rows and equality deletes as a streaming writer does.

        Args:
            table: With its catalog.
            rows: Whole rows, by field id.
            deleted: Keys, by field id, with the columns of the partition spec.
            equality_ids: The key.
            branch: Where to; None: main.
        """
        calls: list[list[Any]] = [["newRowDelta"]]
        if rows:
            calls.append(["addRows", {"data": {"rows": [*rows], "format": "parquet"}}])
        if deleted:
            keys = {"rows": [*deleted], "format": "parquet", "ids": [*equality_ids]}
            calls.append(["addDeletes", {"equality": keys}])
        if branch:
            calls.append(["toBranch", branch])
        self.request("core", table=table, commits=[[*calls, ["commit"]]], in_transaction=False)

    def stream(self, table: str, *, branch: str, source: Path, checkpoint: Path) -> None:
        """Append the JSON files of `source` that the query of `checkpoint` has not seen.

        Each file is a batch of rows `(id, region, v)`.
        """
        folders = {"source": str(source), "checkpoint": str(checkpoint)}
        self.request("stream", table=table, branch=branch, **folders)

    def request(self, operation: str, **fields: Any) -> Any:
        """Ask the worker; `JavaIcebergError` when Spark refuses."""
        return self._exchange({"do": operation, **fields})

    def close(self) -> None:
        """End the process, politely first."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rows(self, operation: str, **fields: Any) -> pa.Table:
        into = self.folder / f"rows-{next(iter(self._numbers))}"
        self.request(operation, into=str(into), **fields)
        table = pq.read_table(into)
        shutil.rmtree(into)
        return table

    def _exchange(self, message: Mapping[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            log = (self.folder / "log").read_text(errors="replace")
            raise RuntimeError(f"the Spark process ended: {log[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise JavaIcebergError(answer["error"])
        return answer["value"]


def java_iceberg() -> JavaIceberg:
    """The process of this test run; skips the test where it cannot be had."""
    started = _started()
    if isinstance(started, Missing):
        pytest.skip(started.reason)
    if isinstance(started, Exception):
        raise started
    return started


@dataclass(frozen=True)
class Missing:
    """Why there is no process."""

    reason: str


@functools.cache
def _started() -> JavaIceberg | Missing | Exception:
    """Tried once: a start that fails would fail, slowly, for every test."""
    try:
        return start_java_iceberg()
    except (RuntimeError, JavaIcebergError) as error:
        return error


def start_java_iceberg(conf: Mapping[str, str] | None = None) -> JavaIceberg | Missing:
    """Another process, closed at exit at the latest.

    Args:
        conf: Spark settings over those for tests, whose queries are tiny.
    """
    try:
        java_home = ensure_java()
    except UnsupportedError as error:
        return Missing(f"Apache Iceberg's Spark runtime cannot run: {error}")
    installed = _installed()
    if isinstance(installed, Missing):
        return installed
    python, jars = installed
    folder = Path(tempfile.mkdtemp(prefix="icefold-java-iceberg-"))
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING)
    kept = {key: text for key, text in os.environ.items() if not key.startswith(_OURS)}
    environment = {
        **kept,
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            cwd=folder,
        )
    java = JavaIceberg(process, folder)
    atexit.register(java.close)
    java._exchange({"conf": {**_settings(folder, logging, jars), **(conf or {})}})
    return java


def _settings(folder: Path, logging: Path, jars: Sequence[Path]) -> dict[str, str]:
    # Queries are tiny and many: what makes long ones fast is left out.
    options = f"-Dlog4j2.configurationFile={logging.as_uri()} -XX:+UseSerialGC -Xss4m"
    return {
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars),
        "spark.driver.extraJavaOptions": f"{options} -XX:TieredStopAtLevel=1",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": (folder / "spark-warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
    }


def missing_java_iceberg() -> str | None:
    """What is missing of its jars and its PySpark; fetches both."""
    missing = maven.fetch_jars(_JAR_FOLDER, JARS, transitive=False)
    if missing is not None:
        return missing
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _install_spark(_ENVIRONMENT)


def _installed() -> tuple[Path, list[Path]] | Missing:
    """The environment's interpreter, and the jars."""
    missing = missing_java_iceberg()
    if missing is not None:
        return Missing(missing)
    return _ENVIRONMENT / "bin" / "python", [_JAR_FOLDER / name for name in _JAR_NAMES]


def runtime_session() -> tuple[str, Path] | Missing:
    """Where the runtime's jar is, and the PySpark that it is made for, for `PYTHONPATH`."""
    found = _installed()
    if isinstance(found, Missing):
        return found
    python, [jar, *_] = found
    [packages] = python.parents[1].glob("lib/python*/site-packages")
    return str(jar), packages


def _install_spark(folder: Path) -> str | None:
    done = folder / ".complete"
    if done.exists():
        return None
    shutil.rmtree(folder, ignore_errors=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "-q"]
    for command in (
        [sys.executable, "-m", "venv", folder],
        [*install, "--disable-pip-version-check", f"pyspark=={SPARK}"],
    ):
        complaint = _run(command, str(CACHE))
        if complaint:
            return f"Spark {SPARK} could not be installed: {complaint}"
    done.touch()
    return None


def _run(command: Sequence[str | Path], folder: str) -> str:
    """The end of what a failing command said; empty when it succeeded."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr)[-500:] or "no output" if done.returncode else ""
