"""What the state of a staging branch tells the simulator's model, and what it cannot."""

from dataclasses import dataclass, field, replace

import pytest

from tests.support.sim_fold import Base, DeadPlace, Staged, StagedFile, as_in_state, fold
from tests.support.sim_schema import read_schema

SCHEMA = read_schema(
    {
        "schema-id": 0,
        "fields": [
            {"id": at, "name": name, "type": kind, "required": False}
            for at, (name, kind) in enumerate(
                [("id", "int"), ("region", "string"), ("amount", "int")], start=1
            )
        ],
    }
)
EMPTY = Base({}, {}, {}, frozenset(), frozenset(), {}, lambda _: ())
OLD = StagedFile("old", frozenset(), (None, None), 0)
NEW = StagedFile("new", frozenset(), (None,), 2)


@dataclass
class Rows:
    """`Files` of two staged files, whose rows leave nothing out."""

    rows: dict = field(
        default_factory=lambda: {"old": [(1, "eu", 1), (2, "eu", 2)], "new": [(2, "eu", 3)]}
    )

    def rows_of(self, path, _):
        return self.rows[path]

    def file(self, _):
        return self

    def lacks(self, *_):
        return False


def staged(*, keys=(), files=(), places=(), repeated=()):
    return Staged(frozenset(keys), tuple(files), tuple(places), 0, repeated=tuple(repeated))


def dead(at, *, is_own=False):
    return DeadPlace(("old", at), at + 1, at, is_own=is_own)


def row_ids(batch):
    folded = fold(EMPTY, batch, Rows(), SCHEMA, rewrites=True)
    return {row: row_id for row_id, row in folded.stored.items()}


UPSERT = (2, staged(keys=[2], files=[NEW]))
LATER = (3, staged(places=[dead(0)], repeated=[dead(1)]))
BY_ITS_OWN_COMMIT = [
    (1, staged(files=[replace(OLD, dead=frozenset({1}))], places=[dead(1, is_own=True)])),
    UPSERT,
    LATER,
]
BY_KEY = [(1, staged(files=[OLD])), UPSERT, LATER]  # repeated as dead by its key


def test_what_deleted_a_row_first_tells_its_successor_another_row_id():
    assert row_ids(BY_ITS_OWN_COMMIT) == {(2, "eu", 3): 2}
    assert row_ids(BY_KEY) == {(2, "eu", 3): 1}


@pytest.mark.parametrize("batch", [BY_ITS_OWN_COMMIT, BY_KEY], ids=["own vector", "key"])
def test_state_with_a_later_vector_does_not_tell_what_deleted_the_row_first(batch):
    assert row_ids(as_in_state(batch)) == {(2, "eu", 3): 1}


def test_state_with_the_vector_of_the_commit_itself_tells_that_the_row_never_lived():
    batch = BY_ITS_OWN_COMMIT[:2]
    assert row_ids(as_in_state(batch)) == {(1, "eu", 1): 0, (2, "eu", 3): 2}
