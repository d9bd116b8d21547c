"""Change events and tables for tests of change streams, and a plain fold of change rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema

from tableformat import Table, TableCatalog
from tableformat.cdc.events import KIND, ORDINAL, EventBatch, ParsedEvents
from tableformat.cdc.formats import choose_format
from tableformat.cdc.rowkind import RowKind
from tableformat.table_definition import define_schema

ORDERS = pa.schema(
    [
        pa.field("note", pa.string()),  # the key is not the first column (R13)
        pa.field("id", pa.int64(), nullable=False),
        pa.field("region", pa.string(), nullable=False),
        pa.field("amount", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)


def orders_schema(primary_key: Sequence[str] = ("id",)) -> Schema:
    return define_schema(ORDERS, list(primary_key))


def create_orders(
    catalog: TableCatalog,
    *,
    primary_key: Sequence[str] = ("id",),
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Table:
    return catalog.create_table(
        "shop.orders",
        ORDERS,
        primary_key=primary_key,
        partition_by=partition_by,
        properties=properties,
    )


def order(id: int, *, region: str = "EU", note: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": id, "region": region, "note": note, "amount": None, "at": None, **more}


def envelope(
    op: str | None,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    lsn: int | None = None,
    **more: Any,
) -> str:
    event = {
        "before": before,
        "after": after,
        "source": {"connector": "postgresql", "lsn": lsn},
        "op": op,
        "ts_ms": 1,
        **more,
    }
    return json.dumps(event)


def batch_of(
    values: Sequence[str | bytes | None], keys: Sequence[str | None] | None = None
) -> EventBatch:
    columns = {"value": pa.array([_bytes(value) for value in values], pa.binary())}
    if keys is not None:
        columns["key"] = pa.array([_bytes(key) for key in keys], pa.binary())
    return EventBatch(pa.record_batch(columns))


def events_table(
    values: Sequence[str | bytes | None], keys: Sequence[str | None] | None = None
) -> pa.Table:
    return pa.Table.from_batches([batch_of(values, keys).rows])


def parse(format_name: str, schema: Schema, events: EventBatch, **options: str) -> ParsedEvents:
    given = {name.replace("_", "-"): text for name, text in options.items()}
    choice = choose_format(format_name, given)
    return choice.build(schema).parse(events)


def kinds_and(parsed: ParsedEvents, *columns: str) -> list[tuple[Any, ...]]:
    """(kind, columns...) per change row, in arrival order."""
    rows = sorted(parsed.changes.to_pylist(), key=lambda row: row[ORDINAL])
    return [(RowKind(row[KIND]).short, *(row[name] for name in columns)) for row in rows]


def reasons(parsed: ParsedEvents) -> list[str]:
    return parsed.bad.column("reason").to_pylist()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
