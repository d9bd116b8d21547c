"""A real Spark cluster on this machine: a master, workers and executors, each its own process.

Executors have a working folder each and share nothing but the warehouse. The driver is the process
that calls `cluster_session`; use a child process, since a process can have one Spark only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tableformat.spark.java import ensure_java
from tableformat.spark.session import LOG_SETTINGS, LOOPBACK

ROOT = Path(__file__).resolve().parents[2]
EXECUTORS = 2


def cluster_session(folder: Path, **conf: str) -> SparkSession:
    """Start the cluster in `folder`; executors work in `folder/spark/work/app-*/0` and `/1`."""
    home = folder / "spark"
    home.mkdir(parents=True)
    for entry in Path(pyspark.__file__).parent.iterdir():  # Spark keeps its work below its home
        (home / entry.name).symlink_to(entry)
    logs = folder / "log4j2.properties"
    logs.write_text(LOG_SETTINGS.replace("level = error", "level = fatal"))
    os.environ |= {
        "JAVA_HOME": str(ensure_java()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    logging = f"-Dlog4j2.configurationFile={logs.as_uri()}"
    settings = {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": logging,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": f"{logging} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.executorEnv.XDG_CACHE_HOME": "/nowhere",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "spark-local"),
        "spark.locality.wait": "0s",
        "spark.task.maxFailures": "4",
        **conf,
    }
    builder = SparkSession.builder.appName("icefold cluster test")
    builder = builder.master(f"local-cluster[{EXECUTORS},1,1024]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def executor_folders(folder: Path) -> list[Path]:
    """The working folders of all executors there have been."""
    return sorted((folder / "spark" / "work").glob("app-*/*"))
