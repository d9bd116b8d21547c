"""Histories of concurrent statements, resolver cycles and compactions.

A statement may be interrupted at each of its phases by others, which may be interrupted in turn. A
run is a pure function of its seed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from resolver import resolve
from resolver.index_check import verify
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError
from tests.support.goals import goal
from tests.support.memory_tables import memory_catalog
from tests.support.rowlevel_histories import (
    NAME,
    SCHEMA,
    Change,
    Landed,
    Rows,
    add_to_ids,
    as_table,
    check_history,
    compact,
    delete_ids,
    delete_rich,
    load,
    main_snapshots,
    move_poor,
    tax_region,
)

PHASES = ("rowlevel.after_plan", "rowlevel.after_scan", "rowlevel.before_commit",
          "commit.before_swap")  # fmt: skip
DEPTH_MAX = 2
INTERRUPTED = 0.35
KEYS = 40


@dataclass
class History:
    """Runs operations, interrupts them, and remembers what landed."""

    environment: Environment
    rng: random.Random
    isolation: str
    landed: dict[int, Landed] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    depth: int = 0
    time: int = 0
    statements: int = 0
    next_key: int = KEYS
    is_resolving: bool = False

    def arm(self) -> None:
        for phase in PHASES:
            self.environment.runtime.fail_points.armed[phase] = self._interrupt

    def step(self) -> None:
        roll = self.rng.random()
        if roll < 0.72:
            self._statement()
        elif roll < 0.82:
            self._append()
        elif roll < 0.92:
            self._publish()
        else:
            self._compact()

    def _interrupt(self, _: str) -> None:
        if self.depth < DEPTH_MAX and self.rng.random() < INTERRUPTED:
            self.depth += 1
            try:
                self.step()
            finally:
                self.depth -= 1

    def _statement(self) -> None:
        self.statements += 1
        began = self._now()
        change = self._draw()
        table = load(self.environment)
        options = {"mode": self.rng.choice(["merge-on-read", "copy-on-write"])}
        if self.rng.random() < 0.3:
            options["retries"] = 2
        try:
            result = change.run(table, **options)
        except CommitConflictError:
            self.outcomes["conflict"] += 1
            return
        self.outcomes["committed" if result.snapshot else "nothing to do"] += 1
        self.outcomes["planned again"] += result.plans > 1
        if result.snapshot is not None:
            read = result.context.target.snapshot_id
            self.landed[result.snapshot.snapshot_id] = Landed(
                "statement", read, change, began=began, ended=self._now()
            )

    def _now(self) -> int:
        self.time += 1
        return self.time

    def _draw(self) -> Change:
        rng = self.rng
        low = rng.randrange(self.next_key)
        match rng.randrange(6):
            case 0:
                return delete_ids(low, low + rng.randrange(1, 3))
            case 1 | 2:
                return add_to_ids(low, low + rng.randrange(1, 8), rng.randrange(1, 50))
            case 3:
                return delete_rich(rng.randrange(60, 200))
            case 4:
                return tax_region(rng.choice(["EU", "US"]), rng.randrange(1, 9))
        return move_poor(rng.randrange(-30, 30), rng.choice(["EU", "US"]))

    def _append(self) -> None:
        began = self._now()
        rows = {self.next_key + i: ("EU", self.rng.randrange(90)) for i in range(2)}
        self.next_key += 2
        result = load(self.environment).append(as_table(rows))
        self.landed[result.snapshot.snapshot_id] = Landed(
            "append", None, writes=rows, began=began, ended=self._now()
        )

    def _publish(self) -> None:
        """Stage and resolve; the resolver matches again when its head moved, so it never fails."""
        if self.is_resolving:
            return  # the cycle that is interrupted holds the maintenance lock
        began = self._now()
        key = self.rng.randrange(self.next_key)
        rows: Rows = {key: ("US", self.rng.randrange(90))}
        gone = (key + 1) % self.next_key
        table = load(self.environment)
        keys = as_table({gone: (None, 0)}).select(["id"])
        table.stage(upserts=as_table(rows), deletes=keys)
        before = set(main_snapshots(self.environment))
        self.is_resolving = True
        try:
            resolve(table, engine="local")
        finally:
            self.is_resolving = False
        for snapshot_id in main_snapshots(self.environment):
            if snapshot_id not in before and snapshot_id not in self.landed:
                self.landed[snapshot_id] = Landed(
                    "publish", None, writes={**rows, gone: None}, began=began, ended=self._now()
                )

    def _compact(self) -> None:
        began = self._now()
        try:
            snapshot_id = compact(self.environment, lambda path: self.rng.random() < 0.6)
        except (CommitConflictError, ValueError):
            self.outcomes["compaction lost"] += 1
            return
        self.landed[snapshot_id] = Landed("compaction", None, began=began, ended=self._now())

    def check(self) -> None:
        check_history(self.environment, self.landed, isolation=self.isolation)


def run_history(seed: int, isolation: str, statements: int, folder) -> History:
    catalog = memory_catalog(index_directory=str(folder))
    properties = {f"write.{each}.isolation-level": isolation for each in ("delete", "update")}
    table = catalog.create_table(
        NAME,
        SCHEMA,
        primary_key=["id"],
        properties={**properties, "commit.retry.min-wait-ms": "0"},
    )
    rng = random.Random(seed)
    base = {key: (rng.choice(["EU", "US"]), rng.randrange(90)) for key in range(KEYS)}
    for start in range(0, KEYS, 10):
        table.append(as_table({key: base[key] for key in range(start, start + 10)}))
    history = History(catalog.environment, rng, isolation)
    for snapshot_id in main_snapshots(catalog.environment):
        history.landed[snapshot_id] = Landed("base", None)
    first = main_snapshots(catalog.environment)[::-1]
    for start, snapshot_id in zip(range(0, KEYS, 10), first, strict=True):
        rows = {key: base[key] for key in range(start, start + 10)}
        history.landed[snapshot_id] = Landed("base", None, writes=rows)
    history.arm()
    while history.statements < statements:
        history.step()
    catalog.environment.runtime.fail_points.armed.clear()
    history.check()
    goal("G10", simulated=history.statements)
    return history


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_concurrent_statements_keep_their_isolation(tmp_path, isolation: str) -> None:
    history = run_history(7, isolation, 30, tmp_path)
    assert history.outcomes["committed"] >= 8, history.outcomes
    assert history.outcomes["conflict"] >= 2, history.outcomes


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
@pytest.mark.parametrize("seed", range(10))
def test_five_hundred_statements_keep_their_isolation(tmp_path, isolation: str, seed: int) -> None:
    run_history(seed, isolation, 50, tmp_path)


def test_index_follows_statements(tmp_path) -> None:
    history = run_history(11, "serializable", 12, tmp_path)
    table = load(history.environment)
    table.stage(upserts=as_table({3: ("EU", 1)}))
    resolve(table, engine="local")
    report = verify(load(history.environment))
    assert report.report.is_sound, report
