"""PyIceberg's commits with icefold in their middle, and the other way round: see the histories.

What was committed has to be what the two do one after the other, in the order of their commits; the
loser of a race says so. The staging branch is also moved behind what was published, and staged to.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from pyiceberg.exceptions import CommitFailedException, ValidationException

import tableformat as tf
from resolver import resolve
from resolver.cursor import LostCursorError
from tests.property.test_pyiceberg_histories import (
    NAME,
    ON_V2,
    WEIGHTS,
    History,
    Row,
    Skipped,
    run_all,
)
from tests.support.interruptions import interrupt
from tests.support.rest_catalog import RestServer, rest_server

OURS = {
    "stage": ["stage.before_commit", "commit.before_swap"],
    "resolve": ["resolve.after_plan", "resolve.after_read", "resolve.after_match",
                "resolve.after_dv_write", "resolve.after_publish", "resolve.before_trim",
                "commit.before_swap"],
    "resolve_some": ["resolve.after_plan", "commit.before_swap"],
    "compact": ["compact.after_plan", "compact.after_write", "compact.before_commit",
                "commit.before_swap"],
    "expire": ["commit.before_swap", "commit.after_swap"],
}  # fmt: skip
OWN = {
    name: ["rowlevel.after_plan", "rowlevel.after_scan", "rowlevel.before_commit"]
    for name in ("own_delete", "own_update", "own_upsert")
}
OTHERS = ["move_main", "branches_and_tags", "change_columns", "change_spec", "expire_published"]
# A ValueError: PyIceberg on SQLite, where a snapshot of another branch came first.
LOST_RACES = (tf.TableError, CommitFailedException, ValidationException, ValueError)
TOLD = ("sequence number", "to unknown snapshot", "Snapshot with snapshot id", "no partition spec")


class CrossedHistory(History):
    """All steps of `History`, and one inside of the other."""

    def __init__(self, folder, seed: int, rest: RestServer | None = None) -> None:
        super().__init__(folder, seed, rest)
        self.staged_ids: list[int] = []
        self.is_race = False
        self.acted: str | None = None
        self.left: tuple[int | None, Counter[Row]] = (None, Counter())  # by who acted inside

    def step(self) -> str:
        crossed = {"inside_theirs": 12, "inside_ours": 12, "stage_behind": 2}
        weights = WEIGHTS | ({} if self.is_v3 else ON_V2) | crossed
        return self.rng.choices([*weights], [*weights.values()])[0]

    def note_staged(self, before: int | None, keys: set[int], rows: list[Row]) -> None:
        """On what the branch was when the commit landed."""
        head = self.head("staging")
        snapshot = self.theirs.load_table(NAME).metadata.snapshot_by_id(head)
        super().note_staged(snapshot.parent_snapshot_id, keys, rows)
        self.staged_ids.append(head)

    def upsert(self) -> None:
        """Keys that come in its middle are not seen: it appends theirs."""
        keys, seen = self.draw(), self.of_keys()
        if any(seen[key] > 1 for key in keys):
            raise Skipped
        rows = self.fresh(keys)
        try:
            self.theirs.load_table(NAME).upsert(self.arrow(rows), join_cols=["id"])
        except ValueError as error:  # of files of older schemas
            if "sequence number" in str(error):
                raise
            raise Skipped from error
        self.replace(keys & seen.keys(), rows)

    def resolve(self, limit: int | None = None) -> None:
        """How far it got is told by what it published: more may have been staged meanwhile."""
        if not self.is_race or self.head("staging") is None:
            super().resolve(limit)
            return
        try:
            resolve(self.table.refresh(), limit=limit)
        finally:
            self.note_published()

    def note_published(self) -> None:
        head = self.theirs.load_table(NAME).metadata.snapshot_by_id(self.head() or 0)
        named = None if head is None else head.summary.get("equality-convert-staging-snapshot")
        if self.head() in self.rows or named is None or int(named) not in self.staged_ids:
            return
        upto = self.staged_ids.index(int(named)) + 1
        for keys, rows in self.staged[self.published : upto]:
            self.replace(keys, rows)
        self.published = max(self.published, upto)

    # -- one inside of the other -------------------------------------------------------------------

    def ours(self) -> dict[str, list[str]]:
        return OURS | (OWN if self.is_v3 else {})

    def run_inside(self, name: str) -> None:
        if self.acted is None:
            self.note_published()  # in the middle of a cycle, by now
            self.note()
        self.acted = name
        try:
            getattr(self, name)()
            self.note()
        except Skipped:
            pass
        self.left = self.head(), self.main

    def inside_theirs(self) -> None:
        names = [*OTHERS, *([] if self.is_v3 else [*ON_V2] * 2)]
        theirs, ours = self.rng.choice(names), self.rng.choice([*self.ours()])
        commit = type(self.theirs).commit_table.__get__(self.theirs)

        def commit_table(*arguments):
            del self.theirs.commit_table
            self.run_inside(ours)
            return commit(*arguments)

        self.theirs.commit_table = commit_table
        self.race(f"{theirs} / {ours}", theirs)

    def inside_ours(self) -> None:
        ours = self.rng.choice([*self.ours()])
        theirs = self.rng.choice([*OTHERS, *([] if self.is_v3 else [*ON_V2] * 2)])
        points = self.table.environment.runtime.fail_points
        point = self.rng.choice(self.ours()[ours])
        self.left = (None, Counter())
        interrupt(self.table, point, lambda: self.run_inside(theirs))
        try:
            self.race(f"{ours} at {point} / {theirs}", ours)
            if ours in OWN and self.left[0] == self.head():
                self.main = self.left[1]  # it found nothing, so it was first
        finally:
            points.armed.clear()

    def race(self, what: str, name: str) -> None:
        self.acted, self.is_race = None, True
        try:
            getattr(self, name)()
        except LostCursorError:
            raise
        except LOST_RACES as error:
            told = str(error)
            is_other = type(error) is ValueError and not any(each in told for each in TOLD)
            if self.acted is None or is_other:
                raise
            if isinstance(error, tf.TableError) and "\n" in told:
                raise
            self.lost_races[f"{what}: {told[:60]}"] += 1
        finally:
            vars(self.theirs).pop("commit_table", None)
            self.acted, self.is_race = None, False

    # -- staging behind the cursor -----------------------------------------------------------------

    def stage_behind(self) -> None:
        """PyIceberg makes the branch anew where it was; `resolve` goes on as it says."""
        known = {each.snapshot_id for each in self.theirs.load_table(NAME).metadata.snapshots}
        before = self.staged_ids[: max(self.published - 1, 0)]
        old = [each for each in before if each in known and each in self.rows]
        if not old or self.has_lost or self.has_moved or self.head("staging") is None:
            raise Skipped
        at = self.rng.choice(old[-3:])
        del self.staged[self.published :], self.staged_ids[self.published :]
        self.theirs.load_table(NAME).manage_snapshots().remove_branch("staging").commit()
        self.theirs.load_table(NAME).manage_snapshots().create_branch(at, "staging").commit()
        for _ in range(self.rng.randint(1, 2)):
            self.stage()
        head = self.head()
        with pytest.raises(LostCursorError, match="--from-snapshot") as told:
            resolve(self.table.refresh())
        assert self.head() == head
        assert "\n" not in str(told.value)
        self.lost_races[str(told.value)[:110]] += 1
        named = re.findall(r"--from-snapshot (\d+)", str(told.value))
        assert named == [str(at)] or (not named and self.has_expired)
        resolve(self.table.refresh(), from_snapshot=at, skip_unpublished=not named)
        for keys, rows in self.staged[self.published :]:
            self.replace(keys, rows)
        self.published = len(self.staged)
        # What the branch has left behind is in no log: nobody goes back there.
        self.rows = {k: v for k, v in self.rows.items() if k in (None, self.head("staging"))}


LONG = pytest.param(1000, 200, 30, marks=pytest.mark.long)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("start", "count", "steps"), [(0, 2, 25), LONG])
def test_crossed_history_with_pyiceberg_equals_the_model(start, count, steps, tmp_path):
    done = run_all(tmp_path, range(start, start + count), steps, None, CrossedHistory)
    assert done["inside_theirs"] > count
    assert done["inside_ours"] > count


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("start", "count", "steps"), [(5, 1, 20), LONG])
def test_crossed_history_on_a_rest_catalog_equals_the_model(start, count, steps, tmp_path):
    """Odd seeds have a v3 table, of which PyIceberg changes all but rows."""
    seeds = range(start, start + count)
    done = run_all(tmp_path, seeds, steps, rest_server, CrossedHistory)
    assert done["inside_theirs"] > count
    assert done["inside_ours"] > count
