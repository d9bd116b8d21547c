"""Indexes that stay open between cycles: used again, given up to others, never trusted blindly."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import build_index, open_indexes, resolve
from resolver.index import folder as index_folders
from resolver.index.local import LocalIndex
from resolver.index_keeper import index_folder
from resolver.open_indexes import OpenIndexes
from tableformat.errors import StoreUnavailableError
from tableformat.runtime import SystemClock
from tests.support.tidying import tidying


def rows(*ids: int, value: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "value": [value] * len(ids)})


@pytest.fixture
def table(tmp_path: Path) -> tf.Table:
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("shop.orders", rows(0, value="").schema, primary_key=["id"])
    table.append(rows(0, 1, 2, value="old"))
    return table


@pytest.fixture
def indexes(table: tf.Table) -> Iterator[OpenIndexes]:
    indexes = OpenIndexes(table.environment.runtime.clock)
    yield indexes
    indexes.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every index that was opened in a folder."""
    found: list[object] = []
    real = LocalIndex.__init__

    def init(self: LocalIndex, *given: object, **named: object) -> None:
        real(self, *given, **named)  # type: ignore[arg-type]
        found.append(self.generation)

    monkeypatch.setattr(LocalIndex, "__init__", init)
    return found


def cycle(table: tf.Table, key: int, indexes: OpenIndexes | None, **named: bool) -> str:
    """Stage a row, publish it and check that the table holds its newest version alone."""
    value = f"{table.refresh().state.metadata.last_sequence_number}"
    table.stage(upserts=rows(key, value=value))
    report = resolve(table, indexes=indexes, **named)
    found = table.scan().to_arrow().to_pylist()
    assert [each["value"] for each in found if each["id"] == key] == [value]
    return report.index


def test_an_index_stays_open_from_cycle_to_cycle(table, indexes, opened):
    hows = [cycle(table, key, indexes) for key in (1, 2, 1, 7)]
    assert hows == ["built", "current", "current", "current"]
    assert len(opened) == 1


def test_a_second_process_is_given_an_index_that_only_stays_open(table, indexes):
    cycle(table, 1, indexes)
    with tidying(indexes):
        assert cycle(table, 1, None) == "current"
    assert cycle(table, 1, indexes) == "current"


def test_an_index_follows_what_another_process_has_published(table, indexes, opened):
    cycle(table, 1, indexes)
    with tidying(indexes):
        assert build_index(table).how == "current"
    table.append(rows(20, value="other"))
    assert cycle(table, 20, indexes) == "followed"
    assert len(opened) == 3


def test_an_index_that_is_used_is_not_waited_for(table, indexes, monkeypatch):
    monkeypatch.setattr(index_folders, "WANTED_MS", 2e4)
    cycle(table, 1, indexes)
    folder = index_folder(table.environment, table.state, "main")
    index = indexes.take(folder, next(iter(indexes._waiting.values()))[0].binding)
    assert index is not None
    with pytest.raises(StoreUnavailableError, match="in use"):
        build_index(table)
    indexes.keep(folder, index)


def test_who_waits_in_vain_is_told(table, indexes, monkeypatch):
    monkeypatch.setattr(index_folders, "WANTED_MS", 100.0)
    cycle(table, 1, indexes)
    with pytest.raises(StoreUnavailableError, match="in use"):
        build_index(table)


def test_a_folder_that_was_removed_is_built_again(table, indexes):
    cycle(table, 1, indexes)
    shutil.rmtree(index_folder(table.environment, table.state, "main"))
    assert cycle(table, 1, indexes) == "built"


def test_an_index_that_another_process_has_built_afresh_is_opened(table, indexes):
    cycle(table, 1, indexes)
    folder = index_folder(table.environment, table.state, "main")
    aside = folder.with_name("aside")
    folder.rename(aside)
    assert cycle(table, 2, None) == "built"
    assert cycle(table, 1, indexes) == "current"
    assert not indexes._waiting[folder][0].generation.path.is_relative_to(aside)


def test_a_rebuild_does_not_stand_in_its_own_way(table, indexes):
    cycle(table, 1, indexes)
    assert cycle(table, 1, indexes, rebuild_index=True) == "built"
    assert cycle(table, 1, indexes) == "current"


def test_damage_that_was_found_is_not_forgotten(table, indexes):
    cycle(table, 1, indexes)
    folder = index_folder(table.environment, table.state, "main")
    [(index, _)] = indexes._waiting.values()
    with pytest.raises(ValueError, match="bad"), index._in_use():
        raise ValueError("bad")
    assert cycle(table, 1, indexes) == "current", "an error that is none of damage"
    for run in (index.generation.runs_path).glob("*.run"):
        run.write_bytes(bytes(run.stat().st_size))
    assert cycle(table, 2, indexes) == "built"
    assert folder in indexes._waiting


def test_so_many_stay_open_and_not_for_ever(tmp_path, monkeypatch):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    indexes = OpenIndexes(catalog.environment.runtime.clock, open_max=2)
    for number in range(3):
        name = f"shop.t{number}"
        cycle(catalog.create_table(name, rows(0, value="").schema, primary_key=["id"]), 1, indexes)
    assert len(indexes._waiting) == 2
    indexes.tidy()
    assert len(indexes._waiting) == 2
    monkeypatch.setattr(open_indexes, "IDLE_MS", -1)
    indexes.tidy()
    assert not indexes._waiting
    indexes.close()
    cycle(catalog.load_table("shop.t0"), 1, indexes)
    assert not indexes._waiting, "nothing stays open after a close"


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [(256, 32), (1_024, 32), (4_096, 102), (10_240, 256), (resource.RLIM_INFINITY, 256)],
)
def test_as_many_wait_as_have_a_quarter_of_the_files(monkeypatch, allowed, expected):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    assert OpenIndexes(SystemClock()).open_max == expected
