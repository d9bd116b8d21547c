"""An index in shared storage: damage, races, machines with and without copies, garbage."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from resolver.index.base import IndexChanges, IndexDamagedError
from resolver.index.depot import VERSIONS_KEPT, IndexDepot
from resolver.index.shared import GARBAGE_EVERY, IndexMovedError, SharedIndex
from resolver.index.shared_build import open_shared
from resolver.index.shared_versions import IndexVersion
from tableformat.errors import StoreUnavailableError, TableError
from tableformat.runtime import Runtime
from tests.support.index_builder import (
    BINDING,
    binding_at,
    build_shared_in,
    content_of,
    depot_in,
    entries_of,
    file_of,
    keys_of,
    reopen_shared,
    rows_of,
    source_of,
    workplace_in,
)

KEYS = list(range(600))
EXPECTED = [[("a", key)] if key < 500 else [("b", key - 500)] for key in KEYS]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 2 of an index with two shards and two runs in each."""
    folder = tmp_path_factory.mktemp("pristine")
    with build_shared_in(folder, [source_of("a", KEYS[:500])], shards=2) as index:
        put(index, 2, "b", KEYS[500:])
    shutil.rmtree(folder / "machine-a")
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "index")
    return tmp_path / "index"


def put(index: SharedIndex, snapshot_id: int, path: str, keys: list[int]) -> None:
    rows = entries_of([(key, 0, ordinal) for ordinal, key in enumerate(keys)])
    changes = IndexChanges(added_files=(file_of(path),), put=(rows,))
    index.apply(index.prepare(changes), binding_at(snapshot_id))


def files_in(folder: Path) -> list[Path]:
    return sorted((folder / "shared" / "files").iterdir())


def versions_in(folder: Path) -> list[Path]:
    return sorted((folder / "shared" / "versions").iterdir())


def copies_in(machine: Path) -> list[Path]:
    return [path for path in machine.rglob("*") if path.suffix in (".run", ".sst")]


def refusal(folder: Path) -> str:
    opened = open_shared(depot_in(folder), BINDING, workplace_in(folder, "b"), Runtime())
    assert opened.index is None
    return opened.detail


# -- machines ------------------------------------------------------------------------------------


def test_any_machine_reads_and_changes_what_another_one_made(folder):
    for number, machine in enumerate("abcab", start=3):
        with reopen_shared(folder, machine) as index:
            assert index.binding == binding_at(number - 1)
            put(index, number, f"f{number}", [1000 + number])
    with reopen_shared(folder, "d") as index:
        assert rows_of(index, KEYS) == EXPECTED
        assert rows_of(index, range(1003, 1008)) == [[(f"f{n}", 0)] for n in range(3, 8)]


