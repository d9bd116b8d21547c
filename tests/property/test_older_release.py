"""Random histories in which an older icefold and this one take turns on one table.

Schedulers, writers and stewards are not upgraded in the same minute. The older one is a commit of
this repository, unpacked from git, in a process of its own; the model is a dict.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import release_worker

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("lock", "maintenance", "resolver", "tableformat")
OLDER = {
    "0.1": "884c716efb4d5238571eeec874e8c68eb6a1863a",
    "statements by sql, indexes of format 3": "6146e2f707823ca57102b50fbb0e37291c56dbf7",
}
KEYS = range(14)
APPENDED = range(14, 40)
WEIGHTS = {
    "stage": 10, "publish": 8, "append": 2, "rewrite": 3, "drop_snapshots": 2, "manifests": 1,
    "vectors": 1, "dead_deletes": 1, "delete": 2, "update": 2,
}  # fmt: skip

Row = tuple[int, str | None, int]


class Icefold:
    """One of them; its process lives as long as this."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", release_worker.__file__],
            env=os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, operation: str, warehouse: Path, **arguments: Any) -> Any:
        request = {"do": operation, "warehouse": str(warehouse), **arguments}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        assert "error" not in said, said["error"]
        return said["value"]

    def stop(self) -> None:
        self._process.communicate(timeout=60)


class History:
    """One table and the model; a step is a method, and any icefold may do it."""

    def __init__(self, all_of_them: Sequence[Icefold], warehouse: Path, seed: int) -> None:
        self.icefolds, self.warehouse = all_of_them, warehouse
        self.rng = random.Random(seed)
        self.main: dict[int, Row] = {}
        self.staged: list[tuple[list[Row], list[int]]] = []
        self.number = 0
        self.do(
            "create",
            partition_by=self.rng.choice([[], ["region"], ["bucket(2, id)"]]),
            properties=self.rng.choice([{}, {"icefold.publish": "rewrite"}]),
        )

    def do(self, operation: str, **arguments: Any) -> Any:
        return self.rng.choice(self.icefolds).do(operation, self.warehouse, **arguments)

    def fresh(self, keys: Sequence[int]) -> list[Row]:
        rows = []
        for key in keys:
            self.number += 1
            rows.append((key, self.rng.choice(["eu", "us", None]), self.number))
        return rows

    def step(self, name: str) -> None:
        getattr(self, name, lambda: self.do(name))()

    def stage(self) -> None:
        keys = self.rng.sample(KEYS, self.rng.randint(1, 7))
        at = self.rng.randint(0, min(4, len(keys)))
        upserts, deletes = self.fresh(keys[:at]), keys[at:]
        self.do("stage", upserts=upserts, deletes=deletes)
        self.staged.append((upserts, deletes))

    def publish(self) -> None:
        limit = self.rng.choice([None, None, None, 1, 2])
        self.do("publish", limit=limit)
        for upserts, deletes in self.staged[:limit]:
            for key in deletes:
                self.main.pop(key, None)
            self.main |= {row[0]: row for row in upserts}
        self.staged = [] if limit is None else self.staged[limit:]

    def append(self) -> None:
        rows = self.fresh([key for key in APPENDED if key not in self.main][:2])
        self.do("append", rows=rows)
        self.main |= {row[0]: row for row in rows}

    def drop_snapshots(self) -> None:
        self.do("drop_snapshots", keep=self.rng.randint(1, 3))

    def delete(self) -> None:
        key = self.rng.choice(KEYS)
        self.do("delete", where=f"id = {key}")
        self.main.pop(key, None)

    def update(self) -> None:
        key = self.rng.choice(KEYS)
        self.number += 1
        self.do("update", where=f"id = {key}", amount=self.number)
        if key in self.main:
            self.main[key] = (key, self.main[key][1], self.number)

    def check(self) -> None:
        expected = sorted(self.main.values())
        for each in self.icefolds:
            assert sorted(map(tuple, each.do("scan", self.warehouse))) == expected


def run(all_of_them: Sequence[Icefold], warehouse: Path, seed: int, steps: int) -> Counter[str]:
    history = History(all_of_them, warehouse, seed)
    names = [*history.rng.choices([*WEIGHTS], [*WEIGHTS.values()], k=steps), "publish"]
    for at, name in enumerate(names):
        try:
            history.step(name)
            history.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {name} after {names[:at]}: {error}") from error
    return Counter(names)


@pytest.fixture(scope="module", params=OLDER)
def icefolds(request: Any, tmp_path_factory) -> Iterator[Sequence[Icefold]]:
    command = ["git", "-C", str(CHECKOUT), "archive", OLDER[request.param], *PACKAGES]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        pytest.skip(f"a shallow clone without {request.param} (git fetch --unshallow)")
    older = tmp_path_factory.mktemp("older")
    subprocess.run(["tar", "-xC", str(older)], input=done.stdout, check=True)
    both = [Icefold(older), Icefold(CHECKOUT)]
    yield both
    for each in both:
        each.stop()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("start", range(0, 100, 10))
def test_history_of_two_releases_equals_the_model(icefolds, start, tmp_path):
    done = Counter[str]()
    for seed in range(start, start + 10):
        done += run(icefolds, tmp_path / str(seed), seed, 40)
    assert done.keys() == WEIGHTS.keys()
