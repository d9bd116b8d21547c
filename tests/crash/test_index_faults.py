"""Resolving with an index that is damaged, stale, another table's or on a full disk (I19, G17).

Rows are always those of a dict; the index is used, follows or is built again.
"""

from __future__ import annotations

import random
import resource
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import resolve
from resolver.index_check import verify
from resolver.index_keeper import index_folder
from tableformat.errors import TableError
from tests.support.crash_child import (
    KILLED,
    REFUSED,
    lock_of,
    open_table,
    run_until_killed,
    started,
)
from tests.support.goals import goal

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
NAME = "t.rows"
ROUNDS = 5
FULL_DISK_BYTES = 120_000  # less than the index needs, more than any other file does


class Keyed:
    """A table, its index folder and its rows."""

    def __init__(self, folder: Path, name: str = NAME, rows: int = 300) -> None:
        self.warehouse = str(folder / "warehouse")
        catalog = tf.open_catalog("local", warehouse=self.warehouse)
        self.table = catalog.create_table(name, SCHEMA, primary_key=["id"])
        self.model = {key: key for key in range(rows)}
        self.table.append(as_table(self.model))
        self.index = index_folder(self.table.environment, self.table.state, "main")
        self.serial = rows

    def stage(self, key: int, gone: int) -> None:
        self.serial += 1
        keys = pa.table({"id": pa.array([gone], pa.int64())})
        self.table.stage(upserts=as_table({key: self.serial}), deletes=keys)
        self.model.pop(gone, None)
        self.model[key] = self.serial

    def rows(self) -> Counter:
        found = open_table(self.warehouse, self.table.name).scan().to_arrow().to_pylist()
        return Counter((row["id"], row["amount"]) for row in found)

    def check(self) -> None:
        assert self.rows() == Counter(self.model.items())
        try:
            assert verify(self.table).report.is_sound
        except TableError:  # damage where the cycle did not look: found now
            resolve(self.table, rebuild_index=True)
            assert verify(self.table).report.is_sound


def as_table(rows: dict[int, int]) -> pa.Table:
    return pa.table({"id": list(rows), "amount": list(rows.values())}, schema=SCHEMA)


def files_of(folder: Path) -> list[Path]:
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in found if not path.name.startswith(("LOG", "LOCK"))]


def flip(keyed: Keyed, rng: random.Random, spare: dict[str, Path]) -> None:
    path = rng.choice([path for path in files_of(keyed.index) if path.stat().st_size])
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(keyed: Keyed, rng: random.Random, spare: dict[str, Path]) -> None:
    path = rng.choice([path for path in files_of(keyed.index) if path.stat().st_size])
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def lose(keyed: Keyed, rng: random.Random, spare: dict[str, Path]) -> None:
    rng.choice(files_of(keyed.index)).unlink()


def add_garbage(keyed: Keyed, rng: random.Random, spare: dict[str, Path]) -> None:
    path = rng.choice(files_of(keyed.index))
    path.write_bytes(path.read_bytes() + rng.randbytes(40))


def swap_two(keyed: Keyed, rng: random.Random, spare: dict[str, Path]) -> None:
    one, other = rng.sample(files_of(keyed.index), 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def put_in_place(keyed: Keyed, folder: Path) -> None:
    shutil.rmtree(keyed.index)
    shutil.copytree(folder, keyed.index)


def go_back(keyed: Keyed, rng: random.Random, spare: dict[str, Path]) -> None:
    put_in_place(keyed, spare["old"])


def take_foreign(keyed: Keyed, rng: random.Random, spare: dict[str, Path]) -> None:
    put_in_place(keyed, spare["foreign"])


def take_one_old_file(keyed: Keyed, rng: random.Random, spare: dict[str, Path]) -> None:
    path = rng.choice(files_of(spare["old"]))
    target = keyed.index / path.relative_to(spare["old"])
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)


def copy_over_a_killed_one(keyed: Keyed, rng: random.Random, spare: dict[str, Path]) -> None:
    key = rng.randrange(300)
    with TemporaryDirectory(dir=spare["old"].parent) as before:
        shutil.copytree(keyed.index, before, dirs_exist_ok=True)
        resolve(keyed.table)
        keyed.stage(key, rng.randrange(300))
        resolve(keyed.table)
        keyed.stage(rng.randrange(300), rng.randrange(300))
        place = keyed.warehouse, keyed.table.name
        assert run_until_killed(resolve, *place, point="resolve.after_apply") == KILLED
        shutil.copytree(before, keyed.index, dirs_exist_ok=True)
    keyed.stage(key, rng.randrange(300))


DAMAGES = [
    flip, cut, lose, add_garbage, swap_two, go_back, take_foreign, take_one_old_file,
    copy_over_a_killed_one,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_damaged_index_costs_no_row(tmp_path: Path, damage) -> None:
    rng = random.Random(damage.__name__)
    keyed = Keyed(tmp_path)
    other = Keyed(tmp_path, "t.other")
    for each in (keyed, other):
        each.stage(1, 2)
        resolve(each.table)
    spare = {"old": tmp_path / "old", "foreign": tmp_path / "foreign"}
    shutil.copytree(keyed.index, spare["old"])
    shutil.copytree(other.index, spare["foreign"])
    keyed.stage(3, 4)
    resolve(keyed.table)
    for _ in range(ROUNDS):
        keyed.stage(rng.randrange(300), rng.randrange(300))
        damage(keyed, rng, spare)
        goal("G17", corruptions=1)
        assert resolve(keyed.table).staged_snapshots == 1
        keyed.check()


def resolve_on_full_disk(warehouse: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    table = open_table(warehouse, NAME)
    lock = lock_of(table)
    sys.dont_write_bytecode = True  # parts of modules would be left to others
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_DISK_BYTES, FULL_DISK_BYTES))
    try:
        resolve(table, lock=lock)
    except TableError as error:
        raise SystemExit(1 if "\n" in str(error) else REFUSED) from None


def test_full_disk_fails_the_cycle_cleanly_and_the_next_one_works(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path, rows=60_000)
    before = keyed.rows()
    keyed.stage(1, 2)
    for _ in range(2):  # not a crash loop: the same answer again
        child = started(resolve_on_full_disk, keyed.warehouse)
        child.join(120)
        assert child.exitcode == REFUSED
        assert keyed.rows() == before
        goal("G17", corruptions=1)
    assert resolve(keyed.table, lock=lock_of(keyed.table)).staged_snapshots == 1
    keyed.check()
