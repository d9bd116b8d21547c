"""Conflicts, lost answers, lying locks and failing disks in the middle of a cycle."""

import threading
from collections import Counter

import pytest

from lock import LeaseLostError
from maintenance import expire
from resolver import resolve
from resolver.index_check import verify
from resolver.index_keeper import index_folder
from tableformat import TableCatalog
from tableformat.commit.evolution import update_properties
from tableformat.commit.refs import replace_branch
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    FencedError,
    StoreUnavailableError,
)
from tableformat.runtime import Runtime
from tableformat.table import Table
from tests.support.lying_lock import GrantAllLock
from tests.support.staged_tables import EVERYTHING, StagedTable


@pytest.fixture
def staged(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows(*[(key, "eu", "base") for key in range(20)]))
    staged.table.stage(upserts=staged.rows((1, "eu", "new"), (30, "eu", "new")))
    return staged


MATCHED = [
    "resolve.after_read", "resolve.after_match", "resolve.after_dv_write", "commit.before_swap",
]  # fmt: skip
EXPECTED = Counter(
    [(key, "eu", "base") for key in range(20) if key != 1] + [(1, "eu", "new"), (30, "eu", "new")]
)


def arm(staged, point, action, times=1):
    points = staged.environment.runtime.fail_points
    left = times

    def run(name):
        nonlocal left
        left -= 1
        if left <= 0:
            points.armed.pop(name, None)
        action()

    points.armed[point] = run


def other_process(staged):
    """The same table through other eyes: no shared fail points, its own handle."""
    environment = Environment(staged.environment.catalog, staged.environment.store, Runtime())
    return Table(environment, staged.table.state)


def puffins(staged):
    prefix = staged.table.state.metadata.location
    return {
        o.location
        for o in staged.environment.store.list_prefix(prefix)
        if o.location.endswith("puffin")
    }


def test_appends_faster_than_the_cycle_do_not_starve_it(staged):
    """L8: the writer commits before each of the first thirty attempts."""
    other = other_process(staged)
    keys = iter(range(100, 200))

    def commit():
        other.append(staged.rows((next(keys), "us", "beside"), (1, "us", "beside")))

    arm(staged, "resolve.after_dv_write", commit, times=30)
    report = resolve(staged.table)
    assert report.attempts == 31
    beside = Counter((key, "us", "beside") for key in range(100, 130))
    assert staged.published() == EXPECTED + beside  # key 1 of every append died in the publish
    assert verify(staged.table).report.is_sound


def test_definite_conflict_leaves_no_files_of_its_own(staged):
    before = puffins(staged)

    def lose(_name):
        raise CommitConflictError("lost")

    update_properties(
        staged.environment,
        staged.table.identifier,
        updates={"commit.retry.num-retries": "0"},
    )
    points = staged.environment.runtime.fail_points
    points.armed["catalog.before_swap"] = lose
    with pytest.raises(CommitConflictError):
        resolve(staged.table)
    points.armed.clear()
    assert puffins(staged) == before
    resolve(staged.table)
    assert staged.published() == EXPECTED


def test_lost_answer_of_the_publish_is_settled_by_looking(staged):
    def lose():
        raise CommitUnknownError("the answer was lost")

    arm(staged, "catalog.after_swap", lose)
    report = resolve(staged.table)
    assert report.staged_snapshots == 1
    assert staged.published() == EXPECTED
    assert resolve(staged.table).staged_snapshots == 0


def test_unknown_outcome_of_the_publish_deletes_no_vector(staged):
    """I10: the request may still land, and its snapshot needs them."""
    updates = {"commit.status-check.num-retries": "0"}
    update_properties(staged.environment, staged.table.identifier, updates=updates)
    before = puffins(staged)

    def lose():
        raise CommitUnknownError("the answer was lost")

    arm(staged, "catalog.before_swap", lose)
    with pytest.raises(CommitUnknownError):
        resolve(staged.table)
    assert len(puffins(staged) - before) == 1
    resolve(staged.table)
    assert staged.published() == EXPECTED


