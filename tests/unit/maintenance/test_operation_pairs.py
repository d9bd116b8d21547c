"""Every operation of a table, with every other landing in the middle of it (I13-I15, G11).

| ours \\ lands | append | publish | delete | update | compact | expire | schema | spec | rollback |
|--------------|--------|---------|--------|--------|---------|--------|--------|------|----------|
| append       | ok     | ok      | ok     | ok     | ok      | ok     | ok     | ok   | ok       |
| publish      | ok     | no      | ok     | ok     | ok      | ok     | ok     | ok   | ok       |
| delete       | ok     | no      | no     | no     | no      | ok     | ok     | ok   | no       |
| update       | ok     | no      | no     | no     | no      | ok     | ok     | ok   | no       |
| compact      | ok     | ok      | ok     | ok     | no      | ok     | ok     | ok   | no       |
| expire       | ok     | ok      | ok     | ok     | ok      | ok     | ok     | ok   | ok       |
| schema       | ok     | ok      | ok     | ok     | ok      | ok     | no     | ok   | ok       |
| spec         | ok     | ok      | ok     | ok     | ok      | ok     | no     | no   | ok       |
| rollback     | ok     | ok      | ok     | ok     | ok      | no     | ok     | ok   | ok       |

ok: the rows are those of the one that landed, then ours. no: a typed error, and the rows are those
of the one that landed. What lands after our swap never makes an error. All touch one data file, and
the lock grants everyone the same token, so nothing but the commits keeps them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyiceberg.transforms import BucketTransform

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions, RemoveOrphansOptions
from maintenance.tasks.remove_orphans import remove_orphans
from resolver import resolve
from tableformat import Table
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import rollback
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, FencedError, InvalidInputError, NotFoundError
from tableformat.runtime import Runtime, SystemClock
from tests.support.goals import goal
from tests.support.lying_lock import GrantAllLock
from tests.support.memory_store import MemoryObjectStore
from tests.support.memory_tables import copy_of, memory_catalog
from tests.support.rowlevel_histories import NAME, SCHEMA, Rows, applied, as_table, load
from tests.support.skewed_clock import SkewedClock
from tests.support.table_checker import check_table

FIRST = {key: ("EU", key) for key in range(10)}
SECOND = {key: ("US", key) for key in range(100, 110)}
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
REFUSALS = (CommitConflictError, FencedError, InvalidInputError, NotFoundError)
BEFORE = ("commit.before_swap", "catalog.before_swap")
AFTER = ("catalog.after_swap", "commit.after_swap")


@dataclass(frozen=True)
class Operation:
    """What it does to the table and to its rows. `number` tells ours from what lands."""

    run: Callable[[Environment, Scene, int], object]
    effect: Callable[[Rows, int], Rows] = lambda rows, number: rows
    planned: str | None = None  # a fail point of its own between its reading and its commit


@dataclass
class Scene:
    """A table of two appends and two staged changes, and a lock that holds nobody up."""

    environment: Environment
    first_snapshot: int
    folder: Path
    lock: GrantAllLock = field(default_factory=lambda: GrantAllLock(tokens="same"))


def published(environment: Environment, scene: Scene, number: int) -> None:
    folder = scene.folder / str(number)  # an index has one user at a time
    report = resolve(load(environment), lock=scene.lock, index_directory=folder, engine="local")
    if number == 1 and report.staged_snapshots == 0:
        raise CommitConflictError("published by another already")


def compacted(environment: Environment, scene: Scene, number: int) -> None:
    report = compact(load(environment), CompactOptions(rewrite_all=True), lock=scene.lock)
    if report.errors:
        raise CommitConflictError("; ".join(report.errors))


def expired(environment: Environment, scene: Scene, number: int) -> None:
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    apply_expiry(environment, load(environment).identifier, policy, fence=None)


def rolled_back(environment: Environment, scene: Scene, number: int) -> None:
    rollback(environment, load(environment).identifier, snapshot_id=scene.first_snapshot)


OPERATIONS = {
    "append": Operation(
        lambda environment, _, n: load(environment).append(as_table({500 + n: ("EU", 3)})),
        lambda rows, n: {**rows, 500 + n: ("EU", 3)},
    ),
    "publish": Operation(
        published, lambda rows, _: {**rows, 6: ("EU", 60), 7: ("EU", 70)}, "resolve.after_match"
    ),
    "delete": Operation(
        lambda environment, _, n: load(environment).delete(f"id = {n}"),
        lambda rows, n: applied(rows, {n: None}),
        "rowlevel.after_scan",
    ),
    "update": Operation(
        lambda environment, _, n: load(environment).update({"amount": "amount + 9"}, f"id = {n}"),
        lambda rows, n: applied(rows, {n: (rows[n][0], rows[n][1] + 9)}) if n in rows else rows,
        "rowlevel.after_scan",
    ),
    "compact": Operation(compacted, planned="compact.after_write"),
    "expire": Operation(expired),
    "schema": Operation(
        lambda environment, _, n: load(environment).update_schema(
            lambda update: update.rename_column(("region", "amount")[n - 1], f"renamed_{n}")
        )
    ),
    "spec": Operation(
        lambda environment, _, n: load(environment).update_partitioning(
            lambda update: update.add_field("id", BucketTransform(n + 1), f"part_{n}")
        )
    ),
    "rollback": Operation(rolled_back, lambda rows, _: dict(FIRST)),
}


def matrix() -> dict[tuple[str, str], bool]:
    """Which pairs end well, from this module's table."""
    assert __doc__ is not None
    lines = [line.split("|")[1:-1] for line in __doc__.splitlines() if line.startswith("|")]
    _, *others = (cell.strip() for cell in lines[0])
    return {
        (line[0].strip(), other): cell.strip() == "ok"
        for line in lines[2:]
        for other, cell in zip(others, line[1:], strict=True)
    }


