"""What `icefold ingest --follow` tells: counts, what waits in Kafka, a line now and then."""

from __future__ import annotations

import json
import logging

import pytest
from click.testing import CliRunner

from maintenance.cli.main import cli
from maintenance.ingest_watch import IngestWatch, kafka_backlog
from tableformat.cdc.ingest import IngestResult
from tests.support.change_events import envelope

BAD = envelope("u", after={"id": 1, "note": "__debezium_unavailable_value"})


class Clock:
    def __init__(self):
        self.ms = 1_000_000

    def now_ms(self):
        return self.ms

    monotonic_ms = now_ms


@pytest.fixture
def watch():
    return IngestWatch("shop.orders", Clock())


def value(watch, name, **labels):
    found = watch.registry.get_sample_value(name, {"table": "shop.orders", **labels})
    assert found is not None, name
    return found


def test_counts_are_there_before_anything_happens(watch):
    assert value(watch, "icefold_ingest_dead_letters_total") == 0
    assert value(watch, "icefold_ingest_events_total") == 0


def test_batches_and_backlog_are_counted(watch):
    watch.batch(IngestResult(events=7, changes=5, bad_records=1, skipped={"tombstone": 1},
                             source_ms=990_000))  # fmt: skip
    watch.batch(IngestResult(events=3, changes=3))
    watch.progress({("orders", 0): 11_000, ("orders", 1): 0})
    assert value(watch, "icefold_ingest_batches_total") == 2
    assert value(watch, "icefold_ingest_events_total") == 10
    assert value(watch, "icefold_ingest_changes_total") == 8
    assert value(watch, "icefold_ingest_dead_letters_total") == 1
    assert value(watch, "icefold_ingest_skipped_total", what="tombstone") == 1
    assert value(watch, "icefold_ingest_source_timestamp_seconds") == 990
    assert value(watch, "icefold_ingest_backlog_events", topic="orders", partition="0") == 11_000


def test_line_sums_up_what_came_since_the_last_one(watch, caplog):
    caplog.set_level(logging.INFO, "icefold.ingest")
    watch.batch(IngestResult(events=7, changes=5, source_ms=990_000))
    watch.batch(IngestResult(events=3, changes=3))
    assert [record.getMessage() for record in caplog.records] == [
        "shop.orders: 1 batch, 7 events, 5 changes, 0 dead letters; newest change 10.0 s old"
    ]
    watch._clock.ms += 10_000
    watch.progress({("orders", 0): 11_000})
    assert caplog.records[-1].getMessage().startswith("shop.orders: 1 batch, 3 events, 3 changes")
    assert caplog.records[-1].getMessage().endswith("Kafka backlog 11,000 (orders-0: 11,000)")
    watch.line()
    assert len(caplog.records) == 2, "nothing has happened since"


def test_dead_letters_are_worth_a_warning_at_once(watch, caplog):
    caplog.set_level(logging.INFO, "icefold.ingest")
    watch.batch(IngestResult(events=1, changes=1))
    watch.batch(IngestResult(events=1, bad_records=1))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_backlog_is_what_lies_between_the_stream_and_the_ends_of_its_partitions():
    source = {"endOffset": '{"t":{"0":5,"1":7}}', "latestOffset": {"t": {"0": 9, "1": 7, "2": 3}}}
    assert kafka_backlog({"sources": [source]}) == {("t", 0): 4, ("t", 1): 0, ("t", 2): 3}
    assert kafka_backlog(None) == {}
    assert kafka_backlog({"sources": [{"endOffset": {"logOffset": 3}, "latestOffset": None}]}) == {}


@pytest.fixture
def shell(tmp_path):
    def run(*words):
        return CliRunner().invoke(cli, ["--warehouse", str(tmp_path / "warehouse"), *words])

    columns = ("--column", "id:long!", "--column", "note:string")
    assert run("table", "create", "a.b", *columns, "--primary-key", "id").exit_code == 0
    return run


def test_dead_letters_make_the_command_fail_unless_they_are_allowed(shell, tmp_path):
    events = tmp_path / "events.jsonl"
    events.write_text(BAD + "\n")
    words = ("ingest", "a.b", str(events), "-o", "on-bad-record=dead-letter")
    result = shell(*words)
    assert result.exit_code == 3
    assert "1 bad record put into a.b_dead_letter" in result.stderr
    assert shell(*words, "--allow-dead-letters").exit_code == 0
    [status] = json.loads(shell("status", "a.b", "--json").stdout)
    assert status["dead_letters"] == 2
    assert "2 bad records kept aside" in shell("status", "a.b").stdout


def test_dead_letters_are_replayed_by_the_command(shell, tmp_path):
    events = tmp_path / "events.jsonl"
    events.write_text(BAD + "\n")
    shell("ingest", "a.b", str(events), "-o", "on-bad-record=dead-letter")
    words = ("ingest", "a.b", "--replay-dead-letters", "-o", "on-unavailable-value=null")
    refused = shell(*words)
    assert refused.exit_code == 1
    assert "--in-any-order" in refused.stderr
    assert shell(*words, "--in-any-order").exit_code == 0
    [status] = json.loads(shell("status", "a.b", "--json").stdout)
    assert (status["dead_letters"], status["backlog_rows"]) == (0, 1)


def test_status_counts_lag_from_the_source(shell, tmp_path):
    event = json.loads(envelope("c", after={"id": 1, "note": "x"}))
    event["source"]["ts_ms"] = 1_700_000_000_000
    events = tmp_path / "events.jsonl"
    events.write_text(json.dumps(event) + "\n")
    assert shell("ingest", "a.b", str(events)).exit_code == 0
    assert shell("resolve", "a.b").exit_code == 0
    [status] = json.loads(shell("status", "a.b", "--json").stdout)
    assert (status["source_ms"], status["staging_lag_ms"]) == (1_700_000_000_000, 0)
    assert status["lag_ms"] > 86_400_000, "a dead ingester must not look fresh"
    text = " ".join(shell("status", "a.b").stdout.split())
    assert "behind the source: the newest published change was made at 2023-11-14" in text
