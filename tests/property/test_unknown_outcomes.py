"""Commits whose answer is lost, late or doubled: `ok` is in the table once, a conflict never (I9).

A commit is known by the data file it brings. After each the late requests land, and the table is
read by a checker that shares no code: a commit of unknown outcome is there or not, and if it is,
nothing it needs has been deleted (I10).
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tableformat.catalog.base import Identifier
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import CommitConflictError, CommitUnknownError
from tableformat.spec.data_file import DataFile
from tests.support.commit_tables import IDENTIFIER, CommitTable
from tests.support.goals import goal
from tests.support.memory_catalog import MemoryPointers
from tests.support.table_checker import check_snapshot, read_metadata

DELAYS_MS = {"late": 500, "later": 4_000, "much later": 30_000}  # it is looked for for 7 s
FAULTS = ["none", "lost request", "lost answer", "twice", "beaten", "beaten, lost answer",
          *DELAYS_MS]  # fmt: skip
ROUNDS = 11  # of all faults


@dataclass
class Transport:
    """Stands between the catalog and its pointers; `fault` is what the next swap meets."""

    table: CommitTable
    pointers: MemoryPointers
    rng: random.Random
    fault: str = "none"
    late: list[tuple[int, Identifier, str, str]] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.pointers, name)

    def read(self, identifier: Identifier) -> str | None:
        self.land()
        return self.pointers.read(identifier)

    def land(self) -> None:
        now_ms = self.table.clock.wall_ms
        due = [each for each in self.late if each[0] <= now_ms]
        self.late = [each for each in self.late if each[0] > now_ms]
        for _, identifier, expected, new in due:
            self.pointers.swap(identifier, expected=expected, new=new)

    def swap(self, identifier: Identifier, *, expected: str, new: str) -> bool:
        fault, self.fault = self.fault, "none"
        if fault.startswith("beaten"):
            self.table.append(self.table.data(f"rival-{self.rng.getrandbits(60):x}"))
        if fault == "lost request":
            raise ConnectionResetError("nothing was sent")
        if fault in DELAYS_MS:
            due_ms = self.table.clock.wall_ms + DELAYS_MS[fault]
            self.late.append((due_ms, identifier, expected, new))
            raise TimeoutError("no answer yet")
        swapped = self.pointers.swap(identifier, expected=expected, new=new)
        if fault == "twice":
            return self.pointers.swap(identifier, expected=expected, new=new)
        if fault.endswith("lost answer"):
            raise ConnectionResetError("the answer was lost")
        return swapped


class Trials:
    """One table and one commit after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.table = CommitTable(seed=seed, properties={"commit.manifest.min-count-to-merge": "4"})
        self.transport = Transport(self.table, self.table.pointers, self.rng)
        self.table.catalog.inner._pointers = self.transport
        self.files: dict[str, DataFile] = {}
        self.outcomes: Counter[str] = Counter()
        self.table.append(self.new_file())

    def new_file(self) -> DataFile:
        name = f"d{len(self.files)}"
        self.files[name] = self.table.data(name)
        return self.files[name]

    def run(self, fault: str) -> None:
        file, before = self.new_file(), self.live()
        changeset = self.draw(file, before)
        self.transport.fault = fault
        snapshot_id = None
        try:
            snapshot_id = self.table.commit(changeset).snapshot.snapshot_id
            outcome = "ok"
        except CommitConflictError:
            outcome = "conflict"
        except CommitUnknownError:
            outcome = "unknown"
        self.table.clock.advance(max(DELAYS_MS.values()))
        self.transport.land()
        count = self.live()[file.file_path]
        allowed = {"ok": {1}, "unknown": {0, 1}}.get(outcome, {0})
        assert count in allowed, (fault, outcome)
        if snapshot_id is not None:
            assert [s["snapshot-id"] for s in self.metadata()["snapshots"]].count(snapshot_id) == 1
        self.outcomes[f"{outcome} {count}"] += 1
        goal("G5", trials=1)

    def draw(self, file: DataFile, live: Counter[str]) -> Changeset:
        """An append, or a change of an existing file: then a rival's commit is no conflict."""
        olds = [each for each in self.files.values() if live[each.file_path]]
        kind = self.rng.choice([CommitKind.APPEND, CommitKind.REWRITE, CommitKind.ROW_DELTA])
        if kind == CommitKind.APPEND or not olds:
            return Changeset(kind=CommitKind.APPEND, added_data_files=(file,))
        old = self.rng.choice(olds)
        vectors = [
            entry
            for entry in self.table.live().values()
            if entry.data_file.referenced_data_file == old.file_path
        ]
        removed = tuple(vectors)
        added = (self.table.vector(old, f"v{len(self.files)}", cardinality=1 + len(vectors)),)
        if kind == CommitKind.REWRITE:
            removed, added = (self.table.entry(old), *vectors), ()
        return Changeset(
            kind=kind,
            added_data_files=(file,),
            added_delete_files=added,
            removed_entries=removed,
            validation=Validation(starting_snapshot_id=self.table.head()),
        )

    def metadata(self) -> dict:
        return read_metadata(self.table.store.get, self.table.state.metadata_location)

    def live(self) -> Counter[str]:
        """Live data files of the head; fails if anything it needs is not there."""
        metadata = self.metadata()
        head = metadata["refs"]["main"]["snapshot-id"]
        snapshot = next(s for s in metadata["snapshots"] if s["snapshot-id"] == head)
        return check_snapshot(self.table.store.get, metadata, snapshot).names()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_every_outcome_is_what_became_of_the_commit(seed):
    trials = Trials(seed)
    for _ in range(ROUNDS):
        for fault in trials.rng.sample(FAULTS, len(FAULTS)):
            trials.run(fault)
        policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=2)
        apply_expiry(trials.table.environment, IDENTIFIER, policy, fence=None)
    # Only a request that never came, or one that came after the last look, stays unknown.
    assert trials.outcomes == {
        "ok 1": ROUNDS * (len(FAULTS) - 2), "unknown 0": ROUNDS, "unknown 1": ROUNDS
    }  # fmt: skip
