"""Killed at any step, the index is at the old state or at the new one, never between (G4, G17)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from resolver.index import local
from resolver.index.base import IndexChanges
from resolver.index.local import LocalIndex
from resolver.index.open import open_index
from resolver.index.reader import open_reader
from resolver.index.shard import Shard
from tableformat.errors import InvalidInputError, StoreUnavailableError
from tableformat.runtime import FailPoints, Runtime
from tests.support.goals import goal
from tests.support.index_builder import (
    BINDING,
    binding_at,
    build_local,
    content_of,
    entries_of,
    file_of,
    keys_of,
    rows_of,
    source_of,
)

SHARDS = 3
KEYS = list(range(40))
# Where a change can be cut, and whether the index must then be at the new state.
POINTS = [
    ("index.prepare.written", 1, False),
    ("index.apply.before", 1, False),
    ("index.apply.after", 1, True),
]


class Killed(BaseException):
    """Not an Exception: nothing may handle it."""


def stop_at(point: str, hit: int, action: Callable[[], None]) -> Runtime:
    """A runtime that runs `action` at the `hit`-th passage of `point`."""
    passed = 0

    def count(_: str) -> None:
        nonlocal passed
        passed += 1
        if passed == hit:
            action()

    return Runtime(fail_points=FailPoints(armed={point: count}))


def kill() -> None:
    raise Killed


def new_rows() -> IndexChanges:
    moved = entries_of([(key, 0, key + 100) for key in range(20)])
    return IndexChanges(
        dropped_files=("a",),
        added_files=(file_of("b"),),
        removed_keys=(keys_of(range(20, 25)),),
        put=(moved,),
    )


def build(folder: Path) -> None:
    build_local(
        folder, [source_of("a", KEYS[:30]), source_of("c", KEYS[25:])], shards=SHARDS
    ).close()


def reopen(folder: Path, runtime: Runtime | None = None) -> LocalIndex:
    opened = open_index(folder, BINDING, runtime=runtime or Runtime())
    assert opened.index is not None, opened
    return opened.index


def run_files(index: LocalIndex) -> set[str]:
    return {path.name for path in index.generation.runs_path.iterdir()}


def check_state(index: LocalIndex, *, is_new: bool) -> None:
    rows = rows_of(index, KEYS)
    if is_new:
        assert index.binding == binding_at(2)
        assert rows[:20] == [[("b", key + 100)] for key in range(20)]
        assert rows[20:25] == [[]] * 5
    else:
        assert index.binding == BINDING
        assert rows[:25] == [[("a", key)] for key in range(25)]
    assert rows[30:] == [[("c", key - 25)] for key in range(30, 40)]
    named = {f"{name}.run" for shard in index.run_names for name in shard}
    deadline = time.monotonic() + 60  # what is not named any more is removed in the background
    while run_files(index) != named and time.monotonic() < deadline:
        time.sleep(0.01)
    assert run_files(index) == named


@pytest.mark.parametrize("written_max", [0, local.WRITTEN_MAX])  # all ingested, all through the log
@pytest.mark.parametrize(("point", "hit", "is_new"), POINTS)
def test_change_cut_anywhere_is_whole_or_absent_after_opening(
    point: str,
    hit: int,
    is_new: bool,
    written_max: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "WRITTEN_MAX", written_max)
    build(tmp_path)
    index = reopen(tmp_path, stop_at(point, hit, kill))
    with pytest.raises(Killed):
        index.apply(index.prepare(new_rows()), binding_at(2))
    index.close()
    with reopen(tmp_path) as index:
        check_state(index, is_new=is_new)
        index.apply(index.prepare(IndexChanges(removed_keys=(keys_of([0]),))), binding_at(3))
        assert rows_of(index, [0]) == [[]]


def test_changes_that_are_ingested_and_that_go_through_the_log_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)
    file = "a"
    for number, written_max in enumerate([0, 9, 9, 0, 0, 9], start=2):
        monkeypatch.setattr(local, "WRITTEN_MAX", written_max)
        with reopen(tmp_path) as index:
            for snapshot_id in (2 * number, 2 * number + 1):
                old, file = file, f"{snapshot_id}"
                changes = IndexChanges(
                    dropped_files=(old,),
                    added_files=(file_of(file),),
                    put=(entries_of([(key, 0, key + snapshot_id) for key in range(5)]),),
                )
                index.apply(index.prepare(changes), binding_at(snapshot_id))
        with reopen(tmp_path) as index:
            assert index.binding == binding_at(snapshot_id)
            assert rows_of(index, range(5)) == [[(file, key + snapshot_id)] for key in range(5)]
            assert index.file_ids([old]) == {}


_VICTIM = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[4].split(os.pathsep)
from tests.unit.resolver.index import test_crash_recovery as t
index = t.reopen(Path(sys.argv[1]), t.stop_at(
    sys.argv[2], int(sys.argv[3]), lambda: os.kill(os.getpid(), signal.SIGKILL)))
index.apply(index.prepare(t.new_rows()), t.binding_at(2))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("point", "hit", "is_new"), POINTS)
def test_process_killed_anywhere_leaves_a_whole_change_or_none(
    point: str, hit: int, is_new: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    build(folder)
    root = str(Path(__file__).parents[4])
    done = subprocess.run(
        [sys.executable, "-c", _VICTIM, str(folder), point, str(hit), root],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == -9, done.stderr.decode()
    goal("G17", kills=1)
    with reopen(folder) as index:
        check_state(index, is_new=is_new)


def test_power_loss_before_a_change_is_on_disk_leaves_the_older_state_with_all_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lost = tmp_path / "index", tmp_path / "lost"
    build(folder)
    index = reopen(folder)
    logs = {path.name: path.stat().st_size for path in folder.rglob("*.log")}
    sync = Shard.sync

    def lose_power_and_sync(shard: Shard) -> None:
        shutil.copytree(folder, lost)
        for path in lost.rglob("*.log"):
            with path.open("r+b") as file:
                file.truncate(logs.get(path.name, 0))
        sync(shard)

    monkeypatch.setattr(Shard, "sync", lose_power_and_sync)
    everything = IndexChanges(  # merges all runs, so that the older state's go
        dropped_files=("a", "c"),
        added_files=(file_of("b"),),
        put=(entries_of([(key, 0, key + 100) for key in KEYS]),),
    )
    index.apply(index.prepare(everything), binding_at(2))
    index.close()
    assert {p.name for p in lost.rglob("*.run")} > {p.name for p in folder.rglob("*.run")}
    monkeypatch.undo()
    with reopen(lost) as index:
        check_state(index, is_new=False)


def test_interrupted_apply_is_finished_by_calling_it_again(tmp_path: Path) -> None:
    for number, (point, hit, _) in enumerate(POINTS[1:]):
        folder = tmp_path / str(number)
        build(folder)
        index = reopen(folder, stop_at(point, hit, kill))
        other = index.prepare(IndexChanges())
        prepared = index.prepare(new_rows())
        with pytest.raises(Killed):
            index.apply(prepared, binding_at(2))
        with pytest.raises(StoreUnavailableError, match="interrupted"):
            index.lookup(keys_of([1]))
        with pytest.raises(InvalidInputError):
            index.apply(other, binding_at(2))
        index.apply(prepared, binding_at(2))
        check_state(index, is_new=True)
        index.close()


@pytest.mark.parametrize(("point", "snapshot_id"), [("before", 1), ("after", 2)])
def test_reader_beside_a_change_in_its_middle_sees_all_of_it_or_nothing(
    tmp_path: Path, point: str, snapshot_id: int
) -> None:
    build(tmp_path)
    index = reopen(tmp_path, stop_at(f"index.apply.{point}", 1, kill))
    early = open_reader(tmp_path, Runtime())
    with pytest.raises(Killed):
        index.apply(index.prepare(new_rows()), binding_at(2))
    with open_reader(tmp_path, Runtime()) as reader:
        assert reader.binding == binding_at(snapshot_id)
    index.close()
    reopen(tmp_path).close()  # which removes what nothing names
    with early:
        assert early.binding == binding_at(1)
        assert early.lookup(keys_of([3, 21])).position.tolist() == [3, 21]


def test_change_can_be_discarded_after_a_failure_unless_it_landed(
    tmp_path: Path,
) -> None:
    for number, (point, has_landed) in enumerate(
        [("index.apply.before", False), ("index.apply.after", True)]
    ):
        folder = tmp_path / str(number)
        build(folder)
        index = reopen(folder, stop_at(point, 1, kill))
        prepared = index.prepare(new_rows())
        with pytest.raises(Killed):
            index.apply(prepared, binding_at(2))
        if has_landed:
            with pytest.raises(InvalidInputError, match="discarded"):
                index.discard(prepared)
        else:
            index.discard(prepared)
            check_state(index, is_new=False)
        index.close()
        with reopen(folder) as index:
            check_state(index, is_new=has_landed)


def test_runs_that_nothing_names_are_removed_and_never_read(tmp_path: Path) -> None:
    build(tmp_path)
    with reopen(tmp_path) as index:
        runs = index.generation.runs_path
        kept = {path: path.read_bytes() for path in runs.iterdir()}
        index.apply(index.prepare(IndexChanges(removed_keys=(keys_of(KEYS),))), binding_at(3))
    for path, data in kept.items():  # as if removing them had failed
        path.write_bytes(data)
    (runs / "x.scratch").mkdir()
    with reopen(tmp_path) as index:
        assert index.binding == binding_at(3)
        assert content_of(index) == {}
        assert not list(runs.iterdir())


def test_failed_prepare_leaves_nothing_behind(tmp_path: Path) -> None:
    build(tmp_path)
    with reopen(tmp_path, stop_at("index.prepare.written", 99, kill)) as index:
        bad = entries_of([(1, 0, -1)])
        with pytest.raises(Exception, match="position"):
            index.prepare(IndexChanges(added_files=(file_of("z"),), put=(bad,)))
        check_state(index, is_new=False)
