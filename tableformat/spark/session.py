"""Starts a local Spark that works without any setting: Java, Python workers, addresses, logs."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tableformat.spark.interrupts import interrupts_deferred
from tableformat.spark.java import ensure_java
from tableformat.temporary_disk import temporary_path

LOOPBACK = "127.0.0.1"
# Of each thread, taken as it is needed. Spark matches the error of a batch, also of one that is
# stopped, with a pattern that recurses for each character: a thousand lines of StackOverflowError.
_STACK = "-Xss32m"
# By itself a JVM begins with a 64th of the machine's memory and gives back little: of 200 quiet
# tables it held 370 MB of heap where 200 do. What large steps need it takes, up to `memory`.
_HEAP = "-Xms64m -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"
# They repeat, in JSON, what the exception says.
_REPEATING_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
LOG_SETTINGS = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Without its own level, PySpark's gateway lowers the root's to WARN, and says so.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# Spark's Python workers close their sockets late on a normal stop; that is no error.
logger.shutdown.name = org.apache.spark.util.ShutdownHookManager
logger.shutdown.level = off
"""


def local_session(
    app_name: str,
    *,
    cores: int | None = None,
    memory: str = "2g",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The process's Spark session; a local one is started if there is none.

    Args:
        app_name: The name Spark shows.
        cores: Task threads; None: every core of the machine.
        memory: Heap of the one JVM, as Spark writes it (`2g`).
        conf: Further Spark settings; they win over the ones made here.

    Effects:
        Sets `JAVA_HOME`, `PYSPARK_PYTHON`, `PYSPARK_DRIVER_PYTHON` and `SPARK_LOCAL_IP` of this
        process, which is how the JVM and the Python workers are told. Temporary files are removed
        when the process ends. A session that runs already is returned, with `conf` applied as far
        as a running session can take it. Ctrl-C is heard once the JVM has started.

    Raises:
        UnsupportedError: There is no Java.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        for key, value in (conf or {}).items():
            if running.conf.isModifiable(key):
                running.conf.set(key, value)
        return running
    os.environ["JAVA_HOME"] = str(ensure_java())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    folder = temporary_path("icefold-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    threads = "*" if cores is None else str(cores)
    settings = _settings(folder, cores or os.cpu_count() or 1, memory) | dict(conf or {})
    builder = SparkSession.builder.appName(app_name).master(f"local[{threads}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    for name in _REPEATING_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    with interrupts_deferred():
        return builder.getOrCreate()


def checkout_path() -> Path | None:
    """The folder to add to the workers' PYTHONPATH; None when the packages are pip-installed."""
    root = Path(__file__).resolve().parents[2]
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return None if root in installed else root


def _settings(folder: Path, cores: int, memory: str) -> dict[str, str]:
    logs = folder / "log4j2.properties"
    logs.write_text(LOG_SETTINGS, encoding="utf-8")
    settings = {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(
            (_STACK, _HEAP, f"-Dlog4j2.configurationFile={logs.as_uri()}")
        ),
        "spark.python.daemon.module": "tableformat.spark.daemon",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.local.dir": str(folder),
        # A job of ours is many small steps of one process: these waits would only add up.
        "spark.locality.wait": "0s",
    }
    root = checkout_path()
    if root is not None:
        inherited = os.environ.get("PYTHONPATH")
        paths = [str(root), *([inherited] if inherited else [])]
        settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(paths)
    return settings
