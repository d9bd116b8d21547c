from __future__ import annotations

import pyarrow as pa
import pytest

from tableformat.cdc.events import EventBatch
from tableformat.errors import InvalidInputError
from tableformat.table_definition import define_schema
from tests.support.change_events import ORDERS, kinds_and, order, orders_schema, parse

SCHEMA = orders_schema()


def events_of(table: pa.Table) -> EventBatch:
    [batch] = EventBatch.split(table, 1000)
    return batch


def rows(*values: dict[str, object], **columns: list[object]) -> EventBatch:
    table = pa.Table.from_pylist(list(values), schema=ORDERS)
    for name, column in columns.items():
        table = table.append_column(name, pa.array(column))
    return events_of(table)


def test_rows_without_a_kind_column_are_upserts() -> None:
    assert kinds_and(parse("upsert", SCHEMA, rows(order(1), order(2))), "id") == [
        ("+U", 1),
        ("+U", 2),
    ]


def test_kind_column_says_which_rows_are_deletes() -> None:
    batch = rows(order(1), order(2), order(3), op=["d", "u", "+I"])
    parsed = parse("upsert", SCHEMA, batch, kind_column="op")
    assert kinds_and(parsed, "id", "_ordinal") == [("-D", 1, 0), ("+U", 2, 1), ("+I", 3, 2)]


def test_delete_rows_need_their_key_only() -> None:
    table = pa.table({"id": [1], "op": ["d"]})
    parsed = parse("upsert", SCHEMA, events_of(table), kind_column="op")
    assert kinds_and(parsed, "id", "region") == [("-D", 1, None)]


def test_sequence_is_a_column_of_the_table() -> None:
    parsed = parse("upsert", SCHEMA, rows(order(5)), sequence="id")
    assert kinds_and(parsed, "_sequence_0") == [("+U", 5)]
    with pytest.raises(InvalidInputError, match=r"unknown column.*column=lsn"):
        parse("upsert", SCHEMA, rows(order(5)), sequence="lsn")
    with pytest.raises(InvalidInputError, match="lacks its sequence"):
        parse("upsert", SCHEMA, rows(order(5)), sequence="note")


def test_wrong_kind_names_column_and_value() -> None:
    with pytest.raises(InvalidInputError, match=r"not a row kind.*column=op.*'x'"):
        parse("upsert", SCHEMA, rows(order(1), op=["x"]), kind_column="op")
    with pytest.raises(InvalidInputError, match="no column 'kind'"):
        parse("upsert", SCHEMA, rows(order(1)), kind_column="kind")


def test_unknown_column_and_missing_value_fail_the_batch() -> None:
    with pytest.raises(InvalidInputError, match=r"unknown column.*extra"):
        parse("upsert", SCHEMA, rows(order(1), extra=[1]))
    broken = events_of(pa.table({"id": pa.array([None], pa.int64()), "region": ["EU"]}))
    with pytest.raises(InvalidInputError, match=r"required column holds nulls.*column=id"):
        parse("upsert", SCHEMA, broken)


def test_append_produces_inserts_for_tables_with_and_without_a_key() -> None:
    assert kinds_and(parse("append", SCHEMA, rows(order(1))), "id") == [("+I", 1)]
    keyless = define_schema(ORDERS, [])
    assert kinds_and(parse("append", keyless, rows(order(1))), "id") == [("+I", 1)]
    with pytest.raises(InvalidInputError, match="needs a table with a primary key"):
        parse("upsert", keyless, rows(order(1)))