@pytest.mark.parametrize(
    "point",
    ["resolve.after_read", "resolve.after_match", "resolve.after_dv_write", "commit.before_swap"],
)
def test_failed_cycle_that_had_matched_keys_loses_nothing(staged, point):
    """R01."""

    def fail():
        raise StoreUnavailableError("the store is away")

    arm(staged, point, fail)
    with pytest.raises(StoreUnavailableError):
        resolve(staged.table)
    assert staged.published() == Counter((key, "eu", "base") for key in range(20))
    assert resolve(staged.table).deleted_rows == 1
    assert staged.published() == EXPECTED


def test_failed_cycle_that_had_matched_deletes_loses_none(staged):
    """R01, where no staged row is left that would show that the index has been there already."""

    def fail():
        raise StoreUnavailableError("the store is away")

    resolve(staged.table)
    staged.table.stage(deletes=staged.rows((30, None, "")).select(["id"]))
    arm(staged, "commit.before_swap", fail)
    with pytest.raises(StoreUnavailableError):
        resolve(staged.table)
    assert resolve(staged.table).deleted_rows == 1
    assert staged.published() == EXPECTED - Counter([(30, "eu", "new")])


def test_index_trouble_after_the_publish_costs_no_rows(staged):
    def fail():
        raise StoreUnavailableError("the disk is full")

    arm(staged, "resolve.after_prepare", fail)
    assert resolve(staged.table).staged_snapshots == 1
    staged.table.stage(deletes=staged.rows((30, None, "")).select(["id"]))
    resolve(staged.table)
    assert staged.published() == EXPECTED - Counter([(30, "eu", "new")])
    assert verify(staged.table).report.is_sound


@pytest.mark.parametrize("damage", [b"", b"x" * 64, None], ids=["cut", "overwritten", "missing"])
def test_damaged_index_is_built_afresh_within_the_cycle(staged, damage):
    """P9, R84: damage costs time, never rows."""
    resolve(staged.table)
    folder = index_folder(staged.environment, staged.table.state, "main")
    for file in [*folder.rglob("*.run"), *folder.rglob("*.sst")]:
        if damage is None:
            file.unlink()
        else:
            file.write_bytes(damage)
    staged.table.stage(deletes=staged.rows((30, None, "")).select(["id"]))
    assert resolve(staged.table).index == "built"
    assert staged.published() == EXPECTED - Counter([(30, "eu", "new")])
    assert verify(staged.table).report.is_sound


def test_index_of_another_table_is_not_used(staged, tmp_path):
    other = StagedTable(tmp_path / "other")
    other.table.append(other.rows((1, "eu", "other")))
    other.table.stage(upserts=other.rows((1, "eu", "new")))
    shared = tmp_path / "shared"
    resolve(other.table, index_directory=shared)
    assert resolve(staged.table, index_directory=shared).index == "built"
    assert staged.published() == EXPECTED


@pytest.mark.parametrize("tokens", ["rising", "same"])
def test_two_resolvers_under_a_lock_that_grants_everyone_publish_once(staged, tokens, tmp_path):
    """I16, R02: the second runs completely inside the first, just before its publish."""
    liar = GrantAllLock(tokens=tokens)
    other = other_process(staged)
    arm(
        staged,
        "resolve.after_dv_write",
        lambda: resolve(other, lock=liar, index_directory=tmp_path / "other-index"),
    )
    with pytest.raises((CommitConflictError, FencedError)):
        resolve(staged.table, lock=liar)
    assert staged.published() == EXPECTED
    assert resolve(staged.table).staged_snapshots == 0
    assert staged.published() == EXPECTED


