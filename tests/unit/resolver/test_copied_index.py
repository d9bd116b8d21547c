"""An index that came with a copied folder and is not this table's: it is noticed, and built anew.

A tool that copies a table and rewrites its paths (Iceberg's `rewrite_table_path`) keeps uuid and
snapshot ids, so the binding of an index that was copied along fits, and the files it names do not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import resolver.batch_parts as batch_parts
from resolver import resolve
from resolver.index_check import verify
from resolver.index_keeper import index_folder
from resolver.secondary import build_index
from tableformat import Table
from tests.support.copied_index import paths_before_the_copy
from tests.support.row_model import Model, assert_holds
from tests.support.staged_tables import BASE, StagedTable, keys


@pytest.fixture
def staged(tmp_path) -> StagedTable:
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows(*BASE))
    return staged


@pytest.fixture
def copied(staged, monkeypatch) -> StagedTable:
    """A table whose index was copied along, and whose paths were rewritten after that."""
    with paths_before_the_copy(monkeypatch):
        build_index(staged.table)
    assert build_index(staged.table).how == "current"
    return staged


def assert_sound(table: Table, model: Model) -> None:
    assert_holds(table, model)
    assert verify(table).report.is_sound


@pytest.mark.parametrize("part_keys", [batch_parts.PART_KEYS, 4])
def test_copied_index_is_built_anew_within_the_cycle(copied, monkeypatch, caplog, part_keys):
    monkeypatch.setattr(batch_parts, "PART_KEYS", part_keys)
    more = [(key, "eu", "more") for key in range(100, 110)]
    copied.table.stage(upserts=copied.rows((3, "eu", "three"), *more), deletes=keys(4, 5))
    assert resolve(copied.table).deleted_rows == 3
    assert "the index is damaged: the index names a data file" in caplog.text
    model = Model().upsert(*BASE, (3, "eu", "three"), *more).drop(4, 5)
    assert_sound(copied.table, model)
    copied.table.stage(deletes=keys(6))
    assert resolve(copied.table).index == "current"
    assert_sound(copied.table, model.drop(6))


def test_copied_index_that_cycles_of_new_keys_have_moved_on_is_noticed_later(copied):
    """Keys that nobody has lead to no file: what follows stands beside the foreign names."""
    copied.table.stage(upserts=copied.rows((100, "eu", "new")))
    assert resolve(copied.table).index == "current"
    copied.rewrite()
    copied.table.append(copied.rows((200, "eu", "appended")))
    copied.table.stage(upserts=copied.rows((3, "eu", "three")), deletes=keys(4, 100, 200))
    assert resolve(copied.table).deleted_rows == 4
    assert_sound(copied.table, Model().upsert(*BASE, (3, "eu", "three")).drop(4))


def test_copied_index_is_built_anew_for_deletes_by_position(copied, monkeypatch):
    """Rows that others have moved meanwhile are looked for by their keys, too."""
    copied.stage_vector(copied.only_file(), 7, 8)
    copied.rewrite()
    with paths_before_the_copy(monkeypatch):
        build_index(copied.table, rebuild=True)
    assert resolve(copied.table).deleted_rows == 2
    assert_sound(copied.table, Model().upsert(*BASE).drop(7, 8))


def test_copied_index_is_built_anew_in_place(copied):
    deletes = copied.equality_deletes(keys(4, 5))
    copied.commit(branch="main", deletes=deletes)
    with_new = copied.data_files((3, "eu", "three"))
    copied.commit(branch="main", data=with_new, deletes=copied.equality_deletes(keys(3)))
    assert resolve(copied.table, staging="main", target="main").index == "built"
    assert_sound(copied.table, Model().upsert(*BASE, (3, "eu", "three")).drop(4, 5))


def whole(folder: Path, source: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(source, folder)


def over_it(folder: Path, source: Path) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)


def half_of_its_files(folder: Path, source: Path) -> None:
    whole(folder, source)
    for path in sorted(each for each in folder.rglob("*") if each.is_file())[1::2]:
        path.unlink()


def half_of_each_file(folder: Path, source: Path) -> None:
    whole(folder, source)
    for path in (each for each in folder.rglob("*") if each.is_file()):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("whose", ["older", "another"])
@pytest.mark.parametrize(
    "copy",
    [whole, over_it, half_of_its_files, half_of_each_file],
    ids=lambda each: each.__name__,
)
def test_copy_in_place_of_the_index_never_costs_a_row(
    staged, tmp_path, whose: str, copy: Callable[[Path, Path], None]
):
    table, model = staged.table, Model().upsert(*BASE)
    table.stage(upserts=staged.rows((1, "eu", "one"), (30, "eu", "one")))
    resolve(table)
    folder = index_folder(table.environment, table.state, "main")
    if whose == "older":
        source = tmp_path / "older"
        shutil.copytree(folder, source)
    else:
        other = StagedTable(tmp_path / "another")
        other.table.append(other.rows(*BASE))
        other.table.stage(upserts=other.rows((1, "eu", "one"), (30, "eu", "one")))
        resolve(other.table)
        source = index_folder(other.environment, other.table.state, "main")
    table.stage(upserts=staged.rows((2, "eu", "two"), (31, "eu", "two")), deletes=keys(30, 3))
    resolve(table)
    copy(folder, source)
    table.stage(upserts=staged.rows((31, "us", "three")), deletes=keys(2, 1, 30))
    how = resolve(table).index
    if copy is whole:
        assert how == ("followed" if whose == "older" else "built")
    model.upsert((31, "us", "three")).drop(1, 2, 3)
    assert_sound(table, model)


def test_two_copies_of_a_table_that_share_an_index_folder_take_turns(staged, monkeypatch):
    """Their uuid is one, so is their folder: each cycle follows its own history or builds."""
    model = Model().upsert(*BASE)
    for key in range(3):
        with paths_before_the_copy(monkeypatch):
            build_index(staged.table, rebuild=True)
        staged.table.stage(upserts=staged.rows((key, "us", "new")))
        resolve(staged.table)
        assert_sound(staged.table, model.upsert((key, "us", "new")))
