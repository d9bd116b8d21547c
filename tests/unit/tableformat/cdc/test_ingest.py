from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.update import AddPartitionSpecUpdate

from benchmarks.flights import (
    KEY,
    flights_schema,
    iter_flight_folds,
    state_table,
    write_flight_events,
)
from tableformat import (
    CommitConflictError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    Table,
    TableCatalog,
    UnsupportedError,
)
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.event_files import ingest_files, read_events
from tableformat.cdc.ingest import (
    IngestResult,
    write_batch,
    write_changes,
)
from tableformat.cdc.sink import plan_sink
from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list
from tableformat.runtime import Runtime
from tableformat.spec.data_file import FileContent
from tableformat.spec.names import IMMUTABLE_COLUMNS
from tests.support.change_events import (
    ORDERS,
    create_orders,
    envelope,
    events_table,
    order,
)
from tests.support.memory_tables import memory_catalog


class Crash(BaseException):
    """The process dies here."""


def ingest(
    table: Table,
    events: Sequence[str | bytes | None] | pa.Table,
    *,
    keys: Sequence[str | None] | None = None,
    batch: int | None = None,
    format_name: str = "debezium-json",
    branch: str = "staging",
    **options: Any,
) -> IngestResult:
    rows = events if isinstance(events, pa.Table) else events_table(events, keys)
    return write_changes(
        table.environment,
        table.identifier,
        rows,
        format_name=format_name,
        options={name.replace("_", "-"): value for name, value in options.items()},
        branch=branch,
        batch=None if batch is None else BatchId("q", batch),
    )


def state_of(table: Table, branch: str = "staging") -> dict[int, tuple[str, str | None]]:
    rows = table.scan(branch=branch).to_arrow().to_pylist()
    state = {row["id"]: (row["region"], row["note"]) for row in rows}
    assert len(state) == len(rows), "a key has two rows"
    return state


def files_of(table: Table, content: FileContent) -> list[Any]:
    head = table.refresh().state.head("staging")
    assert head is not None
    store = table.environment.store
    return [
        entry.data_file
        for manifest in load_manifest_list(store, head)
        for entry in load_manifest(store, manifest)
        if entry.is_live and entry.data_file.content == content
    ]


@pytest.fixture
def catalog() -> TableCatalog:
    return memory_catalog()