@pytest.mark.parametrize("tokens", ["rising", "same"])
def test_rows_that_touch_no_file_of_the_target_are_published_once(tmp_path, tokens):
    """R02: nothing but the expected head tells that another cycle has published them."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((0, "eu", "base")))
    staged.table.stage(upserts=staged.rows((1, "eu", "new")))
    liar = GrantAllLock(tokens=tokens)
    other = other_process(staged)
    arm(
        staged,
        "resolve.after_dv_write",
        lambda: resolve(other, lock=liar, index_directory=tmp_path / "other-index"),
    )
    with pytest.raises((CommitConflictError, FencedError)):
        resolve(staged.table, lock=liar)
    assert staged.published() == Counter([(0, "eu", "base"), (1, "eu", "new")])


def test_change_staged_during_the_cycle_is_not_trimmed_away(staged):
    other = other_process(staged)
    later = staged.rows((2, "eu", "later"))
    arm(staged, "commit.before_swap", lambda: other.stage(upserts=later))
    report = resolve(staged.table)
    assert not report.trimmed
    assert report.staged_snapshots == 1, "what came while it was published waits"
    resolve(staged.table)
    assert staged.published() == EXPECTED - Counter([(2, "eu", "base")]) + Counter(
        [(2, "eu", "later")]
    )


def test_lease_that_is_lost_during_the_cycle_stops_it_before_the_publish(staged):
    """I17: it is proven at the store right before."""
    lost = False

    def take_away():
        nonlocal lost
        lost = True

    arm(staged, "resolve.after_match", take_away)
    with pytest.raises(LeaseLostError):
        resolve(staged.table, lock=GrantAllLock(lost=lambda _: lost))
    assert staged.published() == Counter((key, "eu", "base") for key in range(20))


def test_new_lock_store_hands_out_tokens_above_those_the_branch_has_seen(staged):
    """I17: the lock's store was lost or exchanged; the branch remembers."""
    tokens = GrantAllLock(granted=[None] * 6)
    resolve(staged.table, lock=tokens)
    staged.table.stage(upserts=staged.rows((2, "eu", "later")))
    fresh = GrantAllLock()
    assert resolve(staged.table, lock=fresh).staged_snapshots == 1
    assert fresh.granted[0].token > tokens.granted[-1].token


def test_zombie_with_an_older_token_cannot_publish(staged, tmp_path):
    """I17: its lease was taken over, and the new holder has published."""
    liar = GrantAllLock()
    other = other_process(staged)
    staged.table.stage(upserts=staged.rows((2, "eu", "later")))

    def take_over():
        resolve(other, lock=liar, limit=1, index_directory=tmp_path / "other-index")

    arm(staged, "resolve.after_match", take_over)
    with pytest.raises((FencedError, CommitConflictError)):
        resolve(staged.table, lock=liar)
    resolve(staged.table)
    assert staged.published() == EXPECTED - Counter([(2, "eu", "base")]) + Counter(
        [(2, "eu", "later")]
    )


def test_writers_and_resolvers_in_threads_lose_and_repeat_nothing(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((0, "eu", "base")))
    update_properties(
        staged.environment,
        staged.table.identifier,
        updates={"commit.retry.num-retries": "100", "commit.retry.min-wait-ms": "1"},
    )
    errors: list[BaseException] = []

    def run(task):
        try:
            task(TableCatalog(staged.environment).load_table("t.rows"))
        except BaseException as error:
            errors.append(error)

    def write(first):
        return lambda table: [
            table.stage(upserts=staged.rows((first + i, "eu", "x"), (0, "eu", f"{first + i}")))
            for i in range(8)
        ]

    def publish(table):
        for _ in range(6):
            if table.refresh().state.head("staging") is not None:
                resolve(table)

    threads = [
        threading.Thread(target=run, args=(task,)) for task in (write(100), write(200), publish)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    resolve(staged.table)
    found = staged.published()
    assert sum(found.values()) == 17
    assert {row[0] for row in found} == {0, *range(100, 108), *range(200, 208)}
    assert verify(staged.table).report.is_sound


def test_cycle_that_stood_still_while_its_backlog_was_published_and_expired_is_refused(
    staged, tmp_path
):
    """The target was set back to the head that it had planned on, and the lock lied."""
    base = staged.table.refresh().state.head("main").snapshot_id
    staged.table.stage(deletes=staged.rows((30, "eu", "")).select(["id"]))  # its file comes nowhere
    other = other_process(staged)

    def publish_expire_and_set_back():
        own = tmp_path / "other-index"
        report = resolve(other.refresh(), lock=GrantAllLock(), index_directory=own)
        assert report.staged_snapshots == 2
        other.append(staged.rows((99, "eu", "main")))
        expire(other, EVERYTHING, lock=GrantAllLock())
        head = other.refresh().state.head("main").snapshot_id
        replace_branch(staged.environment, other.identifier, "main", to=base, expected_head=head)

    staged.table.refs.create_tag("kept", snapshot_id=base)
    arm(staged, "resolve.after_dv_write", publish_expire_and_set_back)
    with pytest.raises(CommitConflictError, match="have expired"):
        resolve(staged.table, lock=GrantAllLock())
    assert staged.table.refresh().state.head("main").snapshot_id == base
