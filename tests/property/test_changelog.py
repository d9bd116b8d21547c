"""The changelog between any two snapshots of random histories, against dicts."""

from collections import Counter
from itertools import product

import pytest

from tests.support.changelog_model import RandomHistory, applied, expected, hashable


def visible_rows(version, schema):
    return Counter(hashable(RandomHistory.visible(row, schema)) for row in version.rows.values())


def as_changes(table):
    columns = [column.to_pylist() for column in table.columns]
    return [(kind, hashable(row)) for *row, kind, _, _ in zip(*columns, strict=True)]


def ancestors(history, snapshot_id):
    chain = []
    while snapshot_id is not None:
        chain.append(snapshot_id)
        snapshot_id = history.versions[snapshot_id].parent
    return [*chain, None]


def expected_steps(history, old, new, schema):
    """Back to the common ancestor in one step, then snapshot by snapshot."""
    forward = ancestors(history, new)
    meeting = next(each for each in ancestors(history, old) if each in forward)
    path = forward[: forward.index(meeting)][::-1]
    total = expected(history.versions[old].rows, history.versions[meeting].rows, schema)
    before = meeting
    for each in path:
        total += expected(history.versions[before].rows, history.versions[each].rows, schema)
        before = each
    return total


def check_all_pairs(history):
    for each, version in history.versions.items():
        if each is not None:
            found = history.table.scan(snapshot_id=each).to_arrow().to_pylist()
            rows = Counter(hashable(row.values()) for row in found)
            assert rows == visible_rows(version, version.schema), "the model is wrong"
    for old, new in product(history.versions, [v for v in history.versions if v is not None]):
        is_forward = old in ancestors(history, new)
        schema = history.versions[new].schema if is_forward else history.table.schema()
        start = visible_rows(history.versions[old], schema)
        end = visible_rows(history.versions[new], schema)
        net = history.table.changes(old, new, net=True).to_arrow()
        single = history.table.changes(old, new).to_arrow()
        assert applied(start, net) == end
        assert applied(start, single) == end
        before, after = history.versions[old].rows, history.versions[new].rows
        assert Counter(as_changes(net)) == expected(before, after, schema)
        assert Counter(as_changes(single)) == expected_steps(history, old, new, schema)
        for changes in (net, single):
            check_order(changes)


def check_order(changes):
    """Ordinals ascend; the two images of an update are neighbours and of one key."""
    ordinals = changes.column("_change_ordinal").to_pylist()
    assert ordinals == sorted(ordinals)
    rows = as_changes(changes)
    for place, (kind, row) in enumerate(rows):
        if kind == "-U":
            assert rows[place + 1][0] == "+U"
            assert rows[place + 1][1][0] == row[0]
        if kind == "+U":
            assert rows[place - 1][0] == "-U"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_changes_lead_from_every_snapshot_to_every_other(seed, tmp_path):
    partition_by = [(), ("bucket(3, id)",), ("bucket(2, id)",)][seed % 3]
    history = RandomHistory(seed, str(tmp_path), partition_by)
    history.grow(14)
    check_all_pairs(history)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_changes_lead_from_every_snapshot_to_every_other_in_long_histories(seed, tmp_path):
    history = RandomHistory(seed, str(tmp_path), ("bucket(3, id)",) if seed % 2 else ())
    history.grow(40)
    check_all_pairs(history)
