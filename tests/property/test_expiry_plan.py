"""Expiry beside a plain model: no snapshot that is staged and not published ever goes.

The model is a list of staged snapshots for each staging branch, and for each snapshot of `main` how
much of the list it has published. It knows nothing of markers, retention or histories.
"""

import itertools
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tableformat.commit.branch_history import snapshots_by_id
from tableformat.commit.evolution import update_properties
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import create_branch, replace_branch, rollback
from tableformat.spec.names import MARKER_SEQUENCE_NUMBER, STAGING_MARKER
from tests.support.another_tool import another_tool
from tests.support.commit_tables import IDENTIFIER, CommitTable

STAGING = ("staging", "cdc", "flink")  # `flink` is written by another tool


class Histories(RuleBasedStateMachine):
    @initialize(feeder=st.sampled_from(STAGING))
    def create(self, feeder):
        self.table = CommitTable()
        self.names = itertools.count()
        self.feeder = feeder  # a target is published to from one staging branch
        self.staged = defaultdict(list)
        self.gone = set()  # were published when they expired
        self.published = {}  # snapshot of main -> number of the feeder's that are on it
        self.published[self.append()] = 0

    def append(self, branch="main", **options):
        self.table.clock.advance(1000)
        data = self.table.data(f"f{next(self.names)}")
        return self.table.append(data, branch=branch, **options).snapshot.snapshot_id

    def waiting(self, branch):
        done = self.published[self.table.head()] if branch == self.feeder else 0
        return [each for each in self.staged[branch][done:] if each not in self.gone]

    @rule(branch=st.sampled_from(STAGING), deletes=st.booleans())
    def stage(self, branch, deletes):
        self.table.clock.advance(1000)
        name = f"s{next(self.names)}"
        files = {"data": [self.table.data(name)], "branch": branch, "carry_marker": False}
        if branch == "flink":
            with another_tool(self.table.environment):
                result = self.table.row_delta(deletes=[self.table.equality_delete(name)], **files)
        else:
            gone = [self.table.equality_delete(name)] if deletes else []
            result = self.table.row_delta(deletes=gone, **files)
        self.staged[branch].append(result.snapshot.snapshot_id)

    @precondition(lambda self: self.waiting(self.feeder) and not self.gone_below())
    @rule(count=st.integers(1, 4), trims=st.booleans(), by=st.sampled_from(["icefold", "flink"]))
    def publish(self, count, trims, by):
        """Flink's converter says which staged snapshot was the last, and not its number."""
        waiting = self.waiting(self.feeder)[:count]
        head = self.table.head(self.feeder)
        said = {STAGING_MARKER: str(waiting[-1])}
        if by == "flink":
            with another_tool(self.table.environment, keeps=[STAGING_MARKER]):
                published = self.append(summary=said, carry_marker=False)
        else:
            by_id = snapshots_by_id(self.table.state.metadata)
            number = str(by_id[waiting[-1]].sequence_number)
            published = self.append(summary=said | {MARKER_SEQUENCE_NUMBER: number})
        self.published[published] = self.staged[self.feeder].index(waiting[-1]) + 1
        if trims and not self.waiting(self.feeder):
            replace_branch(
                self.table.environment, IDENTIFIER, self.feeder, to="main", expected_head=head
            )

    def gone_below(self):
        """Whether some of what a rollback made unpublished again was gone before: refused."""
        done = self.published[self.table.head()]
        return bool(self.gone.intersection(self.staged[self.feeder][done:]))

    @rule()
    def append_to_main(self):
        done = self.published[self.table.head()]
        self.published[self.append()] = done

    @rule()
    def append_to_main_with_another_tool(self):
        done = self.published[self.table.head()]
        with another_tool(self.table.environment):
            self.published[self.append(carry_marker=False)] = done

    @rule()
    def append_to_a_plain_branch(self):
        if self.table.head("dev") is None:
            create_branch(self.table.environment, IDENTIFIER, "dev")
        self.append("dev")

    @rule(data=st.data())
    def roll_main_back(self, data):
        by_id = {each.snapshot_id: each for each in self.table.state.metadata.snapshots}
        history, current = [], self.table.head()
        while current in by_id:
            history.append(current)
            current = by_id[current].parent_snapshot_id
        goal = data.draw(st.sampled_from(history))
        rollback(self.table.environment, IDENTIFIER, snapshot_id=goal)

    @rule(age=st.sampled_from([1, 10_000_000]))
    def let_refs_age(self, age):
        updates = {"history.expire.max-ref-age-ms": str(age)}
        update_properties(self.table.environment, IDENTIFIER, updates=updates)

    @rule(keep=st.integers(1, 3), age_ms=st.sampled_from([0, 2500]))
    def expire(self, keep, age_ms):
        self.table.clock.advance(10)
        waiting = {each for branch in STAGING for each in self.waiting(branch)}
        policy = ExpiryPolicy(max_snapshot_age_ms=age_ms, min_snapshots_to_keep=keep)
        report = apply_expiry(
            self.table.environment, IDENTIFIER, policy, fence=None, delete_files=False
        )
        assert waiting.isdisjoint(report.plan.snapshot_ids)
        self.take(report)

    @rule()
    def plain_branches_and_published_snapshots_go(self):
        if any(self.waiting(branch) for branch in STAGING):
            return
        self.table.clock.advance(10)
        policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
        report = apply_expiry(
            self.table.environment, IDENTIFIER, policy, fence=None, delete_files=False
        )
        self.take(report)
        # One made where the branch's history had expired below another tool's commit cannot say
        # what that held, and may be a staged one: it stays.
        dev = [
            each.snapshot_id
            for each in self.table.state.metadata.snapshots
            if each.summary.get("icefold.branch") == "dev" and each.summary.get("icefold.carried")
        ]
        assert set(dev) <= {self.table.head("dev"), self.table.head()}

    def take(self, report):
        """What expiry took; of a branch that ages out nothing waits, also after a rollback."""
        self.gone |= set(report.plan.snapshot_ids)
        for branch in STAGING:
            if self.table.head(branch) is None:
                assert not self.waiting(branch)
                self.gone |= set(self.staged[branch])


Histories.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    # Minutes of shrinking at every failure; the steps are printed and replayable without it.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_expiry_beside_a_model = pytest.mark.slow(Histories.TestCase)
