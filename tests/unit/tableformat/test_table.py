"""The facade, as README's reader uses it, on SQLite and local files."""

from collections import Counter
from types import ModuleType

import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

import lock
import resolver
import tableformat as tf
from maintenance import expire
from maintenance.tasks.options import ExpireOptions
from resolver import resolve
from tableformat.commit.expiry_plan import ExpiryPolicy

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])


@pytest.fixture
def catalog(tmp_path):
    return tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))


@pytest.fixture
def orders(catalog):
    table = catalog.create_table("shop.orders", SCHEMA, primary_key=["id"], partition_by=["region"])
    table.append(rows((1, "eu"), (2, "us"), (3, "us")))
    return table


def rows(*values):
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, value, strict=True)) for value in values], SCHEMA
    )


def content(table, **scan):
    return Counter(tuple(row.values()) for row in table.scan(**scan).to_arrow().to_pylist())


@pytest.mark.parametrize("package", [tf, resolver, lock], ids=lambda p: p.__name__)
def test_all_names_are_exported(package):
    names = {name for name, value in vars(package).items() if not isinstance(value, ModuleType)}
    public = sorted(name for name in names if not name.startswith("_") and name != "annotations")
    assert package.__all__ == public


def test_table_is_found_again_by_another_process_s_catalog(orders, tmp_path):
    again = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    assert again.list_tables() == again.list_tables("shop") == ["shop.orders"]
    assert content(again.load_table("shop.orders")) == content(orders)
    assert again.load_table("shop.orders").primary_key == ("id",)


def test_key_columns_become_required(orders):
    assert orders.schema().find_field("id").required
    assert not orders.schema().find_field("region").required


def test_scan_sees_the_newest_version_and_keeps_it(orders):
    scan = orders.scan()
    orders.append(rows((4, "eu")))
    assert scan.to_arrow().num_rows == 3
    assert orders.scan().to_arrow().num_rows == 4


def test_overwrite_by_filter_replaces_what_matches(orders):
    orders.overwrite(rows((9, "us")), filter="region = 'us'")
    assert content(orders) == Counter([(1, "eu"), (9, "us")])


def test_overwrite_by_filter_refuses_rows_outside_of_it_and_changes_nothing(orders):
    with pytest.raises(tf.InvalidInputError, match="may not match"):
        orders.overwrite(rows((9, "eu")), filter="region = 'us'")
    assert content(orders) == Counter([(1, "eu"), (2, "us"), (3, "us")])


def test_overwrite_without_filter_replaces_the_partitions_of_its_rows(orders):
    orders.overwrite(rows((9, "eu")))
    assert content(orders) == Counter([(9, "eu"), (2, "us"), (3, "us")])


def test_branches_tags_and_rollback(orders):
    first = orders.state.head("main").snapshot_id
    orders.refs.create_tag("before")
    orders.refs.create_branch("audit")
    orders.append(rows((4, "eu")), branch="audit")
    assert content(orders) == content(orders, tag="before")
    assert content(orders, branch="audit")[(4, "eu")] == 1
    orders.refs.fast_forward("main", to="audit")
    assert content(orders)[(4, "eu")] == 1
    orders.refs.rollback(snapshot_id=first)
    assert content(orders) == content(orders, tag="before")
    orders.refs.cherry_pick(snapshot_id=orders.state.head("audit").snapshot_id)
    assert content(orders)[(4, "eu")] == 1
    orders.refs.drop("audit")
    with pytest.raises(tf.NotFoundError):
        orders.scan(branch="audit")


def test_evolution_keeps_old_rows_readable_and_resolvable(orders):
    orders.update_schema(lambda s: s.add_column("note", StringType()))
    orders.update_partitioning(lambda s: s.add_field("note", IdentityTransform()))
    orders.set_properties({"icefold.dv-placement": "per-file"})
    noted = pa.table({"id": [2], "region": ["us"], "note": ["moved"]})
    orders.stage(upserts=noted, deletes=pa.table({"id": [1]}))
    resolve(orders)
    assert content(orders) == Counter([(2, "us", "moved"), (3, "us", None)])


