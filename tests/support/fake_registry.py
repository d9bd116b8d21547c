"""A schema registry's REST API on loopback, and messages as Kafka Connect's converters frame them.

The schemas are made from Connect's, which the real events carry: the way back is the product's.
"""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro

DECIMAL = "org.apache.kafka.connect.data.Decimal"
_LOGICAL = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}
_AVRO = {"int8": "int", "int16": "int", "int32": "int", "int64": "long", "float32": "float"}
_JSON = {"bytes": "string", "boolean": "boolean", "string": "string", "float": "number",
         "double": "number"}  # fmt: skip


@dataclass
class FakeRegistry:
    """Schemas by id. `down`, `user_info` and `requests` are for tests to set and read."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[tuple[str, int], int] = field(default_factory=dict)
    down: bool = False
    user_info: str | None = None
    requests: list[str] = field(default_factory=list)

    def register(self, schema: Any, kind: str = "AVRO", **more: Any) -> int:
        body = {"schema": schema if kind == "PROTOBUF" else json.dumps(schema), **more}
        if kind != "AVRO":
            body["schemaType"] = kind
        for number, known in self.schemas.items():
            if known == body:
                return number
        number = len(self.schemas) + 1
        self.schemas[number] = body
        return number

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        self.requests.append(path)
        if self.down:
            return 503, {"error_code": 503, "message": "no leader"}
        if self.user_info is not None:
            wanted = "Basic " + base64.b64encode(self.user_info.encode()).decode()
            if authorization != wanted:
                return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(parts[2]))
            if found is not None:
                return 200, found
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if parts[0] == "subjects" and parts[2] == "versions":
            number = self.subjects[parts[1], int(parts[3])]
            about = {"subject": parts[1], "version": int(parts[3]), "id": number}
            return 200, about | self.schemas[number]
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path, self.headers.get("Authorization"))
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def framed(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


@dataclass
class Converter:
    """Writes what a converter of Connect would: `AVRO` or `JSON`."""

    registry: FakeRegistry
    kind: str = "AVRO"

    def write(self, message: Mapping[str, Any] | str | None) -> bytes | None:
        """A message of the JsonConverter with its schema, in this wire format."""
        message = json.loads(message) if isinstance(message, str) else message
        if message is None or message["payload"] is None:
            return None
        schema, payload = message["schema"], message["payload"]
        if self.kind == "JSON":
            number = self.registry.register(json_schema_of(schema), "JSON")
            return framed(number, json.dumps(payload).encode())
        avro = avro_of(schema, set(), "ConnectDefault")
        number = self.registry.register(avro)
        return framed(number, avro_bytes(avro, avro_value(schema, payload)))


def avro_bytes(avro: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(_raw(avro)), value)
    return out.getvalue()


def _raw(avro: Any) -> Any:
    """Without logical types: the values are given as they are written."""
    if isinstance(avro, dict):
        return {name: _raw(each) for name, each in avro.items() if name != "logicalType"}
    return [_raw(each) for each in avro] if isinstance(avro, list) else avro


def avro_of(connect: Mapping[str, Any], known: set[str], name: str) -> Any:
    kind, title = connect["type"], connect.get("name")
    optional = connect.get("optional", False)
    if kind == "struct":
        full = title or name
        if full in known:
            inner: Any = full
        else:
            known.add(full)
            fields = []
            for each in connect["fields"]:
                made = {
                    "name": each["field"],
                    "type": avro_of(each, known, f"{full}_{each['field']}"),
                }
                if each.get("optional"):
                    made["default"] = None
                fields.append(made)
            space, _, last = full.rpartition(".")
            inner = {"type": "record", "name": last, "fields": fields}
            if space:
                inner["namespace"] = space
            if title:
                inner["connect.name"] = title
            if connect.get("doc"):
                inner["connect.doc"] = connect["doc"]
    elif kind == "array":
        inner = {"type": "array", "items": avro_of(connect["items"], known, name + "_item")}
    else:
        inner = {"type": _AVRO.get(kind, kind)}
        if kind in ("int8", "int16"):
            inner["connect.type"] = kind
        if title:
            inner["connect.name"] = title
        if connect.get("parameters"):
            inner["connect.parameters"] = connect["parameters"]
        if title == DECIMAL:
            digits = connect["parameters"].get("connect.decimal.precision", "64")
            inner |= {"logicalType": "decimal", "precision": int(digits),
                      "scale": int(connect["parameters"]["scale"])}  # fmt: skip
        if title in _LOGICAL:
            inner["logicalType"] = _LOGICAL[title]
        if "default" in connect:
            inner["connect.default"] = connect["default"]
        if len(inner) == 1:
            inner = inner["type"]
    return ["null", inner] if optional else inner


def avro_value(connect: Mapping[str, Any], value: Any) -> Any:
    if value is None:
        return None
    if connect["type"] == "struct":
        return {each["field"]: avro_value(each, value[each["field"]]) for each in connect["fields"]}
    if connect["type"] == "array":
        return [avro_value(connect["items"], each) for each in value]
    if connect["type"] == "bytes":
        return base64.b64decode(value)
    if connect["type"] in ("float", "double") and isinstance(value, str):
        return float(value)
    return value


def json_schema_of(connect: Mapping[str, Any]) -> dict[str, Any]:
    kind = connect["type"]
    if kind == "struct":
        properties = {}
        for place, each in enumerate(connect["fields"]):
            properties[each["field"]] = json_schema_of(each) | {"connect.index": place}
        inner: dict[str, Any] = {"type": "object", "properties": properties}
    elif kind == "array":
        inner = {"type": "array", "items": json_schema_of(connect["items"])}
    else:
        inner = {"type": _JSON.get(kind, "integer"), "connect.type": kind}
    for given, name in (("name", "title"), ("parameters", "connect.parameters"),
                        ("default", "default"), ("doc", "description")):  # fmt: skip
        if given in connect:
            inner[name] = connect[given]
    return {"oneOf": [{"type": "null"}, inner]} if connect.get("optional") else inner
