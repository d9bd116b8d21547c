"""Freshness counts from the source: its time is in the staged snapshot and in the publish."""

from __future__ import annotations

import json

import pytest

from resolver import resolve
from resolver.cycle_figures import OLDEST_SOURCE_MS
from tableformat.cdc.events import TIMESTAMP_MS
from tableformat.cdc.ingest import write_changes
from tableformat.spec.names import SOURCE_MS
from tests.support.change_events import create_orders, envelope, events_table, order
from tests.support.memory_tables import memory_catalog

HOUR_MS = 3_600_000


@pytest.fixture
def orders():
    return create_orders(memory_catalog())


def event(key: int, source_ms: int | None, op: str = "c") -> str:
    text = json.loads(envelope(op, after=order(key)))
    if source_ms is not None:
        text["source"]["ts_ms"] = source_ms
    return json.dumps(text)


def stage(table, *values, **columns):
    events = events_table(values)
    for name, column in columns.items():
        events = events.append_column(name, [column])
    options = {"layout": "flattened"} if "__op" in (values[0] or "") else {}
    return write_changes(table.environment, table.identifier, events, options=options)


def told(table, branch: str) -> str | None:
    head = table.refresh().state.head(branch)
    return head.summary.additional_properties.get(SOURCE_MS)


def test_staged_snapshot_has_the_highest_source_time_of_its_batch(orders):
    result = stage(orders, event(1, 2000), event(2, 5000), event(3, 3000))
    assert (result.source_ms, told(orders, "staging")) == (5000, "5000")


def test_flattened_events_tell_it_by_their_added_field(orders):
    row = order(1) | {"__op": "c", "__source_ts_ms": 7000}
    stage(orders, json.dumps(row))
    assert told(orders, "staging") == "7000"


def test_time_of_kafka_is_taken_where_the_source_tells_none(orders):
    stage(orders, event(1, None), event(2, None), **{TIMESTAMP_MS: [41, 42]})
    assert told(orders, "staging") == "42"
    stage(orders, event(1, 9), event(2, 8), **{TIMESTAMP_MS: [41, 42]})
    assert told(orders, "staging") == "9"


def test_nothing_is_told_where_nobody_knows(orders):
    assert stage(orders, event(1, None)).source_ms is None
    assert told(orders, "staging") is None


def test_publish_repeats_the_highest_and_later_commits_do_too(orders):
    stage(orders, event(1, 5000))
    stage(orders, event(2, 3000))  # a restarted connector sends old events again
    resolve(orders)
    assert told(orders, "main") == "5000"
    orders.set_properties({"a": "b"})
    stage(orders, event(3, None))
    resolve(orders)
    assert told(orders, "main") == "5000"


def test_freshness_of_a_cycle_counts_from_the_source(orders):
    now_ms = orders.environment.runtime.clock.now_ms()
    stage(orders, event(1, now_ms - HOUR_MS))
    stage(orders, event(2, now_ms - 1000))
    report = resolve(orders)
    head = orders.refresh().state.head("main")
    assert report.freshness_ms == head.timestamp_ms - (now_ms - HOUR_MS) >= HOUR_MS
    assert head.summary.additional_properties[OLDEST_SOURCE_MS] == str(now_ms - HOUR_MS)


def test_clock_of_the_source_ahead_of_ours_is_no_negative_age(orders):
    stage(orders, event(1, orders.environment.runtime.clock.now_ms() + HOUR_MS))
    assert resolve(orders).freshness_ms == 0


def test_sequence_on_the_same_field_keeps_its_own_type(orders):
    text = json.loads(event(1, None))
    text["source"]["ts_ms"] = "2024-01-01"
    options = {"sequence": "source.ts_ms:text"}
    result = write_changes(
        orders.environment, orders.identifier, events_table([json.dumps(text)]), options=options
    )
    assert (result.changes, result.source_ms) == (1, None)
