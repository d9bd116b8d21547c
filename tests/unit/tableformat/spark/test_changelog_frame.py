"""The same changes from Spark's tasks as from the Arrow reader."""

from collections import Counter

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat import open_catalog
from tableformat.errors import UnsupportedError
from tests.support.memory_tables import memory_catalog

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.timestamp("us", "UTC")),
        ("props", pa.map_(pa.string(), pa.int32())),
    ]
)


def rows(keys, version):
    return pa.Table.from_pylist(
        [
            {
                "id": key,
                "region": ["eu", None][key % 2],
                "tags": [str(version)] if key % 3 else None,
                "at": 1_700_000_000_000_000 + version,
                "props": [("v", version)],
            }
            for key in keys
        ],
        SCHEMA,
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    catalog = open_catalog("local", warehouse=str(tmp_path_factory.mktemp("warehouse")))
    made = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    made.append(rows(range(50), 0))
    made.start = made.state.head("main").snapshot_id
    made.stage(rows(range(10, 20), 1), pa.table({"id": pa.array([1, 2], pa.int64())}))
    resolve(made)
    made.append(rows(range(100, 110), 2))
    made.stage(rows([10, 11, 200], 3))
    resolve(made)
    made.update_schema(lambda s: s.rename_column("region", "country"))
    return made


def counted(frame):
    return Counter(tuple(map(plain, row)) for row in frame.collect())


def expected(changes):
    return Counter(
        tuple(map(plain, row))
        for row in zip(*(c.to_pylist() for c in changes.to_arrow().columns), strict=True)
    )


def plain(value):
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    if isinstance(value, list):
        return tuple(value)
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


@pytest.mark.parametrize("net", [False, True])
@pytest.mark.parametrize("columns", [None, ["country"], ["at", "_row_id"]])
def test_spark_gives_the_changes_of_the_arrow_reader(spark, table, net, columns):
    changes = table.changes(table.start, net=net, columns=columns)
    frame = changes.to_spark(spark)
    assert frame.columns == changes.arrow_schema().names
    assert counted(frame) == expected(changes)


def test_going_back_and_starting_from_nothing_work_alike(spark, table):
    for changes in (
        table.changes(None, net=True, filter="id < 15"),
        table.changes("main", table.start),
    ):
        assert counted(changes.to_spark(spark)) == expected(changes)


def test_no_changes_are_an_empty_frame(spark, table):
    frame = table.changes("main").to_spark(spark)
    assert frame.columns == table.changes("main").arrow_schema().names
    assert frame.count() == 0


def test_store_of_this_process_is_refused(spark, tmp_path):
    made = memory_catalog(str(tmp_path)).create_table("t.rows", SCHEMA, primary_key=["id"])
    made.append(rows([1], 0))
    with pytest.raises(UnsupportedError, match="cannot read from MemoryObjectStore"):
        made.changes(None).to_spark(spark)