MATRIX = matrix()
CASES = [
    (ours, other, point)
    for ours, other in MATRIX
    for point in (OPERATIONS[ours].planned, *BEFORE, *AFTER)
    if point is not None  # reads and commits in one step
]


@pytest.fixture(scope="module")
def pristine() -> Table:
    properties = {"commit.retry.min-wait-ms": "0"}
    catalog = memory_catalog()
    table = catalog.create_table(NAME, SCHEMA, primary_key=["id"], properties=properties)
    table.append(as_table(FIRST))
    table.append(as_table(SECOND))
    table.stage(upserts=as_table({6: ("EU", 60)}))
    table.stage(upserts=as_table({7: ("EU", 70)}))
    return table


@pytest.fixture
def scene(pristine: Table, tmp_path: Path) -> Scene:
    first = pristine.state.metadata.snapshots[0].snapshot_id
    return Scene(copy_of(pristine.environment), first, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "other", "point"), CASES)
def test_pair_ends_as_the_table_says(scene: Scene, ours: str, other: str, point: str) -> None:
    mine, theirs = OPERATIONS[ours], OPERATIONS[other]
    armed = scene.environment.runtime.fail_points.armed
    rows = {**FIRST, **SECOND}

    def land(_: str) -> None:
        nonlocal rows
        del armed[point]
        theirs.run(replace(scene.environment, runtime=Runtime()), scene, 2)
        rows = theirs.effect(mine.effect(rows, 1) if point in AFTER else rows, 2)

    armed[point] = land
    error = None
    try:
        mine.run(scene.environment, scene, 1)
    except REFUSALS as refusal:
        error = refusal
    assert point not in armed, "it never came there"
    is_ok = point in AFTER or MATRIX[ours, other]
    assert (error is None) == is_ok, error
    if error is None and point not in AFTER:
        rows = mine.effect(rows, 1)
    table = load(scene.environment)
    found = [tuple(row.values())[:3] for row in table.scan().to_arrow().to_pylist()]
    assert sorted(found) == sorted((key, *row) for key, row in rows.items())
    check_table(table.environment.store.get, table.metadata_location)
    goal("G11", interleavings=1)


@pytest.mark.parametrize(
    ("ours", "point"), [(ours, point) for ours, other, point in CASES if other == "append"]
)
@pytest.mark.parametrize("skew_ms", [-HOUR_MS, 0, YEAR_MS])
def test_orphan_removal_takes_nothing_that_an_operation_needs(
    scene: Scene, ours: str, point: str, skew_ms: int
) -> None:
    """I21, I22, R75: also by a clock that is behind within the age limit, or ahead."""
    mine, store = OPERATIONS[ours], scene.environment.store
    assert isinstance(store, MemoryObjectStore)
    orphan = f"{load(scene.environment).state.metadata.location}/data/left.parquet"
    store.put(orphan, b"left by a process that died")
    store._objects[orphan] = (b"", SystemClock().now_ms() - 4 * HOUR_MS)
    runtime = Runtime(clock=SkewedClock(skew_ms))
    beside = replace(scene.environment, runtime=runtime)
    armed = scene.environment.runtime.fail_points.armed
    removed = []

    def land(_: str) -> None:
        del armed[point]
        options = RemoveOrphansOptions(older_than_ms=2 * HOUR_MS)
        report = remove_orphans(load(beside), options, lock=scene.lock)
        removed.extend(report.locations)

    armed[point] = land
    mine.run(scene.environment, scene, 1)
    assert removed == [orphan]
    table = load(scene.environment)
    rows = mine.effect({**FIRST, **SECOND}, 1)
    found = [tuple(row.values())[:3] for row in table.scan().to_arrow().to_pylist()]
    assert sorted(found) == sorted((key, *row) for key, row in rows.items())
    check_table(store.get, table.metadata_location)
    goal("G16", runs=1)
