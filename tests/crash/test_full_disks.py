"""Commands on a small disk that is full, or fills up while they work: one line, and no row is lost.

What is on the disk: the warehouse, the catalog's database, that of the locks, the key index, the
temporary folder. Each command is run with less and less room, then with room again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance.cli.main import main
from resolver.index_check import verify
from tests.support.crash_child import started
from tests.support.interop_engines import duckdb_connection

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SIZE = 8 << 20
ROOMS = (0, 4 << 10, 24 << 10, 80 << 10, 200 << 10)
ON_DISK = ("warehouse", "catalog", "locks", "index", "tmp")


class SmallDisk:
    """A file system of its own, and a file that fills it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ballast = folder, folder / "ballast"

    def leave(self, room: int) -> None:
        """So many bytes are free, about."""
        self.free()
        status = os.statvfs(self.folder)
        left = max(status.f_bavail * status.f_frsize - room, 0)
        self.ballast.write_bytes(b"x" * left)

    def free(self) -> None:
        self.ballast.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount: a full disk cannot be made")
    if done.returncode:
        pytest.skip("file systems cannot be mounted here: a full disk cannot be made")
    yield SmallDisk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    words: tuple[str, ...]
    code: int
    output: str


class World:
    """A table with staged changes; one of its places is on the small disk."""

    def __init__(self, tmp_path: Path, disk: SmallDisk, on_disk: str) -> None:
        self.folder = tmp_path
        places = dict.fromkeys(ON_DISK, tmp_path) | {on_disk: disk.folder}
        for each in {*places.values()}:
            for name in ("warehouse", "catalog", "locks", "index", "tmp"):
                (each / name).mkdir(exist_ok=True)
        self.properties = {
            "uri": f"sqlite:///{places['catalog']}/catalog/catalog.db",
            "lock-url": f"sqlite:///{places['locks']}/locks/locks.db",
            "index-directory": f"{places['index']}/index",
        }
        self.warehouse = places["warehouse"] / "warehouse"
        self.environment = {"TMPDIR": str(places["tmp"] / "tmp")}
        self.table = self.open().create_table("a.b", SCHEMA, primary_key=["id"])
        self.model = {key: f"first {key}" for key in range(3000)}
        self.table.append(rows_of(self.model))
        self.number = 0

    def open(self) -> tf.TableCatalog:
        return tf.open_catalog("local", warehouse=str(self.warehouse), **self.properties)

    def run(self, *words: str) -> Done:
        log = self.folder / "output"
        child = started(command, self.words(*words), self.environment, str(log))
        child.join(120)
        assert child.exitcode is not None, f"it hangs: {words}"
        return Done(words, child.exitcode, log.read_text())

    def words(self, *words: str) -> list[str]:
        options = [f"-p{key}={value}" for key, value in self.properties.items()]
        return ["--warehouse", str(self.warehouse), *options, *words]

    def events(self) -> Path:
        """Change events, and the model after them."""
        self.number += 1
        changed = {key: f"{self.number} {key}" for key in range(self.number, 3000, 7)}
        lines = [
            json.dumps({"op": "u", "after": {"id": k, "v": v}, "source": {"lsn": self.number}})
            for k, v in changed.items()
        ]
        path = self.folder / f"{self.number}.jsonl"
        path.write_text("\n".join(lines))
        self.model |= changed
        return path

    def rows(self, branch: str = "main") -> Counter[tuple[int, str]]:
        table = self.open().load_table("a.b").scan(branch=branch).to_arrow()
        return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def check(self) -> None:
        """All changes are there, once; another engine says the same."""
        wanted = Counter(self.model.items())
        assert self.rows() == wanted
        table = self.open().load_table("a.b")
        found = duckdb_connection().sql(
            f"SELECT id, v FROM iceberg_scan('{table.metadata_location}')"
        )
        assert Counter(found.fetchall()) == wanted
        assert verify(table).report.is_sound


def rows_of(model: dict[int, str]) -> pa.Table:
    return pa.table({"id": list(model), "v": list(model.values())}, schema=SCHEMA)


def command(words: list[str], environment: dict[str, str], log: str) -> None:
    """In a child: what `icefold` does."""
    os.environ.update(environment)
    with Path(log).open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.argv = ["icefold", *words]
        main()


def check_told(done: Done) -> None:
    """It failed, and one line says why."""
    assert done.code > 0, done
    assert "Traceback" not in done.output, done
    [line] = [each for each in done.output.splitlines() if each.startswith("icefold: ")]
    assert re.search("(?i)no space|full", line), line


def commands(world: World) -> list[tuple[str, ...]]:
    return [
        ("compact", "a.b", "--rewrite-all", "--min-files", "1"),
        ("expire", "a.b", "--older-than", "1ms", "--keep", "1"),
        ("ingest", "a.b", str(world.events())),
        ("resolve", "a.b"),
    ]


@pytest.mark.slow
def test_commands_on_a_disk_that_fills_up_lose_nothing(tmp_path, disk) -> None:
    check_commands(tmp_path, disk, "warehouse", ROOMS[2:3])


@pytest.mark.long
@pytest.mark.parametrize("on_disk", ON_DISK)
def test_commands_with_less_and_less_on_a_disk_lose_nothing(tmp_path, disk, on_disk) -> None:
    check_commands(tmp_path, disk, on_disk, ROOMS)


def check_commands(tmp_path: Path, disk: SmallDisk, on_disk: str, rooms: Sequence[int]) -> None:
    """Each is run with so much room, and again with enough if it failed."""
    world, failed = World(tmp_path, disk, on_disk), 0
    for room in rooms:
        for words in commands(world):
            disk.leave(room)
            done = world.run(*words)
            if done.code:
                failed += 1
                check_told(done)
                disk.free()
                done = world.run(*words)
            disk.free()
            assert done.code == 0, done
        world.check()
    assert failed or on_disk == "tmp"


@pytest.mark.long
@pytest.mark.parametrize("on_disk", ["warehouse", "index", "locks", "catalog"])
def test_maintain_goes_on_when_there_is_space_again(tmp_path, disk, on_disk) -> None:
    world, log = World(tmp_path, disk, on_disk), tmp_path / "log"
    child = started(command, world.words("maintain", "a.*"), world.environment, str(log))
    assert child.pid is not None
    try:
        wait_for(lambda: log.exists() and "watching" in log.read_text(), 60)
        os.kill(child.pid, signal.SIGSTOP)
        assert world.run("ingest", "a.b", str(world.events())).code == 0
        disk.leave(0)
        os.kill(child.pid, signal.SIGCONT)
        wait_for(lambda: re.search("(?i)no space|full", log.read_text()), 90)
        disk.free()
        wait_for(lambda: world.rows() == Counter(world.model.items()), 120)
        assert child.is_alive()
    finally:
        child.terminate()
        child.join(60)
    assert "Traceback" not in log.read_text()
    world.check()


def wait_for(is_so: Callable[[], object], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)