def test_batches_of_events_end_in_the_folded_state(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    result = ingest(
        table,
        [
            envelope("c", after=order(1, note="a")),
            envelope("c", after=order(2, note="a")),
            envelope("u", after=order(1, note="b")),
            None,
        ],
    )
    assert (result.events, result.changes, result.skipped) == (4, 3, {"tombstone": 1})
    ingest(table, [envelope("d", before=order(2)), envelope("u", after=order(1, note="c"))])
    assert state_of(table) == {1: ("EU", "c")}


def test_same_key_many_times_in_one_batch_leaves_one_row(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    ingest(table, [envelope("c", after=order(1, note=str(n))) for n in range(50)])
    assert state_of(table) == {1: ("EU", "49")}


def test_insert_delete_insert_of_equal_milliseconds_keeps_the_last_insert(
    catalog: TableCatalog,
) -> None:
    table = create_orders(catalog)
    events = [
        envelope("c", after=order(1, note="first")),
        envelope("d", before=order(1)),
        envelope("c", after=order(1, note="last")),
    ]
    ingest(table, events)
    assert state_of(table) == {1: ("EU", "last")}


def test_out_of_order_batch_is_ordered_by_its_sequence(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    events = [
        envelope("u", after=order(1, note="new"), lsn=30),
        envelope("c", after=order(1, note="old"), lsn=10),
        envelope("d", before=order(2), lsn=40),
        envelope("c", after=order(2), lsn=20),
    ]
    ingest(table, events, sequence="source.lsn")
    assert state_of(table) == {1: ("EU", "new")}


def test_update_of_the_partition_leaves_no_old_copy(catalog: TableCatalog) -> None:
    table = create_orders(catalog, partition_by=["region"])
    ingest(table, [envelope("c", after=order(1, region="EU")), envelope("c", after=order(2))])
    ingest(table, [envelope("u", after=order(1, region="US"))])
    assert state_of(table) == {1: ("US", None), 2: ("EU", None)}


def test_delete_without_the_partition_column_reaches_its_row(catalog: TableCatalog) -> None:
    table = create_orders(catalog, partition_by=["region"])
    ingest(table, [envelope("c", after=order(1, region="EU"))])
    ingest(table, [envelope("d")], keys=['{"id":1}'])
    assert state_of(table) == {}


def test_immutable_partition_is_used_only_for_deletes_that_carry_their_row(
    catalog: TableCatalog,
) -> None:
    properties = {IMMUTABLE_COLUMNS: "region"}
    table = create_orders(catalog, partition_by=["region"], properties=properties)
    ingest(table, [envelope("c", after=order(1)), envelope("c", after=order(2))], deletes="row")
    ingest(table, [envelope("d", before=order(1, region="EU"))], deletes="row")
    assert state_of(table) == {2: ("EU", None)}
    deletes = files_of(table, FileContent.EQUALITY_DELETES)
    assert {file.partition for file in deletes} == {("EU",)}
    ingest(table, [envelope("d", before={"id": 2})])
    assert state_of(table) == {}
    assert () in {file.partition for file in files_of(table, FileContent.EQUALITY_DELETES)}


def test_key_change_deletes_the_old_row_in_its_immutable_partition(catalog: TableCatalog) -> None:
    properties = {IMMUTABLE_COLUMNS: "region"}
    table = create_orders(catalog, partition_by=["region"], properties=properties)
    rows = [order(1), order(2, region="US")]
    ingest(table, [envelope("c", after=row) for row in rows], deletes="row")
    moved = envelope("u", before=rows[1], after=order(3, region="US"))
    ingest(table, [moved], deletes="row")
    assert state_of(table) == {1: ("EU", None), 3: ("US", None)}
    deletes = files_of(table, FileContent.EQUALITY_DELETES)
    assert {file.partition for file in deletes} == {("EU",), ("US",)}


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ({"id": 1}, "holds its key only, not the row"),
        ({"id": 1, "region": None, "note": None}, "holds its key only, not the row"),
        ({"id": 1, "note": "x"}, "no value of required column 'region'"),
    ],
)
@pytest.mark.parametrize("op", ["d", "u"])
def test_delete_that_should_hold_the_row_and_does_not_is_a_bad_record(
    catalog: TableCatalog, before: dict[str, Any], reason: str, op: str
) -> None:
    """Nulls would send the delete to the null partition, and the row would stay."""
    properties = {IMMUTABLE_COLUMNS: "region"}
    table = create_orders(catalog, partition_by=["region"], properties=properties)
    ingest(table, [envelope("c", after=order(1))], deletes="row")
    after = None if op == "d" else order(7)
    events = [envelope("c", after=order(2)), envelope(op, before=before, after=after)]
    with pytest.raises(InvalidInputError, match=reason):
        ingest(table, events, deletes="row")
    ingest(table, events, deletes="row", on_bad_record="dead-letter")
    assert state_of(table) == {1: ("EU", None), 2: ("EU", None)}


def test_key_change_moves_the_row_in_both_forms(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    ingest(table, [envelope("c", after=order(1, note="x")), envelope("c", after=order(5))])
    ingest(
        table,
        [
            envelope("u", before=order(1), after=order(2, note="x")),
            envelope("d", before=order(5)),
            None,
            envelope("c", after=order(6)),
        ],
    )
    assert state_of(table) == {2: ("EU", "x"), 6: ("EU", None)}


def test_snapshot_read_that_overlaps_the_stream_makes_no_second_row(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    ingest(table, [envelope("c", after=order(1, note="a"))], assume_new_keys="true")
    ingest(table, [envelope("r", after=order(1, note="b"))], assume_new_keys="true")
    assert state_of(table) == {1: ("EU", "b")}


def test_assumed_new_keys_write_no_deletes(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    result = ingest(table, [envelope("c", after=order(1))], assume_new_keys=True)
    assert result.files == (1, 0)
    assert ingest(table, [envelope("u", after=order(1))], assume_new_keys=True).files == (1, 1)


def test_delete_file_holds_the_key_columns_only(catalog: TableCatalog) -> None:
    table = create_orders(catalog, primary_key=["region", "id"])
    ingest(table, [envelope("u", after=order(1))])
    [file] = files_of(table, FileContent.EQUALITY_DELETES)
    with table.environment.store.open_input(file.file_path) as source:
        stored = pq.read_table(source)
    assert sorted(stored.column_names) == ["id", "region"]
    key_ids = {column.field_id for column in table.schema().fields if column.name != "note"}
    assert set(file.equality_ids) <= key_ids


def test_bad_record_fails_the_batch_and_commits_nothing(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    events = [envelope("c", after=order(1)), "{broken", envelope("t")]
    with pytest.raises(
        InvalidInputError, match=r"bad record: not JSON|bad record: not a JSON"
    ) as e:
        ingest(table, events)
    assert e.value.context == {"position": "event 1", "bad_records": "2"}
    assert table.refresh().state.ref("staging") is None


def test_bad_records_go_to_the_dead_letter_table_and_the_rest_goes_on(
    catalog: TableCatalog,
) -> None:
    table = create_orders(catalog)
    events = [envelope("c", after=order(1)), "{broken", envelope("t")]
    result = ingest(table, events, keys=[None, "k", None], on_bad_record="dead-letter")
    assert (result.changes, result.bad_records) == (1, 2)
    assert state_of(table) == {1: ("EU", None)}
    letters = catalog.load_table("shop.orders_dead_letter").scan().to_arrow().to_pylist()
    assert [(row["from_table"], row["position"], row["value"], row["key"]) for row in letters] == [
        ("shop.orders", "event 1", b"{broken", b"k"),
        ("shop.orders", "event 2", events[2].encode(), None),
    ]
    assert all(row["reason"] for row in letters)


def test_unknown_column_fails_the_batch_even_with_dead_letters(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    with pytest.raises(InvalidInputError, match="a column 'extra' that the table does not have"):
        ingest(table, [envelope("c", after=order(1, extra=1))], on_bad_record="dead-letter")


@pytest.mark.parametrize(
    "point",
    ["ingest.before_commit", "commit.before_swap", "commit.after_swap", "ingest.after_commit"],
)
@pytest.mark.parametrize("hit", [1, 2])
def test_crash_anywhere_and_the_same_batch_again_give_each_row_and_letter_once(
    point: str, hit: int
) -> None:
    runtime = Runtime()
    catalog = memory_catalog(runtime=runtime)
    table = create_orders(catalog)
    ingest(table, [envelope("c", after=order(1, note="a"))], batch=0)
    events = [envelope("u", after=order(1, note="b")), envelope("c", after=order(2)), "{broken"]
    hits = 0

    def crash(_: str) -> None:
        nonlocal hits
        hits += 1
        if hits == hit:
            raise Crash

    runtime.fail_points.armed[point] = crash
    crashed = False
    try:
        ingest(table, events, batch=1, on_bad_record="dead-letter")
    except Crash:
        crashed = True
    assert crashed == (hit == 1 or point.startswith("commit."))
    runtime.fail_points.armed.clear()
    ingest(table, events, batch=1, on_bad_record="dead-letter")
    assert state_of(table) == {1: ("EU", "b"), 2: ("EU", None)}
    letters = catalog.load_table("shop.orders_dead_letter").scan().to_arrow()
    assert letters.num_rows == 1
    staged = table.refresh().state.metadata.snapshots
    assert len(staged) == 2


def test_repeated_batch_is_not_written_again(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    first = ingest(table, [envelope("c", after=order(1))], batch=3)
    again = ingest(table, [envelope("c", after=order(9))], batch=3)
    assert first.commit is not None
    assert (again.repeated, again.commit) == (True, None)
    assert state_of(table) == {1: ("EU", None)}


def test_batch_without_changes_commits_nothing(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    result = ingest(table, [None, '{"ts_ms":1}'])
    assert result.commit is None
    assert result.skipped == {"tombstone": 1, "heartbeat": 1}
    assert table.refresh().state.ref("staging") is None


def test_changelog_and_typed_rows_end_in_the_same_state(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    changelog = [
        json.dumps({"op": "+I", "data": order(1, note="a")}),
        json.dumps({"op": "-U", "data": order(1, note="a")}),
        json.dumps({"op": "+U", "data": order(2, note="b")}),
    ]
    ingest(table, changelog, format_name="changelog-json")
    assert state_of(table) == {2: ("EU", "b")}
    typed = pa.Table.from_pylist([order(2), order(3, note="c")], schema=ORDERS)
    typed = typed.append_column("op", pa.array(["d", "u"]))
    ingest(table, typed, format_name="upsert", kind_column="op")
    assert state_of(table) == {3: ("EU", "c")}


def test_append_goes_straight_to_main_without_deletes(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    rows = pa.Table.from_pylist([order(1), order(2)], schema=ORDERS)
    result = ingest(table, rows, format_name="append", branch="main")
    assert result.files == (1, 0)
    assert state_of(table, "main") == {1: ("EU", None), 2: ("EU", None)}


@pytest.mark.parametrize(
    ("branch", "options", "message"),
    [
        ("main", {}, "cannot stage on the published branch"),
        ("staging", {"on_bad_record": "skip"}, "wrong value of option 'on-bad-record'"),
        ("staging", {"dead_letter_table": "a.b"}, "no effect without on-bad-record=dead-letter"),
        (
            "staging",
            {"on_bad_record": "dead-letter", "dead_letter_table": "x"},
            "not a table name",
        ),
        (
            "staging",
            {"on_bad_record": "dead-letter", "dead_letter_table": "shop.orders"},
            r"cannot take bad records: .*table=shop\.orders",
        ),
        ("staging", {"shards": "0"}, "wrong value of option 'shards'"),
        ("staging", {"sequence": "a..b"}, "not a sequence field"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    catalog: TableCatalog, branch: str, options: dict[str, str], message: str
) -> None:
    table = create_orders(catalog)
    with pytest.raises(InvalidInputError, match=message):
        ingest(table, [envelope("c", after=order(1))], branch=branch, **options)
    assert not table.refresh().state.metadata.snapshots


def test_unknown_table_is_not_found(catalog: TableCatalog) -> None:
    with pytest.raises(NotFoundError):
        write_changes(catalog.environment, ("shop", "none"), events_table([]))


def test_column_that_json_cannot_carry_is_refused_up_front(catalog: TableCatalog) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("m", pa.map_(pa.string(), pa.string())),
        ]
    )
    catalog.create_table("shop.maps", schema, primary_key=["id"])
    with pytest.raises(UnsupportedError, match="column=m"):
        write_changes(catalog.environment, ("shop", "maps"), events_table([]))


def test_files_are_read_in_order_resumed_and_positions_name_file_and_line(
    catalog: TableCatalog, tmp_path: Path
) -> None:
    table = create_orders(catalog)
    lines = [envelope("c", after=order(n % 7, note=str(n))) for n in range(100)]
    for number in range(4):
        part = "\n".join(lines[number * 25 : number * 25 + 25]) + "\n"
        (tmp_path / f"{number}.jsonl").write_text(part)
    (tmp_path / "4.jsonl").write_text("{broken\n")
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name="debezium-json",
        options={},
        branch="staging",
    )
    paths = sorted(tmp_path.glob("*.jsonl"))
    seen: list[IngestResult] = []
    with pytest.raises(InvalidInputError, match=r"position=4.jsonl:1"):
        seen.extend(ingest_files(plan, paths, query_id="files", batch_events=10))
    assert [result.events for result in seen] == [10, 10, 5] * 4
    assert state_of(table) == {n % 7: ("EU", str(n)) for n in range(93, 100)}
    (tmp_path / "4.jsonl").write_text(envelope("d", before=order(0)) + "\n")
    again = ingest_files(plan, paths, query_id="files", batch_events=10)
    assert [result.repeated for result in again] == [True] * 12 + [False]
    assert 0 not in state_of(table)


def test_files_stop_where_the_table_has_gone_back_and_the_next_run_brings_what_is_missing(
    catalog: TableCatalog, tmp_path: Path
) -> None:
    table = create_orders(catalog)
    paths = [tmp_path / f"{number}.jsonl" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_text(envelope("c", after=order(number)) + "\n")
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name="debezium-json",
        options={},
        branch="staging",
    )
    results = ingest_files(plan, paths, query_id="files")
    heads = []
    for _ in range(3):
        next(results)
        heads.append(table.refresh().state.ref("staging").snapshot_id)
    table.refs.replace("staging", to=heads[0], expected_head=heads[-1])  # a backup is restored
    with pytest.raises(FencedError, match=r"no longer has batch 2 .* run it again"):
        next(results)
    assert state_of(table.refresh()).keys() == {0}
    again = [result.repeated for result in ingest_files(plan, paths, query_id="files")]
    assert again == [True] + [False] * 4
    assert state_of(table.refresh()).keys() == set(range(5))


def test_parquet_files_are_read_as_typed_rows(catalog: TableCatalog, tmp_path: Path) -> None:
    table = create_orders(catalog)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([order(1), order(2)], schema=ORDERS), path)
    plan = plan_sink(
        table.environment, table.identifier, format_name="upsert", options={}, branch="staging"
    )
    list(ingest_files(plan, [path]))
    assert state_of(table) == {1: ("EU", None), 2: ("EU", None)}
    with pytest.raises(InvalidInputError, match="cannot read events"):
        list(ingest_files(plan, [tmp_path / "missing.parquet"]))


def test_years_far_away_in_int96_are_typed_rows_as_they_are(
    catalog: TableCatalog, tmp_path: Path
) -> None:
    rows = pa.table({"id": [1], "at": pa.array([dt.datetime(9999, 12, 31)], pa.timestamp("us"))})
    table = catalog.create_table("shop.far", rows.schema, primary_key=["id"])
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True)
    plan = plan_sink(
        table.environment, table.identifier, format_name="upsert", options={}, branch="staging"
    )
    list(ingest_files(plan, [path]))
    staged = table.refresh().scan(branch="staging").to_arrow()
    assert staged.column("at").to_pylist() == [dt.datetime(9999, 12, 31)]


@pytest.mark.parametrize("format_name", ["upsert", "append"])
def test_lines_read_as_typed_rows_are_told_what_to_do(catalog, tmp_path, format_name) -> None:
    table = create_orders(catalog)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n')
    plan = plan_sink(
        table.environment, table.identifier, format_name=format_name, options={}, branch="staging"
    )
    with pytest.raises(InvalidInputError, match="typed columns; write them as Parquet"):
        list(ingest_files(plan, [path]))


def test_bad_row_of_a_parquet_file_is_found_by_its_number_in_the_file(
    catalog: TableCatalog, tmp_path: Path
) -> None:
    table = create_orders(catalog)
    rows = pa.Table.from_pylist([{**order(n), "op": "u"} for n in range(30)])
    kinds = ["u"] * 30
    kinds[23] = "oops"
    path = tmp_path / "rows.parquet"
    pq.write_table(rows.drop(["op", "amount", "at"]).append_column("op", pa.array(kinds)), path)
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name="upsert",
        options={"kind-column": "op"},
        branch="staging",
    )
    with pytest.raises(
        InvalidInputError, match=r"'oops' is not a row kind; position=rows.parquet:24"
    ):
        list(ingest_files(plan, [path], batch_events=10))
    assert set(state_of(table)) == set(range(20))


def test_partition_spec_added_during_a_batch_refuses_its_scoped_deletes(
    catalog: TableCatalog,
) -> None:
    table = create_orders(catalog, partition_by=["bucket(3, id)"])
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name="debezium-json",
        options={},
        branch="staging",
    )
    state = table.refresh().state
    table.environment.catalog.commit(state, [AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=1))])
    events = events_table([envelope("c", after=order(1))])
    for batch in (None, BatchId("q", 0)):
        with pytest.raises(CommitConflictError, match="new partition spec while the batch"):
            write_batch(plan, events, batch)
    write_batch(plan.refreshed(), events, BatchId("q", 0))
    assert state_of(table) == {1: ("EU", None)}
    [file] = files_of(table, FileContent.EQUALITY_DELETES)
    assert file.partition == ()


def test_column_name_of_our_own_is_refused(catalog: TableCatalog) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("_file", pa.string())])
    catalog.create_table("shop.own", schema, primary_key=["id"])
    with pytest.raises(UnsupportedError, match="column=_file"):
        write_changes(catalog.environment, ("shop", "own"), events_table([]))


def test_plan_stays_as_long_as_the_table_does(catalog: TableCatalog) -> None:
    table = create_orders(catalog)
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name="debezium-json",
        options={},
        branch="staging",
    )
    assert plan.refreshed() is plan
    ingest(table, [envelope("c", after=order(1))])
    assert plan.refreshed() is plan


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("partition_by", [[], ["region"], ["bucket(3, id)"]])
def test_random_events_in_random_batches_fold_like_a_dict(
    catalog: TableCatalog, seed: int, partition_by: list[str]
) -> None:
    source = random.Random(seed)
    table = create_orders(catalog, partition_by=partition_by)
    state: dict[int, tuple[str, str | None]] = {}
    lsn = 0
    for _ in range(6):
        batch = []
        for _ in range(source.randrange(30)):
            lsn += 1
            key, region = source.randrange(8), source.choice(["EU", "US"])
            new = order(key, region=region, note=str(lsn))
            if key in state and source.random() < 0.3:
                batch.append(envelope("d", before=order(key), lsn=lsn))
                del state[key]
            elif key in state and source.random() < 0.3:
                free = 100 + lsn
                moved = new | {"id": free}
                batch.append(envelope("u", before=order(key), after=moved, lsn=lsn))
                del state[key]
                state[free] = (region, str(lsn))
            else:
                batch.append(envelope("u" if key in state else "c", after=new, lsn=lsn))
                state[key] = (region, str(lsn))
        source.shuffle(batch)
        if batch:
            ingest(table, batch, sequence="source.lsn")
            assert state_of(table) == state


def test_first_flights_of_the_year_fold_like_plain_dicts(
    catalog: TableCatalog, tmp_path: Path
) -> None:
    write_flight_events(tmp_path, files=4, limit=1500)
    table = catalog.create_table("nyc.flights", flights_schema(), primary_key=KEY)
    options = {"sequence": "source.lsn"}
    order_by = [(name, "ascending") for name in KEY]
    for path, state in iter_flight_folds(tmp_path):
        plan = plan_sink(
            table.environment,
            table.identifier,
            format_name="debezium-json",
            options=options,
            branch="staging",
        )
        list(ingest_files(plan, [path]))
        rows = table.scan(branch="staging").to_arrow()
        expected = state_table(state)
        assert (
            rows.select(expected.column_names)
            .sort_by(order_by)
            .cast(expected.schema)
            .equals(expected.sort_by(order_by))
        )


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_batch_larger_than_every_count_is_the_whole_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"events{suffix}"
    if suffix == ".jsonl":
        path.write_text("{}\n{}\n")
    else:
        pq.write_table(pa.table({"value": ["{}", "{}"]}), path)
    [events] = read_events(path, 10**20)
    assert events.num_rows == 2
