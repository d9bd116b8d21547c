"""Real Debezium events, and what PostgreSQL held when they were made (`fixtures/debezium`)."""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import json
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema

from tableformat.cdc.events import EventBatch
from tableformat.table_definition import define_schema

FOLDER = Path(__file__).parent.parent / "fixtures" / "debezium"
PLACEHOLDER = "__debezium_unavailable_value"

ACCOUNT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("region", pa.string()),
        pa.field("balance", pa.decimal128(18, 4)),
        pa.field("weird", pa.decimal128(38, 12)),
        pa.field("created", pa.timestamp("us", tz="UTC")),
        pa.field("updated", pa.timestamp("us")),
        pa.field("ms", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("tod", pa.time64("us")),
        pa.field("doc", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("ints", pa.list_(pa.int32())),
        pa.field("note", pa.string()),
        pa.field("mood", pa.string()),
        pa.field("uid", pa.uuid()),
        pa.field("raw", pa.binary()),
        pa.field("ok", pa.bool_()),
        pa.field("small", pa.int32()),
        pa.field("n", pa.int32()),
        pa.field("r", pa.float32()),
        pa.field("d", pa.float64()),
        pa.field("iv", pa.int64()),
        pa.field("ip", pa.string()),
        pa.field("c", pa.string()),
        pa.field("vc", pa.string()),
        pa.field(
            "loc",
            pa.struct(
                [
                    ("x", pa.float64()),
                    ("y", pa.float64()),
                    ("wkb", pa.binary()),
                    ("srid", pa.int32()),
                ]
            ),
        ),
    ]
)
LINE = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("line_no", pa.int32(), nullable=False),
        pa.field("sku", pa.string()),
        pa.field("qty", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
PLAIN = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("bid", pa.int32()),
        pa.field("abalance", pa.int32()),
        pa.field("filler", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("amt", pa.decimal128(12, 2)),
    ]
)
TOAST = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("n", pa.int32()),
        pa.field("ia", pa.list_(pa.int32())),
        pa.field("la", pa.list_(pa.int64())),
        pa.field("ta", pa.list_(pa.string())),
        pa.field("j", pa.string()),
        pa.field("b", pa.binary()),
        pa.field("ua", pa.list_(pa.string())),
        pa.field("num", pa.decimal128(30, 4)),
    ]
)


def account_schema() -> Schema:
    return define_schema(ACCOUNT, ["id"])


def line_schema() -> Schema:
    return define_schema(LINE, ["order_id", "line_no"])


def plain_schema() -> Schema:
    return define_schema(PLAIN, ["id"])


def toast_schema() -> Schema:
    return define_schema(TOAST, ["id"])


def records(topic: str) -> list[dict[str, Any]]:
    """Key and value of each message, in the topic's order."""
    with gzip.open(FOLDER / f"{topic}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def payload(record: dict[str, Any]) -> dict[str, Any]:
    value = record["value"]
    return value.get("payload", value)  # type: ignore[no-any-return]


def op(record: dict[str, Any]) -> str | None:
    if record["value"] is None:
        return None
    row = payload(record)
    return row.get("op") or row.get("__op")  # type: ignore[no-any-return]


def batch(
    topic: str, wanted: str = "crud", edit: Callable[[dict[str, Any]], None] | None = None
) -> EventBatch:
    """The messages with an `op` of those wanted; `edit` changes the payloads."""
    picked = [each for each in records(topic) if (op(each) or "tombstone") in wanted]
    for each in picked:
        if edit is not None:
            edit(payload(each))
    columns = {
        "key": pa.array([json.dumps(each["key"]).encode() for each in picked], pa.binary()),
        "value": pa.array([json.dumps(each["value"]).encode() for each in picked], pa.binary()),
    }
    return EventBatch(pa.record_batch(columns))


def account(k: int) -> dict[str, Any]:
    """The row that PostgreSQL had for key `k` after its insert, but for `note` and `weird`."""
    digest = hashlib.md5(str(k).encode(), usedforsecurity=False).digest()
    last = dt.datetime(2000, 1, 1, 23, 59, 59, 999999) - dt.timedelta(seconds=k)
    return {
        "id": k,
        "region": ("eu", "us", "ap")[k % 3],
        "balance": Decimal("1.2345") * k,
        "created": dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
        + dt.timedelta(days=k, seconds=k, microseconds=k - 1),
        "updated": dt.datetime(1850, 1, 1) + dt.timedelta(days=3 * k, microseconds=7 * k),
        "ms": dt.datetime(2024, 2, 29, 12) + dt.timedelta(milliseconds=k),
        "day": dt.date(1960, 2, 29) + dt.timedelta(days=k),
        "tod": last.time(),
        "doc": json.dumps({"a": [1, k], "k": k, "s": f'ü"{k}'}, ensure_ascii=False),
        "tags": [f"a{k}", None, "c"],
        "ints": [k, None, -k],
        "mood": ("sad", "ok", "happy")[k % 3],
        "uid": uuid.UUID(bytes=digest),
        "raw": digest,
        "ok": (None, True, False)[k % 3],
        "small": k,
        "n": -k,
        "r": struct.unpack("f", struct.pack("f", k / 3))[0],
        "d": k / 7,
        "iv": k * 3_600_000_000,
        "ip": f"10.0.{k % 256}.1",
        "c": f"x{k % 100}".ljust(5),
        "vc": f"v{k}",
        "loc": {
            "x": float(k),
            "y": float(-k),
            "wkb": struct.pack("<BIdd", 1, 1, k, -k),
            "srid": None,
        },
    }
