"""Reading the target's history as far down as is asked about finds what reading all of it finds.

The model is what `resolver.cursor` asks of a history, told from sets of the whole of it.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolver import cursor
from resolver.cursor import (
    base_of,
    down_to_base,
    marker_of,
    plan_backlog,
    skipped_snapshots,
    staged_above,
)
from tableformat.commit.branch_history import branch_history, committed_by_log
from tableformat.errors import CorruptDataError, TableError
from tests.support.branch_graphs import graph_of, ids_of

PAIRS = (("staging", "main"), ("other", "main"), ("staging", "other"), ("main", "main"))
GRAPHS = st.builds(
    graph_of,
    version=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 30),
)


class WholeHistory:
    """As `_NewestFirst`, from sets of everything."""

    def __init__(self, history):
        chain = list(history)
        self.ids = set(ids_of(chain))
        self.named = {marker_of(each) for each in chain}

    def has(self, snapshot):
        return snapshot.snapshot_id in self.ids

    def names(self, snapshot):
        return snapshot.snapshot_id in self.named


class EagerHistory(cursor._TargetHistory):
    """As it was before it was read lazily: the log is asked first, the cursor is of the chain."""

    def __init__(self, state, target, staging):
        super().__init__(state, target, staging)
        self.newest = WholeHistory(branch_history(state, target))
        self.cursor = cursor.newest_marker(self.chain)
        self.former = committed_by_log(state.metadata, target)

    def was_target(self, snapshot):
        is_former = snapshot.snapshot_id in self.former
        branch = cursor.committed_to(snapshot)
        is_theirs = is_former or branch == self.target or marker_of(snapshot) is not None
        return branch != self.staging and is_theirs


def outcome(ask, state, **options):
    try:
        return ask(state, **options)
    except TableError as error:
        return type(error), str(error), error.context


def answers(state):
    """Everything that can be asked about the branches, with its answer."""
    found = {}
    for staging, target in PAIRS:
        branches = {"staging": staging, "target": target}
        found[staging, target] = outcome(plan_backlog, state, **branches)
        for each in state.metadata.snapshots:
            number = each.snapshot_id
            found[staging, target, number] = (
                outcome(plan_backlog, state, from_snapshot=number, **branches),
                outcome(skipped_snapshots, state, from_snapshot=number, **branches),
                outcome(staged_above, state, snapshot_id=number, **branches),
                base_of(state, each, **branches),
                down_to_base(state, each, **branches),
            )
    return found


def by_whole_histories(state, patch):
    patch.setattr(cursor, "_TargetHistory", EagerHistory)
    return answers(state)


@pytest.mark.slow
def test_history_that_is_read_from_its_head_on_answers_as_the_whole_one(monkeypatch):
    seen = Counter()

    @settings(max_examples=400, deadline=None)
    @given(graph=GRAPHS)
    def check(graph):
        try:
            state = graph.state
        except CorruptDataError:
            return
        with monkeypatch.context() as patch:
            expected = by_whole_histories(state, patch)
        assert answers(state) == expected
        seen.update(told(expected["staging", "main"]))

    check()
    assert min(seen[each] for each in ("nothing", "backlog", "lost")) > 10, seen


def told(answer):
    if isinstance(answer, tuple):
        return ["lost"] if answer[0] is cursor.LostCursorError else ["other"]
    return ["backlog" if answer else "nothing"]
