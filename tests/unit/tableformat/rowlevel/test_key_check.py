"""A statement gives no primary key a second row. The oracle is a plain list of rows."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from resolver import build_index, resolve
from tableformat import open_catalog
from tableformat.errors import CommitConflictError, InvalidInputError
from tests.support.another_tool import set_unchecked
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
MODES = ["merge-on-read", "copy-on-write"]
TURNED_OFF = {"icefold.sql.check-primary-key": "false"}
BOTH = pytest.mark.parametrize("indexed", [False, True], ids=["scan", "index"])


def make(tmp_path, *, rows=10, key=("id",), by=(), properties=None, schema=SCHEMA):
    catalog = memory_catalog(index_directory=str(tmp_path))
    table = catalog.create_table(
        "t.rows", schema, primary_key=[*key], partition_by=[*by], properties=properties or {}
    )
    regions = ["EU", "US"]
    made = [{"id": i, "region": regions[i % 2], "amount": 10 * i} for i in range(rows)]
    for start in range(0, rows, 4):
        table.append(pa.Table.from_pylist(made[start : start + 4], schema=schema))
    return table


def index(table) -> None:
    build_index(table)


def stored(table) -> list[tuple]:
    return sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


def objects(table) -> set[str]:
    listed = table.environment.store.list_prefix(table.state.metadata.location)
    return {each.location for each in listed}


@BOTH
@pytest.mark.parametrize("mode", MODES)
def test_update_to_a_key_that_another_row_has_is_refused_before_anything_lands(
    tmp_path, mode, indexed
) -> None:
    table = make(tmp_path)
    if indexed:
        index(table)
    before, files, head = stored(table), objects(table), table.state.metadata_location
    with pytest.raises(InvalidInputError) as caught:
        table.update({"id": "6"}, "id = 7", mode=mode)
    text = str(caught.value)
    assert "id=6" in text
    assert "keys=1" in text
    assert "icefold.sql.check-primary-key" in text
    assert "\n" not in text
    assert (stored(table), objects(table)) == (before, files)
    assert table.refresh().state.metadata_location == head


@pytest.mark.parametrize("mode", MODES)
def test_update_that_gives_one_key_to_many_rows_is_refused(tmp_path, mode) -> None:
    table = make(tmp_path)
    with pytest.raises(InvalidInputError, match=r"id=77.*keys=1"):
        table.update({"id": "77"}, "id < 3", mode=mode)


@BOTH
def test_the_error_says_how_many_keys_and_one_of_them(tmp_path, indexed) -> None:
    table = make(tmp_path)
    if indexed:
        index(table)
    with pytest.raises(InvalidInputError, match=r"key=id=\d, .*keys=4"):
        table.update({"id": "id + 1"}, "id IN (2, 4, 6, 8)")


@BOTH
@pytest.mark.parametrize("mode", MODES)
def test_keys_may_shift_swap_and_take_the_place_of_rows_that_go(tmp_path, mode, indexed) -> None:
    table = make(tmp_path)
    if indexed:
        index(table)
    table.delete("id = 5")
    table.update({"id": "5"}, "id = 4", mode=mode)
    table.update({"id": "id + 1"}, "id >= 0", mode=mode)
    table.update({"id": "11 - id"}, "id IN (1, 10)", mode=mode)  # a swap
    table.update({"id": "id", "amount": "1"}, "id = 3", mode=mode)
    expected = [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert [row[0] for row in stored(table)] == expected
    assert {row[0]: row[2] for row in stored(table)}[1] == 90


@pytest.mark.parametrize("mode", MODES)
def test_row_that_moves_to_another_partition_keeps_its_key(tmp_path, mode) -> None:
    table = make(tmp_path, by=["region"])
    assert table.update({"region": "'EU'"}, "id = 7", mode=mode).updated_rows == 1
    with pytest.raises(InvalidInputError, match="id=6"):  # a key is one of the whole table
        table.update({"id": "6", "region": "'MOON'"}, "id = 7", mode=mode)


@pytest.mark.parametrize("column", ["id", "region"])
@pytest.mark.parametrize("mode", MODES)
@BOTH
def test_no_row_gets_a_key_that_is_null(tmp_path, indexed, mode, column) -> None:
    """Also not the first one, which no other row has."""
    table = make(tmp_path, key=("id", "region"))
    if indexed:
        index(table)
    before, files = stored(table), objects(table)
    says = f"required column holds nulls; column={column}"
    with pytest.raises(InvalidInputError, match=says) as caught:
        table.update({column: "NULL"}, "id = 6", mode=mode)
    assert "\n" not in str(caught.value)
    assert (stored(table), objects(table.refresh())) == (before, files)


def test_composite_keys_are_compared_as_a_whole(tmp_path) -> None:
    table = make(tmp_path, key=("id", "region"), by=["region"])
    table.update({"id": "6"}, "id = 7")  # (6, US) beside (6, EU)
    with pytest.raises(InvalidInputError, match="id=6, region='EU'"):
        table.update({"region": "'EU'"}, "id = 6 AND region = 'US'")


@pytest.mark.spark
def test_keys_inside_structs_are_checked(spark, tmp_path) -> None:
    kind = pa.struct([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
    schema = pa.schema([pa.field("k", kind, nullable=False), pa.field("n", pa.int64())])
    catalog = open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("t.rows", schema, primary_key=["k.id"])
    rows = [{"k": {"id": i, "note": "x"}, "n": i} for i in (1, 2)]
    table.append(pa.Table.from_pylist(rows, schema=schema))
    table.update({"k.note": "'z'"}, "k.id = 2", spark=spark)
    table.update({"k.id": "3 - k.id"}, spark=spark)
    with pytest.raises(InvalidInputError, match=r"k\.id=1"):
        table.update({"k.id": "1"}, "n = 1", spark=spark)


def test_keys_that_had_several_rows_may_keep_as_many(tmp_path) -> None:
    table = make(tmp_path)
    table.append(pa.table({"id": [3], "region": ["EU"], "amount": [0]}, schema=SCHEMA))
    table.update({"id": "id", "amount": "5"}, "id = 3")
    assert [row for row in stored(table) if row[0] == 3] == [(3, "EU", 5), (3, "US", 5)]
    with pytest.raises(InvalidInputError, match="id=3"):
        table.update({"id": "3"}, "id = 4")


def test_property_turns_the_check_off_and_must_be_true_or_false(tmp_path) -> None:
    table = make(tmp_path, properties=TURNED_OFF)
    table.update({"id": "6"}, "id = 7")
    assert [row[0] for row in stored(table)].count(6) == 2
    set_unchecked(table, {"icefold.sql.check-primary-key": "maybe"})
    with pytest.raises(InvalidInputError, match="neither true nor false"):
        table.update({"id": "6"}, "id = 8")


def test_statement_that_writes_no_key_reads_nothing_more(tmp_path) -> None:
    """The same objects are read with the check as without it."""
    reads = []
    for properties in ({}, TURNED_OFF):
        table = make(tmp_path / str(len(reads)), properties=properties)
        count = [0]
        store, opened = table.environment.store, table.environment.store.open_input
        store.open_input = lambda at, o=opened, c=count: c.__setitem__(0, c[0] + 1) or o(at)
        table.update({"amount": "amount + 1"}, "id < 6")
        table.delete("id = 9")
        reads.append(count[0])
    assert reads[0] == reads[1]


def land_before(table, phase, change) -> None:
    armed = table.environment.runtime.fail_points.armed

    def land(_: str) -> None:
        armed.pop(phase, None)
        change()

    armed[phase] = land


PHASES = ("rowlevel.after_scan", "rowlevel.before_commit", "commit.before_swap")


@BOTH
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", ["append", "publish"])
def test_the_same_key_landing_in_between_is_a_conflict(
    tmp_path, how, phase, isolation, indexed
) -> None:
    table = make(tmp_path, properties={"write.update.isolation-level": isolation})
    if indexed:
        index(table)
    other = pa.table({"id": [66, 67], "region": ["US", "EU"], "amount": [1, 2]}, schema=SCHEMA)

    def change() -> None:
        mine = type(table)(table.environment, table.state)
        if how == "append":
            mine.append(other)
        else:
            mine.stage(upserts=other)
            resolve(mine, engine="local")

    land_before(table, phase, change)
    with pytest.raises(CommitConflictError, match=r"id=66.*keys=1"):
        table.update({"id": "66"}, "id = 3")
    assert [row[0] for row in stored(table)] == [*range(10), 66, 67]
    # Planned again, the key is simply taken.
    with pytest.raises(InvalidInputError, match="id=66"):
        table.update({"id": "66"}, "id = 3", retries=2)


def test_other_keys_landing_in_between_are_no_conflict(tmp_path) -> None:
    table = make(tmp_path)
    other = pa.table({"id": [64, 65], "region": ["US", "EU"], "amount": [1, 2]}, schema=SCHEMA)

    def change() -> None:
        mine = type(table)(table.environment, table.state)
        mine.append(other)
        mine.update_schema(lambda s: s.rename_column("id", "key"))

    land_before(table, "commit.before_swap", change)
    table.update({"id": "66"}, "id = 3")
    assert sorted(table.scan().to_arrow()["key"].to_pylist()) == [
        0,
        1,
        2,
        *range(4, 10),
        64,
        65,
        66,
    ]


def test_key_column_widened_in_between_is_compared_by_value(tmp_path) -> None:
    schema = pa.schema([("id", pa.int32()), ("region", pa.string()), ("amount", pa.int64())])
    table = make(tmp_path, schema=schema)

    def change() -> None:
        mine = type(table)(table.environment, table.state)
        mine.update_schema(lambda s: s.update_column("id", LongType()))
        mine.append(pa.table({"id": [66], "region": ["EU"], "amount": [1]}, schema=SCHEMA))

    land_before(table, "rowlevel.before_commit", change)
    with pytest.raises(CommitConflictError, match="id=66"):
        table.update({"id": "66"}, "id = 3")


def test_branches_are_checked_by_their_own_rows(tmp_path) -> None:
    table = make(tmp_path)
    table.refs.create_branch("audit")
    table.append(pa.table({"id": [66], "region": ["EU"], "amount": [1]}, schema=SCHEMA))
    table.update({"id": "66"}, "id = 3", branch="audit")
    with pytest.raises(InvalidInputError, match="id=66"):
        table.update({"id": "66"}, "id = 3")


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("mode", MODES)
def test_random_updates_of_keys_are_refused_exactly_when_the_rows_say_so(
    tmp_path, mode, indexed
) -> None:
    draw = random.Random(7)
    table = make(tmp_path, rows=24)
    rows = {row[0]: row for row in stored(table)}
    refused = 0
    for step in range(60):
        low, more = draw.randrange(30), draw.choice([-9, -1, 0, 1, 2, 15])
        high = low + draw.randrange(1, 6)
        if indexed and step % 10 == 0:
            index(table)
        after = Counter(key + more if low <= key < high else key for key in rows)
        try:
            table.update({"id": f"id + {more}"}, f"id >= {low} AND id < {high}", mode=mode)
        except InvalidInputError:
            refused += 1
            assert max(after.values()) > 1
        else:
            assert max(after.values(), default=0) <= 1
            rows = {(key + more if low <= key < high else key): row for key, row in rows.items()}
        assert [row[0] for row in stored(table)] == sorted(rows)
    assert 5 < refused < 55


@pytest.fixture
def spark_table(tmp_path):
    catalog = open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    for first in (0, 4):
        rows = [{"id": i, "region": "EU", "amount": i} for i in range(first, first + 4)]
        table.append(pa.Table.from_pylist(rows, schema=SCHEMA))
    return table


def source(*keys: int) -> pa.Table:
    rows = [{"id": key, "region": "S", "amount": -1} for key in keys]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.mark.spark
@BOTH
@pytest.mark.parametrize("mode", MODES)
def test_spark_swaps_keys_and_refuses_to_repeat_one(spark, spark_table, mode, indexed) -> None:
    if indexed:
        index(spark_table)
    swap = {"id": "CASE id WHEN 1 THEN 6 WHEN 6 THEN 1 ELSE id END"}
    spark_table.update(swap, "id IN (1, 6)", spark=spark, mode=mode)
    assert {row[0]: row[2] for row in stored(spark_table)} == {
        **{key: key for key in range(8)}, 1: 6, 6: 1,
    }  # fmt: skip
    before = stored(spark_table)
    with pytest.raises(InvalidInputError, match=r"id=6.*keys=1"):
        spark_table.update({"id": "abs(-6)"}, "id = 7", spark=spark, mode=mode)
    assert stored(spark_table) == before


@pytest.mark.spark
@BOTH
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("keys", "on", "clause", "wrong"),
    [
        ((9, 9), "t.id = s.id", "WHEN NOT MATCHED THEN INSERT *", "id=9"),
        ((3, 9), "t.id = s.id AND t.amount > 100", "WHEN NOT MATCHED THEN INSERT *", "id=3"),
        ((3,), "t.id = s.id", "WHEN MATCHED THEN UPDATE SET id = t.id + 1", "id=4"),
        ((3, 9), "t.id = s.id", "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET id = 3", "id=3"),
    ],
)
def test_merge_that_repeats_a_key_is_refused_before_anything_lands(
    spark, spark_table, keys, on, clause, wrong, mode, indexed
) -> None:
    if indexed:
        index(spark_table)
    before, files = stored(spark_table), objects(spark_table)
    with pytest.raises(InvalidInputError, match=wrong):
        spark_table.merge(source(*keys), on, [clause], spark=spark, mode=mode)
    assert (stored(spark_table), objects(spark_table)) == (before, files)


@pytest.mark.spark
@BOTH
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("keys", "clause"),
    [
        # A null matches no row, so that of the source is one to insert.
        ((3, None), "WHEN NOT MATCHED THEN INSERT *"),
        ((None, None), "WHEN NOT MATCHED THEN INSERT *"),
        ((3,), "WHEN MATCHED THEN UPDATE SET id = nullif(t.id, 3)"),
    ],
)
def test_merge_gives_no_row_a_key_that_is_null(
    spark, spark_table, keys, clause, mode, indexed
) -> None:
    if indexed:
        index(spark_table)
    before = stored(spark_table)
    rows = pa.Table.from_pylist([{"id": k, "region": "S", "amount": -1} for k in keys], SCHEMA)
    with pytest.raises(InvalidInputError, match="column=id"):
        spark_table.merge(rows, "t.id = s.id", [clause], spark=spark, mode=mode)
    assert stored(spark_table) == before


@pytest.mark.spark
@pytest.mark.parametrize("mode", MODES)
def test_merge_may_hand_a_key_from_a_row_that_goes_to_one_that_comes(
    spark, spark_table, mode
) -> None:
    clauses = [
        "WHEN MATCHED AND t.id < 4 THEN UPDATE SET *",
        "WHEN MATCHED THEN UPDATE SET id = t.id + 100",
        "WHEN NOT MATCHED THEN INSERT (id, region, amount) VALUES (s.id - 92, s.region, s.amount)",
    ]
    spark_table.merge(source(2, 5, 97), "t.id = s.id", clauses, spark=spark, mode=mode)
    expected = {**{key: key for key in range(8)}, 2: -1, 105: 5, 5: -1}
    assert {row[0]: row[2] for row in stored(spark_table)} == expected


@pytest.mark.spark
def test_insert_of_a_merge_conflicts_with_the_same_key_landing_in_between(
    spark, spark_table
) -> None:
    spark_table.set_properties({"write.merge.isolation-level": "snapshot"})
    land_before(
        spark_table,
        "commit.before_swap",
        lambda: type(spark_table)(spark_table.environment, spark_table.state).append(source(9)),
    )
    clauses = ["WHEN NOT MATCHED THEN INSERT *"]
    with pytest.raises(CommitConflictError, match="id=9"):
        spark_table.merge(source(9), "t.id = s.id", clauses, spark=spark)
    assert [row[0] for row in stored(spark_table)] == [*range(8), 9]
    clauses += ["WHEN MATCHED THEN UPDATE SET *"]
    spark_table.merge(source(9), "t.id = s.id", clauses, spark=spark)