def test_expiry_keeps_staged_work(orders):
    for number in range(3):
        orders.stage(upserts=rows((10 + number, "eu")))
    before = len(orders.state.metadata.snapshots)
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    expire(orders, ExpireOptions(policy=policy))
    assert len(orders.state.metadata.snapshots) <= before
    assert resolve(orders).staged_snapshots == 3
    expire(orders, ExpireOptions(policy=policy))
    assert len(orders.state.metadata.snapshots) < before
    assert content(orders) == Counter(
        [(1, "eu"), (2, "us"), (3, "us"), (10, "eu"), (11, "eu"), (12, "eu")]
    )
    orders.stage(upserts=rows((10, "us")))
    resolve(orders)
    assert content(orders)[(10, "us")] == 1


@pytest.mark.parametrize(
    ("partition_by", "message"),
    [
        (["nope"], "unknown column"),
        (["month(id)"], "cannot take"),
        (["bucket(0, id)"], "not a partition transform"),
        (["bucket(id)"], "not a partition transform"),
        (["weekly(id)"], "not a partition transform"),
        (["region", "region"], "same name"),
        ([""], "not a partition transform"),
    ],
)
def test_wrong_partitioning_is_refused(catalog, partition_by, message):
    with pytest.raises(tf.InvalidInputError, match=message):
        catalog.create_table("a.b", SCHEMA, primary_key=["id"], partition_by=partition_by)
    assert catalog.list_tables() == []


@pytest.mark.parametrize(
    ("schema", "key", "message"),
    [
        (SCHEMA, [], "needs a primary key"),
        (SCHEMA, ["nope"], "unknown column"),
        (SCHEMA, ["id", "id"], "twice"),
        (pa.schema([("x", pa.float32())]), ["x"], "float"),
        (pa.schema([("x", pa.list_(pa.int32()))]), ["x"], "primitive"),
        (pa.schema([("x", pa.list_(pa.int32()))]), ["x.element"], "list or a map"),
        (pa.schema([("x", pa.int32()), ("X", pa.int32())]), ["x"], "distinct"),
        (pa.schema([]), ["x"], "at least one column"),
    ],
)
def test_wrong_schema_or_key_is_refused(catalog, schema, key, message):
    with pytest.raises(tf.InvalidInputError, match=message):
        catalog.create_table("a.b", schema, primary_key=key)


def test_nested_key_column_makes_its_struct_required(catalog):
    schema = pa.schema([("k", pa.struct([("a", pa.int64()), ("b", pa.string())]))])
    table = catalog.create_table("a.b", schema, primary_key=["k.a"])
    assert table.primary_key == ("k.a",)
    assert table.schema().find_field("k").required
    assert not table.schema().find_field("k.b").required


@pytest.mark.parametrize("write", ["append", "overwrite", "stage", "upsert"])
def test_rows_that_are_no_table_are_refused_in_one_line(catalog, write):
    table = catalog.create_table("s.rows", pa.schema([("id", pa.int64())]), primary_key=["id"])
    for wrong in ([{"id": 1}], {"id": [1]}, 7):
        with pytest.raises(tf.InvalidInputError, match="rows are an Arrow table") as refused:
            getattr(table, write)(wrong)
        assert "\n" not in str(refused.value)
    assert table.refresh().snapshots() == []


@pytest.mark.parametrize("write", ["append", "overwrite", "stage", "upsert"])
@pytest.mark.parametrize("form", ["table", "batch", "reader", "polars", "pandas"])
def test_rows_are_taken_in_any_of_arrows_forms(catalog, write, form):
    table = catalog.create_table("s.rows", pa.schema([("id", pa.int64())]), primary_key=["id"])
    rows = pa.table({"id": [1, 2]})
    forms = {
        "table": lambda: rows,
        "batch": lambda: rows.to_batches()[0],
        "reader": rows.to_reader,
        "polars": lambda: pytest.importorskip("polars").from_arrow(rows),
        "pandas": rows.to_pandas,
    }
    getattr(table, write)(forms[form]())
    branch = "staging" if write == "stage" else "main"
    assert sorted(table.scan(branch=branch).to_arrow()["id"].to_pylist()) == [1, 2]


def test_change_events_are_anything_with_arrows_stream_or_refused(orders):
    changes = rows((4, "eu"), (5, "us"))
    [batch] = changes.to_batches()
    assert orders.write_changes(batch).events == 2
    with pytest.raises(tf.InvalidInputError, match="rows are an Arrow table, or a frame"):
        orders.write_changes(changes.to_pylist())
