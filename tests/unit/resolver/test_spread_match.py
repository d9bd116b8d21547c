"""A large batch is matched by tasks that share an index: with the outcome of this process."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import resolver.batch_parts as batch_parts
import resolver.shard_match as shard_match
import tableformat as tf
from resolver import resolve
from resolver.index_check import verify
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.errors import CorruptDataError, FencedError
from tableformat.paths import equality_delete_locations
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.copied_index import paths_before_the_copy
from tests.support.task_runner import on_tasks

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("note", pa.string())])


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(batch_parts, "PART_KEYS", 8)
    return on_tasks(monkeypatch, tmp_path / "executors")


def rows(ids, note):
    ids = list(ids)
    values = [ids, [("eu", "us")[key % 2] for key in ids], [note] * len(ids)]
    return pa.table(values, schema=SCHEMA)


class Twins:
    """Two tables of one history, one for tasks and one for this process, and a dict."""

    def __init__(self, folder: Path, partition_by=()) -> None:
        catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"))
        self.warehouse = str(folder / "warehouse")
        self.index = f"{self.warehouse}/indexes"
        self.tables = [
            catalog.create_table(name, SCHEMA, primary_key=["id"], partition_by=partition_by)
            for name in ("t.tasks", "t.here")
        ]
        self.model: dict[int, tuple[int, str, str]] = {}

    def append(self, values) -> None:
        self._take(values)
        for table in self.tables:
            table.append(values)

    def stage(self, upserts, deletes=()) -> None:
        for key in deletes:
            self.model.pop(key, None)
        self._take(upserts)
        for table in self.tables:
            keys = pa.table({"id": pa.array(deletes, pa.int64())}) if len(deletes) else None
            table.stage(upserts=upserts, deletes=keys)

    def stage_scoped_deletes(self, ids) -> None:
        """Of another writer: each reaches the partition only that `rows` puts the key into."""
        for table in self.tables:
            metadata, environment = table.refresh().state.metadata, table.environment
            files = write_equality_deletes(
                environment.store,
                rows(ids, "gone"),
                schema=metadata.schema(),
                equality_ids=[metadata.schema().find_field("id").field_id],
                spec=metadata.spec(),
                properties=metadata.properties,
                location_for=equality_delete_locations(metadata, environment.runtime.ids),
            )
            changeset = Changeset(
                kind=CommitKind.ROW_DELTA,
                branch="staging",
                added_delete_files=tuple(files),
                validation=Validation(starting_snapshot_id=table.state.head_id("staging")),
            )
            commit(environment, table.identifier, changeset)

    def resolve(self):
        tasks, here = self.tables
        found = resolve(tasks, engine="spark", index_location=self.index)
        expected = resolve(here, engine="local", index_location=self.index)
        for table in self.tables:
            content = table.refresh().scan().to_arrow().to_pylist()
            assert sorted(tuple(row.values()) for row in content) == sorted(self.model.values())
        assert found.engine == "spark"
        for name in ("deleted_rows", "dvs", "data_files", "dropped_data_files", "staged_rows"):
            assert getattr(found, name) == getattr(expected, name), name
        assert found.equality_deletes == expected.equality_deletes
        return found

    def _take(self, values) -> None:
        self.model |= {row["id"]: tuple(row.values()) for row in values.to_pylist()}


def left_in(folder: str) -> list[Path]:
    return list(Path(folder).rglob("*.left"))


@pytest.mark.parametrize(
    ("partition_by", "share_keys"),
    [((), shard_match.SHARE_KEYS), (("bucket(2, id)",), 20), (("region",), 60)],
)
def test_cycles_by_tasks_equal_those_of_this_process(
    tmp_path, runner, partition_by, share_keys, monkeypatch
):
    monkeypatch.setattr("resolver.spread_match.SHARE_KEYS", share_keys)
    monkeypatch.setattr(shard_match, "CHUNK_ROWS", 12)
    runner.runs = 2  # speculation, an executor that died too late
    twins = Twins(tmp_path, partition_by)
    for start in range(0, 90, 30):
        twins.append(rows(range(start, start + 30), "base"))
    draw = random.Random(3)
    for cycle in range(2):
        for number in range(2):
            upserts = draw.sample(range(110), 20)
            deletes = sorted(set(draw.sample(range(110), 6)) - set(upserts))
            deletes = [] if "region" in partition_by else deletes
            twins.stage(rows(upserts, f"{cycle}.{number}"), deletes)
        report = twins.resolve()
        assert report.index == ("current" if cycle else "built")
    assert runner.tasks.count("write_group") == 2
    check = verify(twins.tables[0], index_location=twins.index)
    assert check.report.is_sound
    assert check.report.live_rows == len(twins.model)


@pytest.fixture
def twins(tmp_path, runner):
    twins = Twins(tmp_path)
    twins.append(rows(range(30), "base"))
    twins.stage(rows(range(10, 20), "new"), deletes=[1, 2])
    return twins


def puffins(twins) -> set[Path]:
    location = twins.tables[0].state.metadata.location.removeprefix("file://")
    return set(Path(location).rglob("*.puffin"))


def test_nothing_is_left_of_a_cycle(twins):
    twins.resolve()
    assert not left_in(twins.index)


def test_scoped_delete_reaches_its_partition_only(tmp_path, runner):
    twins = Twins(tmp_path, ("region",))
    twins.append(rows(range(10), "base"))
    elsewhere = pa.table([[20, 22], ["us", "us"], ["moved", "moved"]], schema=SCHEMA)
    twins.append(elsewhere)
    twins.stage(rows([1, 2, 3], "new"))
    twins.stage_scoped_deletes(range(4, 24))
    for key in range(4, 10):
        del twins.model[key]
    assert twins.resolve().deleted_rows == 9
    assert {20, 22} <= twins.model.keys()
    assert "write_group" in runner.tasks


def test_driver_gets_no_more_for_more_rows(twins, runner, monkeypatch):
    monkeypatch.setattr("resolver.spread_match.GROUP_KEYS", 1 << 40)
    twins.resolve()
    sizes = []
    for count in (2_000, 20_000):
        twins.stage(rows(range(count), f"all {count}"))
        runner.sizes_bytes.clear()
        resolve(twins.tables[0], engine="spark", index_location=twins.index)
        sizes.append(sum(runner.sizes_bytes))
    assert sizes[1] < 1.5 * sizes[0]


def test_append_of_others_meanwhile_is_matched_again(twins, runner):
    def append(_):
        del points.armed["resolve.after_dv_write"]
        others = tf.open_catalog("local", warehouse=twins.warehouse).load_table("t.tasks")
        others.append(rows([1, 50], "beside"))

    points = twins.tables[0].environment.runtime.fail_points
    points.armed["resolve.after_dv_write"] = append
    report = resolve(twins.tables[0], engine="spark", index_location=twins.index)
    assert report.attempts == 2
    content = twins.tables[0].refresh().scan().to_arrow().to_pylist()
    expected = {**twins.model, 50: (50, "eu", "beside")}
    assert sorted(tuple(row.values()) for row in content) == sorted(expected.values())
    assert len(puffins(twins)) == report.dvs > 0
    assert not left_in(twins.index)
    assert verify(twins.tables[0], index_location=twins.index).report.is_sound


def test_index_that_was_copied_before_paths_were_rewritten_is_built_anew(
    twins, runner, monkeypatch
):
    twins.resolve()
    twins.stage(rows([1000], "found by no key"))
    tasks, here = twins.tables
    with paths_before_the_copy(monkeypatch):
        resolve(tasks, engine="spark", index_location=twins.index, rebuild_index=True)
        resolve(here, engine="local", index_location=twins.index, rebuild_index=True)
    check = verify(tasks, index_location=twins.index)
    assert not check.report.is_sound
    twins.stage(rows(range(12, 22), "newer"), deletes=[3])
    runner.tasks.clear()
    assert twins.resolve().index == "built"
    assert "write_group" in runner.tasks, "it was matched by tasks"
    assert not left_in(twins.index)
    assert verify(tasks, index_location=twins.index).report.is_sound


def test_lost_publish_leaves_nothing(twins):
    def lose(_):
        raise FencedError("another one has published")

    table = twins.tables[0]
    table.environment.runtime.fail_points.armed["catalog.before_swap"] = lose
    with pytest.raises(FencedError):
        resolve(table, engine="spark", index_location=twins.index)
    assert not puffins(twins)
    assert not left_in(twins.index)


@pytest.mark.parametrize("point", ["resolve.after_match", "resolve.after_publish"])
def test_what_tasks_left_is_not_trusted_when_it_has_changed(twins, point):
    def rot(_):
        for path in left_in(twins.index):
            path.write_bytes(bytes(len(path.read_bytes())))

    table = twins.tables[0]
    points = table.environment.runtime.fail_points
    points.armed[point] = rot
    if point == "resolve.after_match":
        with pytest.raises(CorruptDataError, match="has changed"):
            resolve(table, engine="spark", index_location=twins.index)
    else:
        assert resolve(table, engine="spark", index_location=twins.index).deleted_rows == 12
    points.armed.clear()
    twins.stage(rows([3], "later"))
    resolve(table, engine="spark", index_location=twins.index)
    content = table.refresh().scan().to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in content) == sorted(twins.model.values())
    assert verify(table, index_location=twins.index).report.is_sound


def test_damaged_index_is_built_again_by_the_tasks_cycle(twins, tmp_path):
    twins.resolve()
    for path in (*Path(twins.index).rglob("*.run"), *(tmp_path / "executors").rglob("*.run")):
        path.write_bytes(b"rot")
    twins.stage(rows(range(5, 15), "newer"))
    assert resolve(twins.tables[0], engine="spark", index_location=twins.index).index == "built"


def test_batch_that_is_not_large_is_read_by_the_driver(twins, runner, monkeypatch):
    monkeypatch.setattr(batch_parts, "PART_KEYS", 22)
    twins.resolve()
    assert "write_group" not in runner.tasks
    twins.stage(rows(range(12), "new"))
    twins.resolve()
    assert "write_group" in runner.tasks


@pytest.mark.parametrize(
    "declare",
    [
        lambda table: table.set_properties({"icefold.publish": "rewrite"}),
        lambda table: table.set_immutable_columns(["region"], enforced="except-delete"),
    ],
)
def test_batch_that_takes_more_than_keys_is_read_by_the_driver(twins, runner, declare):
    for table in twins.tables:
        declare(table)
    twins.resolve()
    assert "write_group" not in runner.tasks
