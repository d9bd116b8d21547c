"""Damage of any file: found, or without effect; never a wrong answer (I19, G17)."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from resolver.index.base import IndexChanges, IndexDamagedError
from resolver.index.folder import FolderLock
from resolver.index.local import LocalIndex
from resolver.index.open import Refusal, open_index
from resolver.index.reader import open_reader
from resolver.index.shard import Shard, open_cache, write_sst
from tableformat.errors import StoreUnavailableError
from tableformat.runtime import Runtime
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

NOBODY = 65534
KEPT = (".run", ".sst")
KEYS = list(range(600))
BEHIND = [[("a", key)] if key < 500 else [] for key in KEYS]
EXPECTED = [BEHIND[key] or [("b", key - 500)] for key in KEYS]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed index with two shards and two runs in each; the dictionary has two, too."""
    folder = tmp_path_factory.mktemp("pristine") / "index"
    with build_local(folder, [source_of("a", KEYS[:500])], shards=2) as index:
        rows = entries_of([(key, 0, key - 500) for key in KEYS[500:]])
        changes = IndexChanges(added_files=(file_of("b"),), put=(rows,))
        index.apply(index.prepare(changes), binding_at(2))
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "index")
    return tmp_path / "index"


def open_here(folder: Path) -> LocalIndex:
    opened = open_index(folder, BINDING, runtime=Runtime())
    assert opened.index is not None, opened
    return opened.index


def check_right_or_refused(folder: Path) -> str:
    """Open and read everything: right answers, or damage reported, and then remembered.

    A dictionary that lost its last change is behind: right for the snapshot that it names.
    """
    opened = open_index(folder, BINDING, runtime=Runtime())
    if opened.index is None:
        assert opened.refusal in (Refusal.DAMAGED, Refusal.MISSING)
        assert opened.detail
        return "refused"
    try:
        with opened.index as index:
            is_behind = index.binding == binding_at(1)
            assert is_behind or index.binding == binding_at(2)
            assert rows_of(index, KEYS) == (BEHIND if is_behind else EXPECTED)
            assert len(content_of(index)) == (500 if is_behind else 600)
            return "behind" if is_behind else "right"
    except IndexDamagedError:
        pass  # and it is remembered:
    again = open_index(folder, BINDING, runtime=Runtime())
    assert (again.index, again.refusal) == (None, Refusal.DAMAGED), "damage is remembered"
    return "found"


def check_damaged(folder: Path) -> str:
    goal("G17", corruptions=1)
    return check_right_or_refused(folder)


def data_files(folder: Path) -> list[Path]:
    names = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in names if not path.name.startswith(("LOG", "LOCK"))]


def test_undamaged_copy_is_right(folder: Path) -> None:
    assert check_right_or_refused(folder) == "right"


def test_missing_file_never_gives_a_wrong_answer(pristine: Path, tmp_path: Path) -> None:
    outcomes = {}
    for path in data_files(pristine):
        copy = tmp_path / "copy"
        shutil.copytree(pristine, copy)
        (copy / path.relative_to(pristine)).unlink()
        outcomes[path.name] = check_damaged(copy)
        shutil.rmtree(copy)
    assert {name for name, outcome in outcomes.items() if outcome == "right"} <= {
        name for name in outcomes if not name.endswith((*KEPT, "CURRENT"))
    }
    assert all(outcome != "right" for name, outcome in outcomes.items() if name.endswith(KEPT))


