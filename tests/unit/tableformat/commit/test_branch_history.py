"""What a branch's history says, asked again as the branch grows, moves and loses its end."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.refs import SnapshotRef

from tableformat.commit.branch_history import branch_history, newest_saying, summary_of
from tableformat.errors import CorruptDataError
from tableformat.spec.metadata_models import snapshot_index
from tests.support.branch_graphs import graph_of

SNAPSHOTS = st.integers(1, 20)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    saying=st.sets(SNAPSHOTS, max_size=2),
    looks=st.lists(st.tuples(SNAPSHOTS, st.booleans()), min_size=1, max_size=8),
)
def test_newest_is_that_of_a_whole_walk_also_where_older_ones_come_back(seed, saying, looks):
    graph = graph_of(2, seed, 20)
    for each in graph.snapshots.values():
        each["summary"] |= {"said": "x"} if each["snapshot-id"] in saying else {}
    try:
        state = graph.state
    except CorruptDataError:  # numbers that went back
        return
    for head_id, has_expired in looks:
        refs = {"main": SnapshotRef(snapshot_id=head_id, snapshot_ref_type="branch")}
        first = min(max(saying, default=0) + 1, head_id) if has_expired else 0
        kept = [each for each in state.metadata.snapshots if each.snapshot_id >= first]
        there = {"snapshots": kept, "refs": refs if head_id in graph.snapshots else {}}
        looked_at = replace(state, metadata=state.metadata.model_copy(update=there))
        assert len(snapshot_index(looked_at.metadata)) == len(kept)
        whole = (e for e in branch_history(looked_at, "main") if "said" in summary_of(e))
        assert newest_saying(looked_at, "main", "said") is next(whole, None)
