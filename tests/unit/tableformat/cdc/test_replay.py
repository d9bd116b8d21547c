"""Dead letters are counted, and replayed once, in order, without loss."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat import InvalidInputError
from tableformat.cdc.dead_letter import count_dead_letters
from tableformat.cdc.ingest import write_changes
from tableformat.cdc.replay import replay_dead_letters
from tableformat.cdc.sink import plan_sink
from tests.support.change_events import envelope, events_table
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("note", pa.string()), ("version", pa.int64())]
)
LOST = "__debezium_unavailable_value"
SEQUENCE = {"sequence": "source.lsn", "sequence-column": "version"}
ASIDE = {"on-bad-record": "dead-letter"}
KNOWN = {"on-unavailable-value": "null"}


class Crash(BaseException):
    """The process dies here."""


@pytest.fixture
def catalog():
    return memory_catalog()


@pytest.fixture
def table(catalog):
    return catalog.create_table("shop.things_with_a_long_name", SCHEMA, primary_key=["id"])


def event(key, note, lsn, op="u"):
    return envelope(op, after={"id": key, "note": note, "version": None}, lsn=lsn)


def stage(table, *values, **options):
    return write_changes(
        table.environment, table.identifier, events_table(values), options=SEQUENCE | options
    )


def replay(table, *, any_order=False, **options):
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name="debezium-json",
        options=options,
        branch="staging",
    )
    return [result.changes for result in replay_dead_letters(plan, any_order=any_order)]


def rows(table):
    resolve(table)
    found = table.refresh().scan().to_arrow().to_pylist()
    return {row["id"]: (row["note"], row["version"]) for row in found}


def waiting(table):
    return count_dead_letters(table.environment, table.refresh().state)


def test_replayed_records_are_staged_and_taken_out(table):
    assert waiting(table) == 0
    stage(table, event(1, "one", 1, "c"), event(2, LOST, 2), **ASIDE)
    stage(table, event(3, LOST, 3), event(4, LOST, 4), **ASIDE)
    assert waiting(table) == 3
    assert replay(table, **SEQUENCE, **KNOWN) == [1, 2]
    assert waiting(table) == 0
    assert rows(table) == {1: ("one", 1), 2: (None, 2), 3: (None, 3), 4: (None, 4)}
    assert replay(table, **SEQUENCE, **KNOWN) == []


def test_old_record_does_not_replace_a_newer_row(table):
    stage(table, event(1, LOST, 5), **ASIDE)
    stage(table, event(1, "newer", 9))
    assert rows(table) == {1: ("newer", 9)}
    replay(table, **SEQUENCE, **KNOWN)
    assert rows(table) == {1: ("newer", 9)}


def test_table_without_a_sequence_is_refused_unless_order_is_no_matter(catalog):
    plain = catalog.create_table("shop.plain", SCHEMA, primary_key=["id"])
    write_changes(
        plain.environment, plain.identifier, events_table([event(1, LOST, 1)]), options=ASIDE
    )
    with pytest.raises(InvalidInputError, match="would replace newer ones"):
        replay(plain, **KNOWN)
    assert waiting(plain) == 1
    assert replay(plain, any_order=True, **KNOWN) == [1]
    assert (waiting(plain), rows(plain)) == (0, {1: (None, None)})


def test_record_that_is_bad_still_stays(table):
    stage(table, event(1, LOST, 1), **ASIDE)
    with pytest.raises(InvalidInputError, match="bad record"):
        replay(table, **SEQUENCE)
    assert waiting(table) == 1
    replay(table, **SEQUENCE, **ASIDE)
    assert waiting(table) == 1


def test_crash_before_the_removal_stages_nothing_twice(table):
    stage(table, event(1, LOST, 1), **ASIDE)

    def die(_):
        raise Crash

    runtime = table.environment.runtime
    runtime.fail_points.armed["replay.before_removal"] = die
    with pytest.raises(Crash):
        replay(table, **SEQUENCE, **KNOWN)
    runtime.fail_points.armed.clear()
    staged = table.refresh().state.head("staging").snapshot_id
    assert waiting(table) == 1
    replay(table, **SEQUENCE, **KNOWN)
    assert waiting(table) == 0
    assert table.refresh().state.head("staging").snapshot_id == staged


def test_shared_table_keeps_the_records_of_others(catalog, table):
    other = catalog.create_table("shop.things_with_a_long_tale", SCHEMA, primary_key=["id"])
    shared = {"dead-letter-table": "shop.letters"}
    for each in (table, other):
        stage(each, event(1, LOST, 1), **ASIDE, **shared)
        each.set_properties({"icefold.dead-letter-table": "shop.letters"})
    assert (waiting(table), waiting(other)) == (1, 1)
    replay(table, **SEQUENCE, **KNOWN)
    assert (waiting(table), waiting(other)) == (0, 1)
    left = catalog.load_table("shop.letters").scan().to_arrow().to_pylist()
    assert [row["from_table"] for row in left] == ["shop.things_with_a_long_tale"]
    assert json.loads(left[0]["value"])["after"]["id"] == 1
