from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tableformat.errors import NotFoundError, StoreUnavailableError, UnsupportedError
from tableformat.store import local
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations


def test_written_file_is_readable_as_the_umask_says(tmp_path: Path) -> None:
    path = tmp_path / "a" / "x"
    before = os.umask(0o027)
    try:
        local.write_new(str(path), b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_write_leaves_only_its_file(tmp_path: Path) -> None:
    local.write_new(str(tmp_path / "x"), b"x")
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


def test_full_disk_leaves_nothing_and_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailableError, match="No space"):
        local.write_new(str(tmp_path / "x"), b"x")
    assert list(tmp_path.iterdir()) == []


def test_file_system_without_links_is_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(UnsupportedError, match="exclusively"):
        local.write_new(str(tmp_path / "x"), b"x")
    assert list(tmp_path.iterdir()) == []


def test_content_is_durable_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda fd: steps.append("fsync") or fsync(fd))
    monkeypatch.setattr(os, "link", lambda a, b: steps.append("link") or link(a, b))
    local.write_new(str(tmp_path / "x"), b"x")
    assert steps == ["fsync", "link", "fsync"]


@pytest.mark.slow
def test_kill_while_writing_leaves_no_half_file(tmp_path: Path) -> None:
    script = f"""
import os, signal
from tableformat.store import local
output = local.LocalOutput({str(tmp_path / "x")!r})
output.write(b"half")
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(local.__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=False, cwd=root)
    left = [one.name for one in tmp_path.iterdir()]
    assert "x" not in left
    assert all(name.startswith(".x.") and name.endswith(".tmp") for name in left)
    assert len(list(local.list_files(str(tmp_path)))) == len(left) == 1


def test_symbolic_links_are_listed_but_not_followed(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    names = [one.location for one in local.list_files(str(tmp_path / "inside"))]
    assert names == [f"file://{tmp_path}/inside/link"]


def test_folder_is_not_an_object(tmp_path: Path) -> None:
    store = ArrowObjectStore({}, AllowedLocations([str(tmp_path)]))
    (tmp_path / "folder").mkdir()
    for call in (store.get, store.size_bytes, store.open_input):
        with pytest.raises(NotFoundError):
            call(str(tmp_path / "folder"))


def test_name_below_a_file_is_not_found(tmp_path: Path) -> None:
    store = ArrowObjectStore({}, AllowedLocations([str(tmp_path)]))
    (tmp_path / "x").write_text("x")
    with pytest.raises(NotFoundError):
        store.get(str(tmp_path / "x" / "y"))
    store.delete([str(tmp_path / "x" / "y")])


def test_long_names_are_written(tmp_path: Path) -> None:
    local.write_new(str(tmp_path / ("x" * 255)), b"x")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"x"


def test_parquet_is_written_and_read_through_the_store(tmp_path: Path) -> None:
    store = ArrowObjectStore({}, AllowedLocations([str(tmp_path)]))
    table = pa.table({"a": range(1000)})
    with store.open_output(f"{tmp_path}/d/x.parquet") as output:
        pq.write_table(table, output, row_group_size=100)
    with store.open_input(f"{tmp_path}/d/x.parquet") as source:
        assert pq.read_table(source) == table
    assert [one.name for one in (tmp_path / "d").iterdir()] == ["x.parquet"]