@pytest.mark.slow
def test_truncated_file_never_gives_a_wrong_answer(pristine: Path, tmp_path: Path) -> None:
    for path in data_files(pristine):
        size = path.stat().st_size
        for length in sorted({0, 1, size // 2, size - 1} - {size, -1}):
            copy = tmp_path / "copy"
            shutil.copytree(pristine, copy)
            os.truncate(copy / path.relative_to(pristine), length)
            outcome = check_damaged(copy)
            assert outcome != "right" or not path.name.endswith(KEPT), (path.name, length)
            shutil.rmtree(copy)


@pytest.mark.slow
def test_flipped_bit_never_gives_a_wrong_answer(pristine: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(11)
    found = 0
    for path in data_files(pristine):
        size = path.stat().st_size
        for _ in range(12 if path.suffix == ".run" else 6 if path.suffix == ".sst" else 2):
            if size == 0:
                continue
            copy = tmp_path / "copy"
            shutil.copytree(pristine, copy)
            victim = copy / path.relative_to(pristine)
            data = bytearray(victim.read_bytes())
            data[int(generator.integers(size))] ^= 1 << int(generator.integers(8))
            victim.write_bytes(data)
            found += check_damaged(copy) != "right"
            shutil.rmtree(copy)
    assert found > 20


@pytest.mark.parametrize("read", ["get", "scan"])
def test_damaged_block_is_found_by_every_way_of_reading(read: str, tmp_path: Path) -> None:
    """rocksdict's iterators end at a damaged block as if nothing followed."""
    keys = [number.to_bytes(8) for number in range(1, 5001)]
    write_sst(tmp_path / "x.sst", [(keys, [b"12345678"] * len(keys))], {"format": 1})
    shard = Shard.create(tmp_path / "shard", open_cache(0))
    shard.ingest(tmp_path / "x.sst")
    shard.close()
    (sst,) = (tmp_path / "shard").glob("*.sst")
    intact = sst.read_bytes()
    for offset in range(10, len(intact) // 2, len(intact) // 20):
        data = bytearray(intact)
        data[offset] ^= 4
        sst.write_bytes(data)
        shard = Shard.open(tmp_path / "shard", open_cache(0))
        with pytest.raises(IndexDamagedError):
            shard.get(keys) if read == "get" else list(shard.scan(batch_keys=100))
        shard.close()
    sst.write_bytes(intact)
    shard = Shard.open(tmp_path / "shard", open_cache(0))
    assert [key for batch in shard.scan(batch_keys=100) for key, _ in batch] == keys
    assert [key for batch in shard.scan(prefix=keys[0][:7]) for key, _ in batch] == keys[:255]
    shard.close()


def test_every_prefix_of_a_manifest_is_refused_or_right(pristine: Path, tmp_path: Path) -> None:
    """A manifest cut between records is valid for RocksDB: an older state of the dictionary."""
    generation = next(pristine.glob("gen-*"))
    manifest = next((generation / "files").glob("MANIFEST-*"))
    for length in range(0, manifest.stat().st_size, 7):
        copy = tmp_path / "copy"
        shutil.copytree(pristine, copy)
        os.truncate(copy / manifest.relative_to(pristine), length)
        check_damaged(copy)
        shutil.rmtree(copy)


def test_shard_of_another_index_is_refused(pristine: Path, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    build_local(other, [source_of("z", KEYS)], shards=2).close()
    for name in ("runs", "files"):
        copy = tmp_path / "copy"
        shutil.copytree(pristine, copy)
        mine = next(copy.glob("gen-*")) / name
        shutil.rmtree(mine)
        shutil.copytree(next(other.glob("gen-*")) / name, mine)
        assert open_index(copy, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED
        shutil.rmtree(copy)
    one, other_run, *_ = sorted((next(folder.glob("gen-*")) / "runs").iterdir())
    one.rename(folder / "x")
    other_run.rename(one)
    (folder / "x").rename(other_run)
    assert open_index(folder, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED


def test_shard_left_behind_is_refused(pristine: Path, tmp_path: Path) -> None:
    """A shard restored from an older copy of the same index."""
    older = tmp_path / "older"
    shutil.copytree(pristine, older)
    newer = tmp_path / "newer"
    shutil.copytree(pristine, newer)
    with open_here(newer) as index:
        index.apply(index.prepare(IndexChanges(removed_keys=(keys_of(KEYS[:300]),))), binding_at(3))
    for name in ("runs", "files"):
        copy = tmp_path / "copy"
        shutil.copytree(newer, copy)
        mine = next(copy.glob("gen-*")) / name
        shutil.rmtree(mine)
        shutil.copytree(next(older.glob("gen-*")) / name, mine)
        assert open_index(copy, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED
        shutil.rmtree(copy)


def copy_open(folder: Path, target: Path) -> None:
    """What a kill would leave. Runs that are merged may go meanwhile."""

    def copy(source: str, to: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(source, to)

    shutil.copytree(folder, target, copy_function=copy)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_log_beside_the_tables_of_an_older_copy_is_damage(
    step: int, folder: Path, tmp_path: Path
) -> None:
    """A copy put over the index of a process that was killed: the log stays, changes between go."""
    older, killed = tmp_path / "older", tmp_path / "killed"
    for number in range(1, 4):
        if number == step:
            shutil.copytree(folder, older)
        with open_here(folder) as index:
            rows = entries_of([(1000 + number, 0, 0)])
            changes = IndexChanges(added_files=(file_of(f"f{number}"),), put=(rows,))
            index.apply(index.prepare(changes), binding_at(2 + number))
            if number == 3:
                copy_open(folder, killed)
    shutil.copytree(older, killed, dirs_exist_ok=True)
    if step == 3:  # the log goes on where the copy ends
        with open_here(killed) as index:
            assert rows_of(index, [1001, 1002, 1003]) == [[(f"f{n}", 0)] for n in (1, 2, 3)]
        return
    with pytest.raises(IndexDamagedError, match="lacks changes"):
        open_reader(killed, Runtime())
    assert open_index(killed, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"table_uuid": "other"}, Refusal.FOREIGN),
        ({"branch": "other"}, Refusal.FOREIGN),
        ({"key_fingerprint": "v1;1:string"}, Refusal.KEY_CHANGED),
        ({"encoding_version": 2}, Refusal.KEY_CHANGED),
    ],
)
def test_index_of_something_else_is_refused_and_kept(
    change: dict[str, object], refusal: Refusal, folder: Path
) -> None:
    opened = open_index(folder, replace(BINDING, **change), runtime=Runtime())  # type: ignore[arg-type]
    assert (opened.index, opened.refusal) == (None, refusal)
    assert check_right_or_refused(folder) == "right"


def test_other_formats_are_refused(folder: Path) -> None:
    current = folder / "CURRENT"
    content = json.loads(current.read_bytes())
    for other in (
        {**content, "format": 0},
        {**content, "generation": "../../etc"},
        {**content, "shards": 0},
        {"format": 1},
        [],
    ):
        current.write_text(json.dumps(other))
        assert open_index(folder, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED
    current.write_bytes(b"\xff")
    assert open_index(folder, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED
    current.unlink()
    assert open_index(folder, BINDING, runtime=Runtime()).refusal == Refusal.MISSING


@pytest.mark.parametrize(
    "header", [{}, {"format": 99}, {"format": 1}, {"format": 2}, {"format": 2, "x": 1}]
)
def test_header_of_another_format_is_refused(header: dict[str, int], folder: Path) -> None:
    shard = Shard.open(next(folder.glob("gen-*")) / "files", open_cache(0))
    write_sst(folder / "x.sst", [], header)
    shard.ingest(folder / "x.sst")
    shard.close()
    assert open_index(folder, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED


def test_no_folder_and_empty_folder_are_missing(tmp_path: Path) -> None:
    assert open_index(tmp_path / "none", BINDING, runtime=Runtime()).refusal == Refusal.MISSING
    assert not (tmp_path / "none").exists()
    assert open_index(tmp_path, BINDING, runtime=Runtime()).refusal == Refusal.MISSING


def test_rebuild_after_damage_gives_a_sound_index(folder: Path) -> None:
    for path in folder.rglob("*.sst"):
        path.write_bytes(path.read_bytes()[:-1])
    assert open_index(folder, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED
    sources = [source_of("a", KEYS[:500]), source_of("b", KEYS[500:])]
    build_local(folder, sources, binding=binding_at(2)).close()
    assert check_right_or_refused(folder) == "right"


# -- the folder cannot be used now: an error, no rebuild -----------------------------------------


def test_second_opener_is_told_that_the_index_is_in_use(folder: Path) -> None:
    with open_here(folder) as index:
        with pytest.raises(StoreUnavailableError, match="in use"):
            open_index(folder, BINDING, runtime=Runtime())
        assert rows_of(index, [3]) == [EXPECTED[3]]
    assert check_right_or_refused(folder) == "right"


def test_index_whose_closing_is_interrupted_leaves_the_folder_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    index = open_here(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            index.close()
    FolderLock(folder).release()
    index.close()
    assert check_right_or_refused(folder) == "right"


def test_folder_that_nobody_can_release_any_more_is_free(folder: Path) -> None:
    """An interrupt may come before the lock has a name."""
    lock = FolderLock(folder)
    with pytest.raises(StoreUnavailableError, match="in use"):
        FolderLock(folder)
    with pytest.warns(ResourceWarning):
        del lock
    assert check_right_or_refused(folder) == "right"


_CHILD = """
import os, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2].split(os.pathsep)
from tests.unit.resolver.index import test_damage as t
index = t.open_here(Path(sys.argv[1]))
{body}
"""


def run_child(folder: Path, body: str, **options: object) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[4])
    return subprocess.Popen(
        # Without compiled modules: one whose files are limited would leave parts of them to others.
        [sys.executable, "-B", "-c", _CHILD.format(body=body), str(folder), root],
        stdout=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.slow
def test_r84_lock_of_a_killed_process_is_free_at_once(folder: Path) -> None:
    child = run_child(folder, "print('open', flush=True); time.sleep(60)")
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    with pytest.raises(StoreUnavailableError, match="in use"):
        open_index(folder, BINDING, runtime=Runtime())
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=30)
    child.stdout.close()
    assert check_right_or_refused(folder) == "right"


_FULL_DISK = """
changes = t.IndexChanges(
    added_files=(t.file_of("c"),),
    put=(t.entries_of([(key, 0, key) for key in range(20_000)]),),
)
try:
    index.prepare(changes)
except t.StoreUnavailableError as error:
    assert t.rows_of(index, t.KEYS) == t.EXPECTED
    print("unavailable", error)
"""


def limit_file_size() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.slow
def test_full_disk_is_reported_and_the_index_stays_usable(folder: Path) -> None:
    child = run_child(folder, _FULL_DISK, preexec_fn=limit_file_size)
    output, _ = child.communicate(timeout=120)
    assert output.startswith("unavailable"), output
    assert check_right_or_refused(folder) == "right"
    with open_here(folder) as index:
        rows = entries_of([(1, 0, 7)])
        changes = IndexChanges(added_files=(file_of("c"),), put=(rows,))
        index.apply(index.prepare(changes), binding_at(3))
        assert rows_of(index, [1]) == [[("a", 1), ("c", 7)]]


_FULL_DISK_BUILD = """
index.close()
sources = [t.source_of("c", list(range(30_000)), batch_rows=1_000)]
try:
    t.build_local(Path(sys.argv[1]), sources, shards=1, binding=t.binding_at(9))
except t.StoreUnavailableError as error:
    print("unavailable", error)
"""


@pytest.mark.slow
def test_full_disk_stops_a_build_that_goes_on_later(folder: Path) -> None:
    child = run_child(folder, _FULL_DISK_BUILD, preexec_fn=limit_file_size)
    output, _ = child.communicate(timeout=120)
    assert output.startswith("unavailable"), output
    sources = [source_of("c", list(range(30_000)), batch_rows=1_000)]
    with build_local(folder, sources, shards=1, binding=binding_at(9)) as index:
        assert rows_of(index, [0, 29_999]) == [[("c", 0)], [("c", 29_999)]]


def test_read_only_folder_is_a_clear_error(folder: Path) -> None:
    with _unprivileged(folder) as read_only, pytest.raises(StoreUnavailableError):
        open_index(read_only, BINDING, runtime=Runtime())
    assert check_right_or_refused(folder) == "right"


@contextlib.contextmanager
def _unprivileged(folder: Path) -> Iterator[Path]:
    """A copy of the folder that may be read only, and a user whom that stops: root it would not."""
    with tempfile.TemporaryDirectory(prefix="icefold-test-") as outside:
        Path(outside).chmod(0o755)  # pytest's own folders are closed to others
        copy = Path(outside) / folder.name
        shutil.copytree(folder, copy)
        (copy / "LOCK").chmod(0o444)
        user = os.geteuid()
        if user == 0:
            os.seteuid(NOBODY)
        try:
            yield copy
        finally:
            if user == 0:
                os.seteuid(0)


@pytest.mark.parametrize(
    "text",
    [
        "IO error: No space left on device: While appending to file: /x/1.sst",
        "IO error: Read-only file system: While open a file for appending",
        "IO error: lock hold by current process, acquire time 1: /x/LOCK: No locks available",
        "IO error: While lock file: /x/LOCK: Resource temporarily unavailable",
        "IO error: Too many open files",
    ],
)
def test_operating_system_trouble_is_not_damage(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_here(folder) as index:
        _fail_reads(monkeypatch, Exception(text))
        with pytest.raises(StoreUnavailableError):
            index.lookup(keys_of([1]))
        monkeypatch.undo()
        assert rows_of(index, [1]) == [EXPECTED[1]]
    assert check_right_or_refused(folder) == "right"


def test_errors_of_other_classes_pass_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_here(folder) as index:
        _fail_reads(monkeypatch, MemoryError())
        with pytest.raises(MemoryError):
            index.lookup(keys_of([1]))
    monkeypatch.undo()
    assert check_right_or_refused(folder) == "right"


def _fail_reads(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    class Broken:
        def get(self, *_: object) -> object:
            raise error

        def close(self) -> None:
            """Nothing to close."""

    original: Callable[..., list[bytes]] = Shard.get

    def get(shard: Shard, keys: list[bytes]) -> list[bytes]:
        return original(Shard(shard.path, Broken()), keys)

    monkeypatch.setattr(Shard, "get", get)
