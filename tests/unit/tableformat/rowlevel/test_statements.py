"""What statements give back, what they keep, and what they refuse; without Spark."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue, EqualTo, GreaterThan
from pyiceberg.table.snapshots import IsolationLevel

from tableformat.errors import InvalidInputError, NotFoundError, TableError, UnsupportedError
from tableformat.rowlevel.planning import plan_statement
from tableformat.spec.properties import WriteMode
from tableformat.sql.statement import parse_statement
from tests.support.another_tool import set_unchecked
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
LINEAGE = ["id", "_row_id", "_last_updated_sequence_number"]


@pytest.fixture
def catalog():
    return memory_catalog()


@pytest.fixture
def orders(catalog):
    table = catalog.create_table("shop.orders", SCHEMA, primary_key=["id"], partition_by=["region"])
    rows = [{"id": i, "region": ["EU", "US"][i % 2], "amount": i * 10} for i in range(10)]
    table.append(pa.Table.from_pylist(rows, schema=SCHEMA))
    return table


def ids(table) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_arrow().column("id").to_pylist())


def lineage(table) -> dict[int, tuple[int, int]]:
    rows = table.scan(columns=LINEAGE).to_arrow().to_pylist()
    return {row["id"]: (row[LINEAGE[1]], row[LINEAGE[2]]) for row in rows}


def test_covered_partition_is_dropped_unread(catalog, orders) -> None:
    orders.delete("id = 2")
    store = catalog.environment.store
    read: list[str] = []
    get = store.open_input
    store.open_input = lambda location: read.append(location) or get(location)
    result = orders.delete("region = 'EU'")
    assert not [path for path in read if path.endswith(".parquet")]
    assert (result.deleted_rows, result.dropped_files, result.dropped_rows) == (4, 1, 4)
    assert ids(orders) == [1, 3, 5, 7, 9]
    assert result.snapshot.summary.operation.value == "delete"


def test_delete_drops_what_is_covered_and_marks_the_rest(orders) -> None:
    result = orders.delete("region = 'EU' OR amount > 80")
    assert (result.deleted_rows, result.dropped_files, result.dropped_rows) == (6, 1, 5)
    summary = result.snapshot.summary.additional_properties
    assert (summary["added-dvs"], summary["deleted-data-files"]) == ("1", "1")
    assert ids(orders) == [1, 3, 5, 7]


def test_second_delete_merges_with_the_first_vector(orders) -> None:
    orders.delete("id = 1")
    result = orders.delete("id = 3")
    summary = result.snapshot.summary.additional_properties
    assert (summary["added-dvs"], summary["removed-dvs"]) == ("1", "1")
    assert ids(orders) == [0, 2, 4, 5, 6, 7, 8, 9]


def test_file_without_rows_left_goes_as_a_whole(orders) -> None:
    orders.delete("id IN (1, 3, 5)")
    result = orders.delete("id IN (7, 9)")
    summary = result.snapshot.summary.additional_properties
    assert summary["deleted-data-files"] == "1"
    assert summary["total-delete-files"] == "0"


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_update_keeps_row_ids(orders, mode) -> None:
    before = lineage(orders)
    result = orders.update({"amount": "amount + 1"}, "id < 3", mode=mode)
    after = lineage(orders)
    assert result.updated_rows == 3
    assert {key: row_id for key, (row_id, _) in after.items()} == {
        key: row_id for key, (row_id, _) in before.items()
    }
    sequence = result.snapshot.sequence_number
    assert {key for key, (_, updated) in after.items() if updated == sequence} == {0, 1, 2}


def test_copy_on_write_leaves_no_vectors(orders) -> None:
    orders.delete("id = 1")
    result = orders.delete("id = 3", mode="copy-on-write")
    summary = result.snapshot.summary.additional_properties
    assert summary["total-delete-files"] == "0"
    assert ids(orders) == [0, 2, 4, 5, 6, 7, 8, 9]


def test_copy_on_write_drops_the_last_row_only(orders) -> None:
    orders.delete("id = 9", mode="copy-on-write")
    assert ids(orders) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_statement_without_matches_commits_nothing(orders) -> None:
    head = orders.refresh().state.head("main").snapshot_id
    result = orders.update({"amount": "0"}, "id = 77")
    assert result.snapshot is None
    assert orders.refresh().state.head("main").snapshot_id == head


def test_statement_changes_its_branch_only(orders) -> None:
    orders.refs.create_branch("audit")
    orders.delete("id < 5", branch="audit")
    assert len(ids(orders)) == 10
    assert orders.scan(branch="audit").to_arrow().num_rows == 5


def test_named_branch_is_changed(catalog, orders) -> None:
    orders.refs.create_branch("audit")
    catalog.sql("DELETE FROM shop.orders.branch_audit WHERE id < 5")
    assert orders.scan(branch="audit").to_arrow().num_rows == 5


def test_context_pins_every_table_in_planning_order(catalog, orders) -> None:
    for name in ("b", "a"):
        other = catalog.create_table(f"shop.{name}", SCHEMA, primary_key=["id"])
        other.append(pa.table({"id": [1], "region": ["x"], "amount": [1]}))
    text = (
        "MERGE INTO shop.orders o USING (SELECT b.* FROM shop.b JOIN shop.a ON a.id = b.id) s "
        "ON o.id = s.id WHEN MATCHED AND s.id IN (SELECT id FROM shop.orders) THEN DELETE"
    )
    plan = plan_statement(catalog.environment, parse_statement(text))
    context = plan.context
    assert [table.name for table in context.tables] == [
        "shop.orders", "shop.b", "shop.a", "shop.orders",
    ]  # fmt: skip
    for pinned in context.tables:
        table = catalog.load_table(pinned.name)
        assert pinned.table_uuid == table.state.metadata.table_uuid
        assert pinned.snapshot_id == table.state.head("main").snapshot_id
    assert context.rereads_target
    assert context.conflict_filter == AlwaysTrue()
    catalog.load_table("shop.a").append(pa.table({"id": [2], "region": ["x"], "amount": [1]}))
    [_, a, _] = plan.others.values()
    assert a.selected.snapshot.snapshot_id == a.version.snapshot_id
    assert catalog.load_table("shop.a").scan(snapshot_id=a.version.snapshot_id).count() == 1


@pytest.mark.parametrize(
    ("source", "rereads"),
    [
        ("shop.orders", True),
        ("shop.orders.branch_main", True),
        ("shop.orders VERSION AS OF 'main'", True),
        ("shop.orders.branch_audit", False),
        ("shop.orders.snapshot_id_{head}", False),
        ("shop.orders VERSION AS OF {head}", False),
    ],
)
def test_head_that_is_read_again_under_any_name_must_not_change(catalog, orders, source, rereads):
    orders.refs.create_branch("audit")
    source = source.format(head=orders.state.head("main").snapshot_id)
    text = f"DELETE FROM shop.orders WHERE id = 1 AND id IN (SELECT id FROM {source})"
    context = plan_statement(catalog.environment, parse_statement(text)).context
    assert context.rereads_target == rereads
    assert context.conflict_filter == (AlwaysTrue() if rereads else EqualTo("id", 1))


def test_context_says_what_is_read_and_changed(catalog, orders) -> None:
    text = "UPDATE shop.orders SET region = 'x', amount = 0 WHERE amount > 10"
    context = plan_statement(catalog.environment, parse_statement(text)).context
    assert context.updated_columns == ("region", "amount")
    assert context.required_columns == ("id", "region", "amount")
    assert context.conflict_filter == GreaterThan("amount", 10)
    text = "DELETE FROM shop.orders WHERE region = 'x' AND abs(amount) = 3"
    context = plan_statement(catalog.environment, parse_statement(text)).context
    assert context.required_columns == ("region", "amount")
    assert context.conflict_filter == EqualTo("region", "x")


def test_properties_choose_isolation_and_mode_per_operation(catalog, orders) -> None:
    orders.set_properties({
        "write.delete.isolation-level": "snapshot",
        "write.update.mode": "copy-on-write",
    })  # fmt: skip
    contexts = [
        plan_statement(catalog.environment, parse_statement(text)).context
        for text in ("DELETE FROM shop.orders", "UPDATE shop.orders SET amount = 1")
    ]
    assert [context.isolation for context in contexts] == [
        IsolationLevel.SNAPSHOT,
        IsolationLevel.SERIALIZABLE,
    ]
    assert [context.mode for context in contexts] == [
        WriteMode.MERGE_ON_READ,
        WriteMode.COPY_ON_WRITE,
    ]


REFUSED = [
    ("DELETE FROM shop.orders VERSION AS OF 3", UnsupportedError,
     "Cannot set time travel options VERSION AS OF 3 for row-level command scans"),
    ("DELETE FROM shop.orders.snapshot_id_3", UnsupportedError, "Cannot set time travel options"),
    ("DELETE FROM shop.orders TIMESTAMP AS OF '2020-01-01'", UnsupportedError, "time travel"),
    ("DELETE FROM shop.orders.tag_v1", InvalidInputError, "is a tag"),
    ("DELETE FROM shop.nope", NotFoundError, "no table shop.nope"),
    ("DELETE FROM shop.orders WHERE rand() > 0.5", InvalidInputError, "cannot use rand()"),
    ("UPDATE shop.orders SET region = uuid()", InvalidInputError, "cannot use uuid()"),
    ("UPDATE shop.orders SET nope = 1", InvalidInputError, "unknown column"),
    ("UPDATE shop.orders SET amount = 'ten'", InvalidInputError, "wrong type"),
    ("UPDATE shop.orders SET amount = TRUE", InvalidInputError, "wrong type"),
    ("UPDATE shop.orders SET amount = 99999999999999999999", InvalidInputError, "does not fit"),
    ("UPDATE shop.orders SET amount = 1, orders.amount = 2", InvalidInputError, "twice"),
    ("UPDATE shop.orders SET id = NULL", InvalidInputError, "required column holds nulls"),
    ("MERGE INTO shop.orders o USING x ON TRUE WHEN MATCHED THEN INSERT *", InvalidInputError,
     "WHEN MATCHED cannot INSERT"),
    ("MERGE INTO shop.orders t USING shop.other s ON t.id = s.id WHEN MATCHED THEN UPDATE *",
     InvalidInputError, "needs SET"),
    ("MERGE INTO shop.orders o USING x ON TRUE WHEN NOT MATCHED THEN INSERT (id) VALUES (1, 2)",
     InvalidInputError, "as many values as columns"),
    ("SELECT 1", InvalidInputError, "not a row-level statement"),
    ("DELETE FROM shop.orders; DELETE FROM shop.orders", InvalidInputError, "one statement"),
    ("DELETE FROM", InvalidInputError, "cannot read the statement"),
    ("DELETE FROM shop.orders WHERE amount % 2 = 0", UnsupportedError, "needs Spark"),
    ("DELETE FROM shop.orders WHERE nope = 1", InvalidInputError, "unknown column"),
    ("UPDATE shop.orders SET amount = nope + 1", InvalidInputError, "unknown column"),
    ("UPDATE shop.orders SET amount = 1 WHERE id > 0 AND nope % 2 = 0", InvalidInputError,
     "unknown column"),
    ("DELETE FROM shop.orders WHERE id IN (SELECT id FROM shop.orders VERSION AS OF 1.5)",
     InvalidInputError, "not a version of a table: 1.5"),
    ("DELETE FROM shop.orders WHERE id IN (SELECT id FROM shop.orders.`at_timestamp_²`)",
     InvalidInputError, "not a version of a table: ²"),
    ("", InvalidInputError, "one statement"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "message"), REFUSED, ids=[text for text, *_ in REFUSED])
def test_wrong_statement_is_one_clear_line(catalog, orders, monkeypatch, text, kind, message):
    monkeypatch.setattr("tableformat.rowlevel.execute._active_session", lambda: None)
    orders.refs.create_tag("v1")
    head = orders.state.head("main").snapshot_id
    with pytest.raises(kind) as caught:
        catalog.sql(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert orders.refresh().state.head("main").snapshot_id == head


MERGED = "MERGE INTO shop.orders t USING x s ON t.id = s.id WHEN "
UNREAD = [
    ("UPDATE shop.orders o JOIN x ON o.id = x.id SET o.amount = 1", "no JOINS clause"),
    ("UPDATE shop.orders, x SET amount = 1", "no JOINS clause"),
    ("UPDATE shop.orders o SET amount = 1 FROM x WHERE x.id = o.id", "no FROM clause"),
    ("UPDATE shop.orders SET amount = 1 LIMIT 1", "no LIMIT clause"),
    ("UPDATE shop.orders AS o(a, b) SET a = 1", "another name, and no more"),
    ("DELETE FROM shop.orders CROSS JOIN x", "no JOINS clause"),
    ("DELETE FROM shop.orders USING x WHERE x.id = 1", "no USING clause"),
    ("DELETE FROM shop.orders PIVOT (sum(amount) FOR region IN ('a'))", "no PIVOTS clause"),
    ("DELETE FROM shop.orders@v3", "another name, and no more"),
    (MERGED + "MATCHED THEN UPDATE SET amount = 1 WHERE s.amount > 2", "no WHERE clause"),
    (MERGED + "NOT MATCHED THEN INSERT (id) VALUES (s.id) WHERE s.amount > 2", "no WHERE clause"),
    (MERGED + "MATCHED THEN UPDATE SET * EXCEPT (amount)", "not an assignment"),
    (MERGED + "MATCHED THEN UPDATE SET *, amount = 1", "not an assignment"),
    (MERGED + "NOT MATCHED THEN INSERT * EXCEPT (amount)", "as many values as columns"),
    ("MERGE INTO shop.orders t USING x s USING (id) WHEN MATCHED THEN DELETE", "needs ON"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), UNREAD, ids=[text for text, _ in UNREAD])
def test_what_other_dialects_would_narrow_a_statement_with_is_refused(text, message) -> None:
    """The parser takes it: not read, it would leave a statement for all rows."""
    with pytest.raises((InvalidInputError, UnsupportedError), match=message):
        parse_statement(text)


def test_tag_and_staging_are_refused(orders) -> None:
    orders.refs.create_tag("v1")
    with pytest.raises(InvalidInputError, match="is a tag"):
        orders.delete("id = 1", branch="v1")
    with pytest.raises(InvalidInputError, match="staging"):
        orders.delete("id = 1", branch="staging")
    with pytest.raises(NotFoundError, match="no branch 'nope'"):
        orders.delete("id = 1", branch="nope")


def test_enforced_immutable_column_cannot_be_assigned(catalog, orders) -> None:
    orders.set_immutable_columns(["region"], enforced=True)
    with pytest.raises(InvalidInputError, match="IMMUTABLE column cannot be changed"):
        orders.update({"region": "'x'"}, "id = 1")
    orders.update({"amount": "1"}, "id = 1")
    orders.set_immutable_columns(["region"], enforced=False)
    orders.update({"region": "'x'"}, "id = 1")


def test_column_that_hides_a_metadata_column_is_refused(catalog) -> None:
    schema = pa.schema([("id", pa.int64()), ("_file", pa.string())])
    catalog.create_table("shop.odd", schema, primary_key=["id"])
    with pytest.raises(UnsupportedError, match="hides"):
        catalog.sql("DELETE FROM shop.odd")


@pytest.mark.parametrize("name", ["write.delete.isolation-level", "write.delete.mode"])
def test_wrong_property_is_named(orders, name) -> None:
    set_unchecked(orders, {name: "sometimes"})
    with pytest.raises(InvalidInputError, match=name):
        orders.delete("id = 1")


@pytest.mark.parametrize("zero", ["0", "0.0", "-0", "0.00"])
def test_zero_fits_a_decimal_without_digits_before_its_point(catalog, zero: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("share", pa.decimal128(2, 2))])
    table = catalog.create_table("shop.shares", schema, primary_key=["id"])
    table.append(pa.table({"id": [1], "share": [None]}, schema=schema))
    table.update({"share": zero})
    assert table.scan().to_arrow().column("share").to_pylist() == [Decimal("0.00")]
    with pytest.raises(InvalidInputError, match="does not fit"):
        table.update({"share": "1"})


def test_values_must_be_text(orders) -> None:
    with pytest.raises(InvalidInputError, match="as text"):
        orders.update({"amount": 1})
    with pytest.raises(TableError):
        orders.delete("id = ")
    with pytest.raises(TableError):
        orders.delete("1 = 1 ORDER BY id")


def test_table_moves_on_with_its_statements(orders) -> None:
    result = orders.delete("id = 1")
    assert orders.state.head("main").snapshot_id == result.snapshot.snapshot_id


@pytest.mark.slow
def test_parser_is_loaded_when_it_is_needed() -> None:
    code = "import sys, tableformat; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "condition",
    ["(" * 3000 + "id = 1" + ")" * 3000, "NOT " * 3000 + "id = 1", "id = " + "- " * 3000 + "1"],
)
def test_statement_that_is_nested_deeply_is_refused(orders, catalog, condition):
    with pytest.raises(InvalidInputError, match="nested too deeply"):
        catalog.sql(f"DELETE FROM shop.orders WHERE {condition}")
    assert len(ids(orders)) == 10
