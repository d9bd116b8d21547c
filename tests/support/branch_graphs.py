"""Snapshot graphs of a table with staging branches, as they come about: metadata alone, no files.

Each step is what icefold or another tool does to the branches. REPLACE TABLE beside other commits
may set sequence numbers back, as Java's does: icefold refuses to load such a table, so it publishes
to it only once they have caught up.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tableformat.catalog.base import TableState
from tableformat.spec.names import (
    CARRIED,
    COMMITTED_TO,
    STAGED_COMMITS,
    STAGING_BASE,
    STAGING_MARKER,
    WAP_ID,
)
from tests.support.table_metadata import metadata_of, raw_snapshot

BRANCHES = ("staging", "main", "other")


class BranchGraph:
    """A table's snapshots and branches; `step` adds to them."""

    def __init__(self, version: int, seed: int) -> None:
        self.version = version
        self.rng = random.Random(seed)
        self.snapshots: dict[int, dict[str, Any]] = {}
        self.heads: dict[str, int] = {}
        self.log: list[dict[str, int]] = []
        self.last_number = self.clock = self.last_id = 0
        self._commit("main", {})

    def step(self) -> None:
        steps = {
            self.stage: 6,
            self.publish: 5,
            self.on_main: 3,
            self.carry_along: 1,
            self.roll_back: 2,
            self.move: 1,
            self.trim: 2,
            self.forward: 1,
            self.pick: 1,
            self.expire: 1,
            self.replace_table: 0.6,
            self.drop: 0.3,
            self.upgrade: 1,
        }
        self.rng.choices(list(steps), list(steps.values()))[0]()

    @property
    def is_behind(self) -> bool:
        """Whether the next sequence number may be one that a snapshot has."""
        return self.last_number < max(map(self.number_of, self.snapshots))

    @property
    def state(self) -> TableState:
        """The version that is there now, as a catalog loads it."""
        main = self.heads.get("main")
        metadata = metadata_of(
            0,
            **{
                "format-version": self.version,
                "last-sequence-number": self.last_number if self.version > 1 else None,
                "next-row-id": 10_000 if self.version > 2 else None,
                "last-updated-ms": 1_700_000_000_000 + self.clock,
                "schema": {"type": "struct", "fields": []} if self.version == 1 else None,
                "partition-spec": [] if self.version == 1 else None,
                "current-snapshot-id": main,
                "snapshots": list(self.snapshots.values()),
                "snapshot-log": [e for e in self.log if e["snapshot-id"] in self.snapshots],
                "refs": {
                    name: {"snapshot-id": head, "type": "branch"}
                    for name, head in self.heads.items()
                },
            },
        )
        return TableState(("t",), metadata, "memory://warehouse/t/metadata/v.metadata.json")

    # -- icefold -----------------------------------------------------------------------------------

    def stage(self) -> None:
        branch = self.rng.choice(["staging"] * 4 + ["other"])
        summary: dict[str, str] = {"added-equality-deletes": "1"}
        if self.chance(0.6):
            base = self.number_of(self.heads.get("main"))
            summary |= {COMMITTED_TO: branch, STAGING_BASE: str(base)}
            if self.chance(0.5):
                summary |= self._carried("main")
        self._commit(branch, summary)

    def publish(self) -> None:
        if self.is_behind:
            return
        branch = self.rng.choice(["staging"] * 6 + ["other"])
        waits = list(self.chain(branch))[:4]
        if waits:
            says = {COMMITTED_TO: "main", STAGED_COMMITS: str(self.rng.randint(0, 2))}
            self._commit("main", {STAGING_MARKER: str(self.rng.choice(waits)), **says})
        if self.chance(0.3):
            self.trim()

    def on_main(self) -> None:
        if self.chance(0.5):
            self._commit("main", {COMMITTED_TO: "main", **self._carried("main")})
        else:
            self._commit("main", {}, self.rng.choice(["append", "replace", "overwrite"]))

    def trim(self) -> None:
        if "main" in self.heads:
            self._set("staging", self.heads["main"])

    # -- other tools -------------------------------------------------------------------------------

    def carry_along(self) -> None:
        """A commit that has the summary of any older one."""
        if self.is_behind:
            return
        copied = self.rng.choice(list(self.snapshots.values()))["summary"]
        self._commit(self.rng.choice(BRANCHES), dict(copied))

    def roll_back(self) -> None:
        branch = self.rng.choice(["main", "main", "staging"])
        history = list(self.chain(branch))
        if history:
            self._set(branch, self.rng.choice(history[:5]))

    def move(self) -> None:
        self._set(self.rng.choice(BRANCHES), self.rng.choice(list(self.snapshots)))

    def forward(self) -> None:
        onto = self.rng.choice(["staging", "other"])
        if self.heads.get("main") in self.chain(onto):
            self._set("main", self.rng.choice(list(self.chain(onto))))

    def pick(self) -> None:
        picked = self.rng.choice(list(self.snapshots))
        says = {"source-snapshot-id": str(picked), WAP_ID: "w"}
        self._commit("main", says if self.chance(0.5) else {"source-snapshot-id": str(picked)})

    def expire(self) -> None:
        """The oldest ones, or any; PyIceberg forgets that the rest had parents, too."""
        heads, known = set(self.heads.values()), sorted(self.snapshots)
        gone = known[: self.rng.randint(1, len(known))]
        if self.chance(0.3):
            gone = self.rng.sample(known, self.rng.randint(1, 2)) if len(known) > 2 else []
        for each in set(gone) - heads:
            del self.snapshots[each]
        forgets = self.chance(0.3)
        for snapshot in self.snapshots.values():
            if forgets and snapshot.get("parent-snapshot-id") not in self.snapshots:
                snapshot.pop("parent-snapshot-id", None)

    def replace_table(self) -> None:
        if self.version > 1 and self.chance(0.5):
            self.last_number = max(1, self.last_number - self.rng.randint(1, 6))
        self.heads.pop("main", None)
        self.log = []
        self._commit("main", {}, parent=None)

    def drop(self) -> None:
        self.heads.pop("staging", None)

    def upgrade(self) -> None:
        self.version = min(self.version + 1, 3)

    # -- parts -------------------------------------------------------------------------------------

    def chance(self, of: float) -> bool:
        return self.rng.random() < of

    def chain(self, branch: str) -> Iterator[int]:
        at = self.heads.get(branch)
        while at in self.snapshots:
            yield at
            at = self.snapshots[at].get("parent-snapshot-id")

    def number_of(self, snapshot_id: int | None) -> int:
        return self.snapshots.get(snapshot_id or 0, {}).get("sequence-number", 0)

    def _carried(self, branch: str) -> dict[str, str]:
        """What icefold's commits repeat of the cursor."""
        found = (self.snapshots[each]["summary"].get(STAGING_MARKER) for each in self.chain(branch))
        marker = next((each for each in found if each is not None), None)
        return {CARRIED: "true"} | ({} if marker is None else {STAGING_MARKER: marker})

    def _commit(
        self,
        branch: str,
        summary: dict[str, str],
        operation: str = "append",
        parent: int | None = -1,
    ) -> None:
        if parent == -1:
            parent = self.heads.get(branch, self.heads.get("main"))
        self.last_id += 1
        counts = {"added-data-files": "1"}
        if parent is not None and self.chance(0.8):
            counts["total-data-files"] = "2"
        snapshot = raw_snapshot(self.last_id, summary={"operation": operation, **counts, **summary})
        snapshot["parent-snapshot-id"] = parent
        self.clock += 1
        snapshot["timestamp-ms"] = 1_700_000_000_000 + self.clock
        del snapshot["sequence-number"]
        if self.version > 1:
            self.last_number += self.rng.choice([1, 1, 3])
            snapshot["sequence-number"] = self.last_number
        if parent is None:
            del snapshot["parent-snapshot-id"]
        if self.version < 3:
            del snapshot["first-row-id"], snapshot["added-rows"]
        self.snapshots[self.last_id] = snapshot
        self._set(branch, self.last_id, is_new=True)

    def _set(self, branch: str, snapshot_id: int, *, is_new: bool = False) -> None:
        self.clock += not is_new
        self.heads[branch] = snapshot_id
        if branch == "main":
            at = 1_700_000_000_000 + self.clock
            self.log.append({"snapshot-id": snapshot_id, "timestamp-ms": at})


def graph_of(version: int, seed: int, steps: int) -> BranchGraph:
    """What `steps` random steps make of a table that began with a snapshot on main."""
    graph = BranchGraph(version, seed)
    for _ in range(steps):
        graph.step()
    return graph


def ids_of(snapshots: Sequence[Any]) -> list[int]:
    """Of each its id."""
    return [each.snapshot_id for each in snapshots]
