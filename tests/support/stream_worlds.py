"""Streams into many tables for tests: topics of a fake cluster, their events, and the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tableformat import TableCatalog
from tableformat.cdc.events import Decoder
from tableformat.cdc.many.local_engine import Cut, LocalEngine, Pace
from tableformat.cdc.many.routing import Route, Routing, TopicPattern
from tableformat.cdc.many.stream_tables import StreamListener, StreamSettings
from tableformat.cdc.many.table_options import StreamOptions
from tableformat.errors import CommitUnknownError
from tableformat.runtime import Runtime
from tests.support.fake_kafka import FakeCluster, Message

ROW = [
    {"field": "id", "type": "int64", "optional": False},
    {"field": "note", "type": "string", "optional": True},
]


def connect_envelope(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The Connect schema of Debezium's envelope around rows of these fields."""
    row = {"type": "struct", "optional": True, "fields": list(fields)}
    return {
        "type": "struct",
        "fields": [{**row, "field": "before"}, {**row, "field": "after"},
                   {"type": "string", "field": "op"}],
    }  # fmt: skip


def message(
    op: str,
    row: Mapping[str, Any],
    *,
    fields: Sequence[Mapping[str, Any]] = ROW,
    key: Sequence[str] = ("id",),
    transaction: tuple[str, int] | None = None,
    bare: bool = False,
) -> Message:
    """Key and value of a change, with their Connect schemas unless `bare`."""
    payload: dict[str, Any] = {"before": None, "after": None, "op": op, "ts_ms": 1}
    payload["before" if op == "d" else "after"] = dict(row)
    if transaction is not None:
        name, order = transaction
        payload["transaction"] = {
            "id": name, "total_order": order, "data_collection_order": order
        }  # fmt: skip
    keys = {name: row[name] for name in key}
    if bare:
        return json.dumps(keys), json.dumps(payload)
    of_key = {"type": "struct", "fields": [each for each in fields if each["field"] in key]}
    return (
        json.dumps({"schema": of_key, "payload": keys}),
        json.dumps({"schema": connect_envelope(fields), "payload": payload}),
    )


@dataclass
class Heard(StreamListener):
    """What a stream told."""

    batches: list[tuple[int, list[str]]] = field(default_factory=list)
    aside: dict[str, str] = field(default_factory=dict)
    back: list[str] = field(default_factory=list)

    def staged(self, number, results):
        self.batches.append((number, sorted(results)))

    def set_aside(self, table, reason):
        self.aside[table] = reason

    def resumed(self, table):
        self.back.append(table)


def engine_of(
    catalog: TableCatalog,
    cluster: FakeCluster,
    *,
    include: Sequence[str] = ("pg.public.*",),
    exclude: Sequence[str] = (),
    routes: Sequence[tuple[str, str]] = (),
    defaults: Mapping[str, str] | None = None,
    tables: Sequence[tuple[str, Mapping[str, str]]] = (),
    query_id: str = "kafka:shop",
    cut: Cut = Cut.BATCH,
    chunk: int = 1_000_000,
    resume: Sequence[str] = (),
    decoder: Decoder | None = None,
    **pace: Any,
) -> LocalEngine:
    routing = Routing(
        namespace="shop",
        include=[TopicPattern.of(text) for text in include],
        exclude=[TopicPattern.of(text) for text in exclude],
        routes=[Route.of(*each) for each in routes],
    )
    options = StreamOptions(namespace="shop", defaults=defaults or {}, tables=tables)
    return LocalEngine(
        environment=catalog.environment,
        source=cluster.source(chunk),
        settings=StreamSettings(
            query_id=query_id, routing=routing, options=options, decoder=decoder
        ),
        cut=cut,
        pace=Pace(**pace),
        listener=Heard(),
        resume_tables=resume,
    )


def notes(catalog: TableCatalog, table: str) -> dict[int, str | None]:
    """The staged rows of a table, by key."""
    rows = catalog.load_table(table).scan(branch="staging").to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "a key has two rows"
    return {row["id"]: row["note"] for row in rows}


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Life:
    """What became of a process: the fail points that it hit, and whether it was killed at one."""

    hits: list[str] = field(default_factory=list)
    is_killed: bool = False


@contextmanager
def killed_at(runtime: Runtime, number: int | None) -> Iterator[Life]:
    """Kills what runs inside at the fail point of that number; None: only counts them."""
    life = Life()

    def hit(name: str) -> None:
        life.hits.append(name)
        if len(life.hits) == number:
            raise Killed

    runtime.fail_points.observer = hit
    try:
        yield life
    except (Killed, CommitUnknownError):
        life.is_killed = True
    finally:
        runtime.fail_points.observer = None
