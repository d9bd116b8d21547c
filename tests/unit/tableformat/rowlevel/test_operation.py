"""Row-level operations computed by another engine: DuckDB, through `rowlevel.operation` alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import tableformat as tf
from tableformat import CommitConflictError, InvalidInputError, NotFoundError
from tableformat.commit.refs import create_branch
from tableformat.rowlevel.operation import Fragment, begin
from tableformat.sql.statement import parse_statement
from tests.support.duckdb_rowlevel import DuckDbOperation
from tests.support.rowlevel_corpus import Case, cases
from tests.support.rowlevel_tables import (
    NAMESPACE,
    TABLES,
    build_catalog,
    build_oracle,
    canonical,
    oracle_rows,
)

CASES = [case for case in cases() if not case.sql.startswith("UPDATE people SET st.x")]
WAYS = ("merge-on-read", "copy-on-write", "all-rows")
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


def in_namespace(sql: str):
    for name in TABLES:
        for before in ("FROM ", "UPDATE ", "INTO ", "USING "):
            sql = sql.replace(f"{before}{name}", f"{before}{NAMESPACE}.{name}")
    return parse_statement(sql)


@pytest.mark.slow
def test_duckdb_as_engine_leaves_what_duckdb_leaves(tmp_path):
    catalog = build_catalog(tmp_path)
    oracle = build_oracle(catalog)
    wrong = []
    for number, case in enumerate(CASES):
        expected = oracle_rows(oracle, case.table, case.oracle_sql)
        ways = WAYS[:2] if case.sql.startswith(("MERGE", "WITH")) else WAYS
        way = ways[number % len(ways)]  # each statement in all ways would take minutes
        found = _outcome(catalog, oracle, case, way, f"{way}-{number}")
        if found != expected:
            wrong.append(f"{case.sql} ({way}): {found - expected} {expected - found}")
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong)


def _outcome(catalog, oracle, case: Case, way: str, branch: str) -> Counter[str]:
    table = catalog.load_table(f"{NAMESPACE}.{case.table}")
    head = table.state.head("main")
    if head is None:
        branch = "main"
    else:
        create_branch(
            catalog.environment, table.state.identifier, branch, snapshot_id=head.snapshot_id
        )
    operation = DuckDbOperation(
        oracle,
        table,
        case.table,
        in_namespace(case.sql),
        case.oracle_sql,
        all_rows=way == "all-rows",
        branch=branch,
        mode=None if way == "all-rows" else way,
    )
    operation.run()
    rows = canonical(table.refresh().scan(branch=branch).to_arrow().to_pylist())
    if head is None and table.state.head("main") is not None:
        catalog.drop_table(table.name)
        properties = {"icefold.sql.check-primary-key": "false"}
        schema = operation.plan.schema
        catalog.create_table(table.name, schema, primary_key=["id"], properties=properties)
    return rows


@pytest.fixture
def table(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.append(rows(range(10)))
    table.append(rows(range(10, 20)))
    return table


def rows(ids, n=0) -> pa.Table:
    return pa.table({"id": list(ids), "n": [n] * len(ids)}, schema=SCHEMA)


def read(plan, columns=("id", "n", "_file", "_pos", "_row_id")) -> pa.Table:
    worker = plan.worker()
    return pa.Table.from_batches(
        [batch for split in plan.splits for batch in worker.read(split, list(columns))]
    )


def changed(found: pa.Table, ids, action: int, **values: Any) -> list[pa.RecordBatch]:
    """The rows of some ids as `write` takes them."""
    mask = pa.array([each in set(ids) for each in found["id"].to_pylist()])
    part = found.filter(mask)
    for name, value in values.items():
        at = part.schema.get_field_index(name)
        part = part.set_column(at, name, pa.array([value] * part.num_rows, pa.int64()))
    part = part.append_column("_action", pa.array([action] * part.num_rows, pa.int8()))
    return part.to_batches()


def live(table) -> dict[int, tuple[int, int]]:
    found = table.refresh().scan(columns=["id", "n", "_row_id"]).to_arrow().to_pylist()
    return {row["id"]: (row["n"], row["_row_id"]) for row in found}


def test_updated_and_copied_rows_keep_their_ids_and_age(table):
    before = live(table)
    plan = begin(table, "update", updated_columns=["n"])
    columns = ["id", "n", "_file", "_pos", "_row_id", "_last_updated_sequence_number"]
    found = read(plan, columns)
    worker = plan.worker()
    update = changed(found, [3], 2, n=7)
    copies = changed(found, set(range(10)) - {3}, 4)
    stripped = [b.set_column(5, columns[5], pa.nulls(b.num_rows, pa.int64())) for b in update]
    result = plan.finish([worker.write(stripped), worker.write(copies)])
    assert (result.updated_rows, result.deleted_rows, result.inserted_rows) == (1, 0, 0)
    after = live(table)
    assert {k: v[1] for k, v in after.items()} == {k: v[1] for k, v in before.items()}
    assert after[3][0] == 7
    aged = table.scan(columns=["id", "_last_updated_sequence_number"]).to_arrow().to_pylist()
    assert {row["id"] for row in aged if row["_last_updated_sequence_number"] == 3} == {3}
    assert not table.inspect.delete_files().num_rows  # every row of the file was handed over


def test_files_covered_by_the_whole_condition_are_not_read(table):
    plan = begin(table, "delete", row_filter="id < 10", is_whole_condition=True)
    assert plan.splits == ()
    assert plan.finish([]).deleted_rows == 10
    assert set(live(table)) == set(range(10, 20))


def test_filter_prunes_and_is_exact_unless_all_rows_are_asked_for(table):
    plan = begin(table, "delete", row_filter="id = 3")
    [split] = plan.splits
    assert plan.worker().read(split, ["id"]).__next__()["id"].to_pylist() == [3]
    every = pa.Table.from_batches(plan.worker().read(split, ["id"], all_rows=True))
    assert every["id"].to_pylist() == list(range(10))


def test_nothing_changes_without_fragments(table):
    head = table.state.head("main")
    assert begin(table, "delete").finish([Fragment()]).snapshot is None
    assert table.refresh().state.head("main") == head


def test_abandoned_operation_leaves_no_files(table, tmp_path):
    def files():
        return sorted(path for path in (tmp_path / "warehouse").rglob("*.parquet"))

    before = files()
    plan = begin(table, "merge", inserts_rows=True)
    inserted = rows([50]).append_column("_action", pa.array([3], pa.int8()))
    fragment = plan.worker().write(inserted.to_batches())
    assert len(files()) == len(before) + 1
    plan.abandon([fragment])
    assert files() == before


@pytest.mark.parametrize(
    ("operation", "given", "error", "text"),
    [
        ("replace", {}, InvalidInputError, "use delete, update or merge"),
        ("update", {}, InvalidInputError, "names updated_columns"),
        ("delete", {"updated_columns": ["n"]}, InvalidInputError, "updates nothing"),
        ("update", {"updated_columns": ["n"], "inserts_rows": True}, InvalidInputError, "inserts"),
        ("merge", {"is_whole_condition": True}, InvalidInputError, "only a DELETE"),
        ("update", {"updated_columns": ["x"]}, InvalidInputError, "unknown column"),
        ("merge", {"required_columns": ["x"]}, InvalidInputError, "unknown column"),
        ("delete", {"row_filter": "x = 1"}, InvalidInputError, "x"),
        ("delete", {"branch": "staging"}, InvalidInputError, "staging"),
        ("delete", {"branch": "nowhere"}, NotFoundError, "nowhere"),
        ("delete", {"mode": "fast"}, InvalidInputError, "merge-on-read or copy-on-write"),
        ("merge", {"reads": ["t.nothing"]}, NotFoundError, "nothing"),
    ],
)
def test_wrong_beginnings_are_refused_in_one_line(table, operation, given, error, text):
    with pytest.raises(error, match=text) as caught:
        begin(table, operation, **given)
    assert "\n" not in str(caught.value)


def test_immutable_columns_are_not_updated(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    fixed = catalog.create_table(
        "t.fixed", SCHEMA, primary_key=["id"], immutable_columns=["n"], enforce_immutable=True
    )
    with pytest.raises(InvalidInputError, match="IMMUTABLE"):
        begin(fixed, "update", updated_columns=["n"])


@pytest.mark.parametrize(
    ("drop", "text"),
    [
        ("_action", "must say what becomes"),
        ("_file", "lack a column"),
        ("_pos", "lack a column"),
        ("_row_id", "lack a column"),
        ("n", "lack a column"),
    ],
)
def test_rows_that_lack_a_column_are_refused_before_anything_is_written(table, drop, text):
    plan = begin(table, "update", updated_columns=["n"])
    batches = [batch.drop_columns([drop]) for batch in changed(read(plan), [3], 2)]
    with pytest.raises(InvalidInputError, match=text):
        plan.worker().write(batches)


def test_unknown_actions_lost_ids_and_foreign_rows_are_refused(table):
    plan = begin(table, "update", updated_columns=["n"])
    found = read(plan)
    worker = plan.worker()
    with pytest.raises(InvalidInputError, match="must say what becomes"):
        worker.write(changed(found, [3], 9))
    with pytest.raises(InvalidInputError, match="lost its id"):
        worker.write(changed(found, [3], 2, _row_id=None))
    with pytest.raises(InvalidInputError, match="none of the plan's splits"):
        plan.finish([worker.write(changed(found, [3], 2, _pos=10))])
    for action, name in ((1, "DELETE"), (3, "INSERT")):
        with pytest.raises(InvalidInputError, match=f"{name} was not announced"):
            plan.finish([worker.write(changed(found, [3], action))])
    head = table.refresh().state.head("main")
    assert head.sequence_number == 2


def test_row_replaced_twice_is_ambiguous_and_deleted_twice_is_deleted(table):
    plan = begin(table, "merge", updated_columns=["n"])
    found = read(plan)
    worker = plan.worker()
    one, two = (worker.write(changed(found, [3], 2, n=n)) for n in (1, 2))
    with pytest.raises(InvalidInputError, match="ambiguous"):
        plan.finish([one, two])
    gone = [worker.write(changed(found, [3], 1)) for _ in range(2)]
    with pytest.raises(InvalidInputError, match="ambiguous"):
        plan.finish([gone[0], worker.write(changed(found, [3], 2, n=1))])
    assert plan.finish(gone).deleted_rows == 1
    assert 3 not in live(table)


def append_matching(table):
    table.append(rows([103], 0))


def append_outside(table):
    table.append(rows([900], 0))


def delete_the_row(table):
    table.delete("id = 3")


def delete_another(table):
    table.delete("id = 4")


def update_another(table):
    table.update({"n": "5"}, "id = 15")


def drop_and_create(table):
    catalog = tf.open_catalog("local", warehouse=table.environment.catalog.properties["warehouse"])
    catalog.drop_table(table.name)
    catalog.create_table(table.name, SCHEMA, primary_key=["id"]).append(rows(range(20)))


MEANWHILE = [
    append_matching, append_outside, delete_the_row, delete_another, update_another, drop_and_create
]  # fmt: skip


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("kind", ["delete", "update"])
@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda each: each.__name__)
def test_conflicts_are_those_of_a_statement(tmp_path, monkeypatch, meanwhile, kind, mode):
    """The same interleaving with icefold's own engine and with the protocol."""
    condition = "id = 3 OR id = 103"

    def build(name):
        catalog = tf.open_catalog("local", warehouse=str(tmp_path / name))
        table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
        table.append(rows(range(10)))
        table.append(rows(range(10, 20)))
        return table

    own = build("own")
    other = tf.open_catalog("local", warehouse=str(tmp_path / "own")).load_table("t.rows")
    done = []

    def between(point):
        if point == "rowlevel.after_plan" and not done:
            done.append(point)
            meanwhile(other)

    monkeypatch.setattr(type(own.environment.runtime), "fail_point", lambda _, p: between(p))
    change = (
        (lambda: own.delete(condition, mode=mode))
        if kind == "delete"
        else (lambda: own.update({"n": "n + 1"}, condition, mode=mode))
    )
    expected = _how_it_ends(change)
    assert done
    monkeypatch.undo()

    table = build("protocol")
    updated = {"updated_columns": ["n"]} if kind == "update" else {}
    plan = begin(table, kind, row_filter=condition, mode=mode, **updated)
    found = read(plan)
    fragment = plan.worker().write(changed(found, [3, 103], 1 if kind == "delete" else 2, n=1))
    meanwhile(tf.open_catalog("local", warehouse=str(tmp_path / "protocol")).load_table("t.rows"))
    assert _how_it_ends(lambda: plan.finish([fragment])) == expected
    if expected is None:
        ours = {key: n for key, (n, _) in live(table).items()}
        assert ours == {key: n for key, (n, _) in live(own).items()}


def _how_it_ends(call) -> type[Exception] | None:
    try:
        call()
    except CommitConflictError as error:
        return type(error)
    return None
