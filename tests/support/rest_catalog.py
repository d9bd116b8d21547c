"""Apache Iceberg's own REST catalog server (its test fixture) for tests, on loopback.

Its jars are in `.cache`, from Maven Central; where mvn or java is missing, the tests say so and are
skipped. One server per test process and place of files, emptied for each test that asks for it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.support.guard import let_run, stop_with_this_process
from tests.support.maven import CACHE, fetch_jars
from tests.support.ports import free_port
from tests.support.s3_server import SECRET, fresh_bucket, s3_server

ICEBERG = "1.11.0"  # the newest release whose test jars are published
_JETTY = "12.1.2"
_JARS = (
    f"org.apache.iceberg:iceberg-open-api:{ICEBERG}:test-fixtures",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}:tests",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{_JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-server:{_JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-gzip:{_JETTY}",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.slf4j:slf4j-simple:2.0.17",
)
_S3_JARS = (
    f"org.apache.iceberg:iceberg-aws:{ICEBERG}",
    f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",
    "dev.failsafe:failsafe:3.3.2",
)
_S3_JAR_FOLDER = CACHE / f"rest-catalog-s3-{ICEBERG}"
_JAR_FOLDER = CACHE / f"rest-catalog-{ICEBERG}-jetty-{_JETTY}"
_START_TIMEOUT_S = 60.0
VENDED_KEY = "of-the-catalog"


@dataclass(frozen=True)
class RestServer:
    """Where it listens, and where it keeps tables."""

    uri: str
    warehouse: str


def missing_rest_server(*, in_bucket: bool = True) -> str | None:
    """Why there is none, or None; fetches it."""
    if shutil.which("java") is None:
        return "java is not installed: no REST catalog server"
    missing = fetch_jars(_JAR_FOLDER, _JARS, transitive=True)
    if missing is None and in_bucket:
        missing = fetch_jars(_S3_JAR_FOLDER, _S3_JARS, transitive=False)
    return missing


def rest_server(*, in_bucket: bool = False) -> RestServer:
    """The server of this test run, without any namespace or table.

    Args:
        in_bucket: Its tables are in a bucket of `s3_server`, whose keys it hands out.
    """
    server = _running_server(in_bucket)
    client = RestCatalog("clean-up", uri=server.uri)
    pending: list[tuple[str, ...]] = [()]
    namespaces = []
    while pending:
        below = client.list_namespaces(pending.pop())
        namespaces.extend(below)
        pending.extend(below)
    for namespace in sorted(namespaces, key=len, reverse=True):
        for identifier in client.list_tables(namespace):
            client.drop_table(identifier)
        client.drop_namespace(namespace)
    return server


@functools.cache
def _running_server(in_bucket: bool) -> RestServer:
    missing = missing_rest_server(in_bucket=in_bucket)
    if missing is not None:
        pytest.skip(missing)
    folder = Path(tempfile.mkdtemp(prefix="icefold-rest-"))
    port = free_port()
    place = f"s3://{fresh_bucket()}/wh" if in_bucket else f"file://{folder}/wh"
    server = RestServer(f"http://127.0.0.1:{port}", place)
    settings = {
        "CATALOG_WAREHOUSE": server.warehouse,
        "CATALOG_REST_PORT": str(port),
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": f"jdbc:sqlite:file:{folder}/rest.db",
        "CATALOG_JDBC_USER": "user",
        "CATALOG_JDBC_PASSWORD": "password",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_JDBC_STRICT__MODE": "true",  # no table in a missing namespace
        **(_in_bucket() if in_bucket else {}),
    }
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    class_path = f"{_JAR_FOLDER}/*:{_S3_JAR_FOLDER}/*"
    command = ["java", *options, "-cp", class_path, "org.apache.iceberg.rest.RESTCatalogServer"]
    log = folder / "rest.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=output, stderr=output
        )
    stop_with_this_process(["kill", "-9", str(process.pid)], folder)
    _wait_until_up(server, process, log)
    let_run(process)
    return server


def _in_bucket() -> dict[str, str]:
    return {
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": s3_server().endpoint,
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "CATALOG_S3_ACCESS__KEY__ID": VENDED_KEY,
        "CATALOG_S3_SECRET__ACCESS__KEY": SECRET,
        "CATALOG_INCLUDE__CREDENTIALS": "true",
        "AWS_REGION": "us-east-1",
    }


def _wait_until_up(server: RestServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.uri}/v1/config", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"the REST server did not start: {log.read_text()[-2000:]}")
