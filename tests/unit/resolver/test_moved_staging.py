"""Staging that somebody moves while a cycle runs: what it gave up is not published."""

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from resolver import resolve
from tableformat.commit.refs import create_branch, drop_ref, replace_branch, rollback
from tableformat.environment import Environment
from tableformat.errors import CommitUnknownError, NotFoundError
from tableformat.runtime import Runtime
from tableformat.spec.metadata_models import snapshot_index
from tableformat.table import Table
from tests.support.another_tool import another_tool
from tests.support.lying_lock import GrantAllLock
from tests.support.staged_tables import StagedTable, keys

OLD, ONE, TWO, NEW = (1, "eu", "old"), (2, "eu", "one"), (3, "eu", "two"), (4, "eu", "new")
POINTS = ["resolve.after_plan", "resolve.after_match", "commit.before_swap", "catalog.before_swap"]


class Moved(StagedTable):
    """Two staged snapshots wait; `beside` is the table as another process has it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.table.append(self.rows(OLD))
        self.table.stage(upserts=self.rows(ONE), deletes=keys(1))
        self.first = self.head_id("staging")
        self.table.stage(upserts=self.rows(TWO))
        self.second = self.head_id("staging")

    def head_id(self, branch):
        return self.table.refresh().state.head_id(branch)

    @property
    def beside(self):
        environment = Environment(self.environment.catalog, self.environment.store, Runtime())
        return Table(environment, self.table.state).refresh()

    def at(self, point, *acts):
        """Do something of others when a cycle is at a point for the first time."""
        points = self.environment.runtime.fail_points

        def run(name):
            points.armed.pop(name)
            for act in acts:
                act(self)

        points.armed[point] = run


def to(staged, snapshot_id):
    environment = staged.beside.environment
    replace_branch(environment, staged.table.identifier, "staging", to=snapshot_id,
                   expected_head=staged.beside.state.head_id("staging"))  # fmt: skip


def to_main(staged):
    to(staged, staged.beside.state.head_id("main"))


def to_first(staged):
    to(staged, staged.first)


def drop(staged):
    drop_ref(staged.beside.environment, staged.table.identifier, "staging")


def stage(staged):
    staged.beside.stage(upserts=staged.rows(NEW))


def append(staged):
    staged.beside.append(staged.rows((9, "eu", "beside")))


@pytest.fixture
def staged(tmp_path):
    return Moved(tmp_path)


@pytest.mark.parametrize("limit", [None, 1], ids=["all", "limit"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    ("acts", "rows"),
    [
        ((to_main,), {OLD}),
        ((to_main, append), {OLD, (9, "eu", "beside")}),
        ((append, to_main), {OLD, (9, "eu", "beside")}),
        ((to_main, stage), {OLD, NEW}),
        ((drop, stage), {OLD, NEW}),
        ((to_first,), {ONE}),
        ((to_first, stage), {ONE, NEW}),
        ((stage,), {ONE, TWO, NEW}),
    ],
    ids=["main", "main-append", "append-main", "main-stage", "anew", "back", "back-stage", "more"],
)
def test_what_staging_gives_up_during_a_cycle_is_not_published_and_what_waits_is(
    staged, acts, rows, point, limit
):
    staged.at(point, *acts)
    resolve(staged.table, limit=limit)
    assert set(staged.published()) <= rows | {OLD, ONE}
    while resolve(staged.table).staged_snapshots:
        pass
    assert set(staged.published()) == rows
    stage(staged)
    assert resolve(staged.table).staged_snapshots == 1


@pytest.mark.parametrize("point", POINTS)
def test_branch_that_is_dropped_during_a_cycle_stops_it_and_its_last_snapshot_is_named(
    staged, point
):
    staged.at(point, drop)
    with pytest.raises(NotFoundError, match="dropped with 2 unpublished snapshots") as raised:
        resolve(staged.table)
    assert raised.value.context["snapshot_id"] == str(staged.second)
    assert set(staged.published()) == {OLD}
    create_branch(staged.environment, staged.table.identifier, "staging", snapshot_id=staged.second)
    resolve(staged.table)
    assert set(staged.published()) == {ONE, TWO}


def test_publish_that_landed_is_settled_though_staging_was_moved_before_its_answer_was_lost(staged):
    def lose(_staged):
        raise CommitUnknownError("the answer was lost")

    staged.at("catalog.after_swap", to_main, lose)
    report = resolve(staged.table)
    assert (report.staged_snapshots, report.attempts) == (2, 1)
    assert set(staged.published()) == {ONE, TWO}


def test_history_that_expired_between_staging_and_what_is_published_refuses_nothing(staged):
    def expire(_staged):
        """Another tool stages, and takes the snapshots in between."""
        with another_tool(staged.beside.environment):
            for _ in range(2):
                stage(staged)
        table = staged.beside
        middle = snapshot_index(table.state.metadata)[table.state.head_id("staging")]
        assert middle.parent_snapshot_id is not None
        remove_snapshot(staged, middle.parent_snapshot_id)

    staged.at("resolve.after_match", expire)
    assert resolve(staged.table).staged_snapshots == 2
    assert set(staged.published()) == {ONE, TWO}


def remove_snapshot(staged, snapshot_id):
    environment = staged.beside.environment
    environment.catalog.commit(
        staged.beside.state, [RemoveSnapshotsUpdate(snapshot_ids=[snapshot_id])]
    )


def test_staging_on_a_publish_that_main_has_lost_still_has_what_it_covered(staged, tmp_path):
    """Somebody else publishes, and main is rolled back behind it: all is published once more."""
    before = staged.head_id("main")

    def publish_and_roll_back(_staged):
        other = staged.beside
        resolve(other, lock=GrantAllLock("same"), index_directory=tmp_path / "other")
        rollback(other.environment, other.identifier, snapshot_id=before)

    staged.at("resolve.after_match", publish_and_roll_back)
    report = resolve(staged.table, lock=GrantAllLock("same"))
    assert (report.staged_snapshots, report.attempts) == (2, 1)
    assert set(staged.published()) == {ONE, TWO}