def test_a_machine_fetches_only_what_it_misses(folder):
    with reopen_shared(folder, "a") as index:
        assert rows_of(index, KEYS) == EXPECTED
    with reopen_shared(folder, "b") as index:
        put(index, 3, "c", [7000, 7001, 7002, 7003])
        new = index.version.object_names() - {path.name for path in copies_in(folder / "machine-a")}
    fetched: list[str] = []

    class Counting(IndexDepot):
        def download(self, file, target):
            fetched.append(file.object_name)
            super().download(file, target)

    depot = Counting(depot_in(folder).store, depot_in(folder).root)
    opened = open_shared(depot, BINDING, workplace_in(folder, "a"), Runtime())
    assert rows_of(opened.index, [0, 7003]) == [[("a", 0)], [("c", 3)]]
    assert rows_of(opened.index, KEYS) == EXPECTED
    assert sorted(fetched) == sorted(new)
    opened.index.close()


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove", "remove-all"])
def test_damaged_copies_are_fetched_again(folder, harm):
    with reopen_shared(folder, "a") as index:
        assert rows_of(index, KEYS) == EXPECTED
    machine = folder / "machine-a"
    for path in copies_in(machine):
        if harm == "remove" and not path.parent.name.startswith("open-"):
            path.unlink()
        elif harm in ("truncate", "flip"):
            data = bytearray(path.read_bytes())
            data[20:40] = bytes(20)
            path.unlink()  # not the other link
            path.write_bytes(bytes(data) if harm == "flip" else bytes(data[: len(data) // 2]))
    if harm == "remove-all":
        shutil.rmtree(machine)
    with reopen_shared(folder, "a") as index:
        assert rows_of(index, KEYS) == EXPECTED
        put(index, 3, "c", KEYS[:10])
        assert rows_of(index, [3]) == [[("a", 3), ("c", 3)]]


def test_a_foreign_shard_in_the_cache_is_not_believed(folder, tmp_path):
    other = tmp_path / "other"
    with build_shared_in(other, [source_of("x", KEYS)], shards=2) as index:
        rows_of(index, KEYS)
    with reopen_shared(folder, "a") as index:
        rows_of(index, KEYS)
    (mine,) = (folder / "machine-a" / "shard--001").glob("open-*")
    (theirs,) = (other / "machine-a" / "shard--001").glob("open-*")
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)
    for shard in ("runs-0000", "runs-0001"):
        (run,) = (other / "machine-a" / shard).glob("*.run")
        for path in (folder / "machine-a" / shard).glob("*.run"):
            path.unlink()
            path.write_bytes(run.read_bytes())
    with reopen_shared(folder, "a") as index:
        assert rows_of(index, KEYS) == EXPECTED


# -- damage in shared storage --------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove", "swap"])
@pytest.mark.parametrize("which", range(6))
def test_damaged_file_is_found_by_every_machine_without_a_copy(folder, harm, which):
    paths = files_in(folder)
    assert len(paths) == 6  # dictionary and two shards, two runs each
    path = paths[which]
    data = path.read_bytes()
    path.unlink()
    if harm == "truncate":
        path.write_bytes(data[:-1])
    elif harm == "flip":
        path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    elif harm == "swap":
        path.write_bytes(paths[which - 1].read_bytes())
    opened = open_shared(depot_in(folder), BINDING, workplace_in(folder, "b"), Runtime())
    if opened.index is None:
        assert "damaged" in opened.detail or "checksum" in opened.detail or "gone" in opened.detail
        return
    with pytest.raises(IndexDamagedError):
        content_of(opened.index)


@pytest.mark.parametrize("at", [0, 10, 64, 65, 200, -1])
@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_damaged_version_is_refused_and_built_again(folder, harm, at):
    newest = versions_in(folder)[-1]
    data = bytearray(newest.read_bytes())
    if harm == "cut":
        del data[at:]
    else:
        data[at] ^= 1
    newest.write_bytes(bytes(data))
    assert refusal(folder)
    with build_shared_in(folder, [source_of("a", KEYS)], machine="b") as index:
        assert index.version.number == 3
        assert rows_of(index, [599]) == [[("a", 599)]]


def test_missing_index_is_told(tmp_path):
    assert refusal(tmp_path) == "there is no index"


@pytest.mark.parametrize(
    "other",
    [
        replace(BINDING, table_uuid="other"),
        replace(BINDING, branch="other"),
        replace(BINDING, key_fingerprint="v1;2:long"),
        replace(BINDING, encoding_version=99),
    ],
)
def test_index_of_something_else_is_refused(folder, other):
    opened = open_shared(depot_in(folder), other, workplace_in(folder, "b"), Runtime())
    assert opened.index is None
    assert "index" in opened.detail


def test_version_under_another_number_is_refused(folder):
    newest = versions_in(folder)[-1]
    shutil.copy(newest, newest.with_name(f"{3:020d}.json"))
    assert "another number" in refusal(folder)


def test_other_format_is_refused(folder):
    newest = versions_in(folder)[-1]
    body = json.loads(newest.read_bytes().partition(b"\n")[2])
    encoded = IndexVersion.decode(newest.read_bytes(), "x").encode()
    assert encoded == newest.read_bytes()
    text = json.dumps(body | {"format": 4}).encode()
    newest.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    assert "another format" in refusal(folder)


@pytest.mark.parametrize("version_format", [2, 3])
@pytest.mark.parametrize("gone_files", ["", "eA==", "no base64"])
def test_unreadable_bitmap_under_a_right_checksum_is_damage(folder, version_format, gone_files):
    newest = versions_in(folder)[-1]
    body = json.loads(newest.read_bytes().partition(b"\n")[2])
    text = json.dumps(body | {"format": version_format, "gone_files": gone_files}).encode()
    newest.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    assert "unreadable" in refusal(folder)


# -- races ---------------------------------------------------------------------------------------


def test_of_two_changes_of_one_version_only_one_lands(folder):
    first, second = reopen_shared(folder, "a"), reopen_shared(folder, "b")
    changes = IndexChanges(added_files=(file_of("c"),), put=(entries_of([(9000, 0, 0)]),))
    late = second.prepare(changes)
    put(first, 3, "d", [9001])
    with pytest.raises(IndexMovedError):
        second.apply(late, binding_at(4))
    assert second.binding == binding_at(2)
    for machine in "ab":
        with reopen_shared(folder, machine) as index:
            assert index.binding == binding_at(3)
            assert rows_of(index, [9000, 9001]) == [[], [("d", 0)]]
    first.close()
    second.close()


def test_zombie_on_a_removed_version_number_is_not_read(folder):
    zombie = reopen_shared(folder, "z")
    late = zombie.prepare(IndexChanges(removed_keys=(keys_of(KEYS),)))
    with reopen_shared(folder, "a") as index:
        for number in range(3, 7):
            put(index, number, f"f{number}", [1])
    versions_in(folder)[2].unlink()  # number 3, as garbage collection does
    zombie.apply(late, binding_at(3))
    with reopen_shared(folder, "b") as index:
        assert index.binding == binding_at(6)
        assert rows_of(index, KEYS[2:]) == EXPECTED[2:]
    zombie.close()


def test_apply_whose_answer_was_lost_is_repeated(folder, monkeypatch):
    index = reopen_shared(folder, "a")
    changes = IndexChanges(added_files=(file_of("c"),), put=(entries_of([(9000, 0, 0)]),))
    prepared = index.prepare(changes)
    store = type(depot_in(folder).store)
    real = store.put

    def lossy(self, location, data):
        real(self, location, data)
        raise StoreUnavailableError("the answer was lost")

    monkeypatch.setattr(store, "put", lossy)
    with pytest.raises(StoreUnavailableError):
        index.apply(prepared, binding_at(3))
    monkeypatch.setattr(store, "put", real)
    index.apply(prepared, binding_at(3))
    assert rows_of(index, [9000]) == [[("c", 0)]]
    assert index.version.number == 3
    index.close()


def test_failed_upload_changes_nothing(folder, monkeypatch):
    index = reopen_shared(folder, "a")
    monkeypatch.setattr(
        IndexDepot, "upload", lambda *_: (_ for _ in ()).throw(StoreUnavailableError("full"))
    )
    with pytest.raises(StoreUnavailableError):
        put(index, 3, "c", KEYS)
    monkeypatch.undo()
    assert rows_of(index, KEYS) == EXPECTED
    put(index, 3, "c", [9000])
    assert rows_of(index, [9000]) == [[("c", 0)]]
    assert not list((folder / "machine-a").rglob("work-*"))
    index.close()


# -- garbage -------------------------------------------------------------------------------------


def age(folder: Path, hours: float) -> None:
    for path in (*files_in(folder), *versions_in(folder)):
        stat = path.stat()
        os.utime(path, (stat.st_atime - hours * 3600, stat.st_mtime - hours * 3600))


def test_garbage_goes_and_recent_versions_stay_readable(folder):
    with reopen_shared(folder, "a") as index:
        unfinished = index.prepare(IndexChanges(removed_keys=(keys_of(KEYS),)))
        assert unfinished
        for number in range(3, 8):
            put(index, number, f"f{number}", [9000 + number])
        age(folder, 2)
        before = len(files_in(folder))
        put(index, GARBAGE_EVERY, "g", [9100])
        assert len(files_in(folder)) < before
        assert rows_of(index, KEYS) == EXPECTED
    depot = depot_in(folder)
    kept = [int(path.stem) for path in versions_in(folder)]
    assert kept[-VERSIONS_KEPT:] == [7, 8]
    needed = set().union(*(depot.load(number).object_names() for number in kept))
    assert {path.name for path in files_in(folder)} == needed
    with reopen_shared(folder, "fresh") as index:
        assert rows_of(index, KEYS) == EXPECTED
        assert rows_of(index, range(9003, 9008)) == [[(f"f{n}", 0)] for n in range(3, 8)]
    assert depot.collect_garbage() == 0


def test_version_that_cannot_be_read_now_keeps_its_files(folder, monkeypatch):
    with reopen_shared(folder, "a") as index:
        for number in range(3, GARBAGE_EVERY):
            put(index, number, f"f{number}", [9000 + number])
        age(folder, 2)
        before = {path.name for path in files_in(folder)}

        def refuse(self, number):
            raise StoreUnavailableError("try again later")

        monkeypatch.setattr(IndexDepot, "load", refuse)
        put(index, GARBAGE_EVERY, "g", [9100])  # the change lands, whatever becomes of the garbage
        monkeypatch.undo()
        assert before <= {path.name for path in files_in(folder)}
    with reopen_shared(folder, "fresh") as index:
        assert index.binding == binding_at(GARBAGE_EVERY)
        assert rows_of(index, KEYS) == EXPECTED


def test_young_garbage_stays(folder):
    with reopen_shared(folder, "a") as index:
        prepared = index.prepare(IndexChanges(removed_keys=(keys_of([1]),)))
        before = len(files_in(folder))
        assert depot_in(folder).collect_garbage() == 0
        assert len(files_in(folder)) == before
        index.apply(prepared, binding_at(3))
    with reopen_shared(folder, "b") as index:
        assert rows_of(index, [1, 2]) == [[], EXPECTED[2]]


def test_many_cycles_keep_the_number_of_objects_bounded(folder):
    with reopen_shared(folder, "a") as index:
        for number in range(3, 23):
            put(index, number, f"f{number}", [number])
            age(folder, 1.5)
        depot_in(folder).collect_garbage(age_min_ms=0)
        assert len(versions_in(folder)) <= VERSIONS_KEPT
        assert len(files_in(folder)) <= 2 * VERSIONS_KEPT * 3 * 7
        assert sum(map(len, rows_of(index, KEYS))) == 600 + 20


def test_versions_kept_survive_without_any_copy(folder):
    """Every object that a kept version names is there."""
    depot = depot_in(folder)
    with reopen_shared(folder, "a") as index:
        for number in range(3, 20):
            put(index, number, f"f{number}", [number])
            age(folder, 0.3)
            depot.collect_garbage()
    names = {path.name for path in files_in(folder)}
    for path in versions_in(folder)[-VERSIONS_KEPT:]:
        assert depot.load(int(path.stem)).object_names() <= names
    with pytest.raises(TableError):
        depot.load(1)
