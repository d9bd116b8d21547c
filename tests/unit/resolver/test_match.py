import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resolver.match import GLOBAL_SCOPE, dead_rows, group_by_file, newest_deletes

KEYS = 3
SCOPES = 2

row = st.tuples(st.integers(-1, KEYS - 1), st.integers(0, 4), st.integers(-1, SCOPES - 1))
delete = st.tuples(st.integers(0, KEYS - 1), st.integers(1, 4), st.integers(-1, SCOPES - 1))


def resolve(rows, deletes):
    columns = [np.array(c, dtype=np.int64) for c in zip(*deletes, strict=True)] or [
        np.empty(0, np.int64)
    ] * 3
    newest = newest_deletes(
        key=columns[0], order=columns[1], scope=columns[2], key_count=KEYS, scope_count=SCOPES
    )
    key, order, scope = (np.array(c, dtype=np.int64) for c in zip(*rows, strict=True))
    return dead_rows(newest, key=key, order=order, scope=scope).tolist()


def replay(rows, deletes):
    return [
        any(
            key == d_key and order < d_order and d_scope in (GLOBAL_SCOPE, scope)
            for d_key, d_order, d_scope in deletes
        )
        for key, order, scope in rows
    ]


@given(rows=st.lists(row, min_size=1, max_size=20), deletes=st.lists(delete, max_size=20))
def test_comparison_equals_replay_of_every_delete(rows, deletes):
    assert resolve(rows, deletes) == replay(rows, deletes)


def test_same_commit_upsert_survives_its_own_delete():
    assert resolve([(0, 2, 0)], [(0, 2, GLOBAL_SCOPE)]) == [False]


def test_scoped_delete_leaves_other_partitions_alone():
    assert resolve([(0, 0, 0), (0, 0, 1)], [(0, 1, 1)]) == [False, True]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30))
def test_group_by_file_keeps_every_pair_once(pairs):
    file, position = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    groups = group_by_file(file, position)
    assert [(g.file, int(p)) for g in groups for p in g.positions] == sorted(set(pairs))
