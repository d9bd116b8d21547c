"""One process of many that commit to one table. Run as `python -m tests.support.commit_worker`.

Reads its orders as JSON from the command line, prints one JSON line per acknowledged commit. Every
worker mixes appends, vectors on its own files, vectors replacing vectors, removals and rewrites. A
conflict is planned again; an unknown outcome is looked up, never repeated blindly.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass, field
from typing import Any

from tableformat.backend import open_backend
from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import CommitResult, commit
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError
from tableformat.spec.data_file import DataFile, FileContent, ManifestEntry

IDENTIFIER = ("shop", "orders")
BRANCHES = ("main", "staging", "audit")


@dataclass
class Worker:
    """Its own files per branch, and what it has put there."""

    number: int
    environment: Environment
    location: str
    random: random.Random
    rows: dict[str, list[DataFile]] = field(default_factory=lambda: {b: [] for b in BRANCHES})
    counter: int = 0
    conflicts: int = 0

    def run(self, commits: int) -> None:
        for _ in range(commits):
            branch = self.random.choice(BRANCHES)
            while True:
                changeset, after = self.plan(branch)
                try:
                    result = commit(self.environment, IDENTIFIER, changeset)
                except CommitConflictError:
                    self.conflicts += 1
                    continue
                break
            self.rows[branch] = after
            self.report(result, branch, changeset)

    def plan(self, branch: str) -> tuple[Changeset, list[DataFile]]:
        own = self.rows[branch]
        state = self.environment.catalog.load_table(IDENTIFIER)
        head = state.head(branch)
        kind = self.random.choice(["append", "append", "vector", "vector", "delete", "rewrite"])
        if head is None or len(own) < 2:
            kind = "append"
        start = Validation(starting_snapshot_id=None if head is None else head.snapshot_id)
        if kind == "append":
            new = self.data_file()
            change = Changeset(kind=CommitKind.APPEND, branch=branch, added_data_files=(new,))
            return change, [*own, new]
        picked = self.random.choice(own)
        live = self.own_entries(head, own)
        if kind == "vector":
            old = [e for e in live if e.data_file.referenced_data_file == picked.file_path]
            change = Changeset(
                kind=CommitKind.ROW_DELTA,
                branch=branch,
                added_delete_files=(self.vector(picked, old),),
                removed_entries=tuple(old),
                validation=start,
            )
            return change, own
        removed = tuple(e for e in live if e.data_file.file_path == picked.file_path)
        left = [each for each in own if each is not picked]
        if kind == "delete":
            change = Changeset(
                kind=CommitKind.DELETE, branch=branch, removed_entries=removed, validation=start
            )
            return change, left
        new = self.data_file()
        change = Changeset(
            kind=CommitKind.REWRITE,
            branch=branch,
            removed_entries=removed,
            added_data_files=(new,),
            validation=start,
        )
        return change, [*left, new]

    def own_entries(self, head: Any, own: list[DataFile]) -> list[ManifestEntry]:
        paths = {each.file_path for each in own}
        store = self.environment.store
        return [
            entry
            for manifest in load_manifest_list(store, head)
            for entry in load_manifest(store, manifest)
            if entry.is_live
            and (
                entry.data_file.file_path in paths or entry.data_file.referenced_data_file in paths
            )
        ]

    def data_file(self) -> DataFile:
        self.counter += 1
        path = f"{self.location}/data/w{self.number}-{self.counter}.parquet"
        self.environment.store.put(path, b"PAR1")
        return DataFile(
            content=FileContent.DATA,
            file_path=path,
            file_format="PARQUET",
            spec_id=0,
            partition=(),
            record_count=10,
            file_size_in_bytes=4,
        )

    def vector(self, of: DataFile, old: list[ManifestEntry]) -> DataFile:
        self.counter += 1
        path = f"{self.location}/data/w{self.number}-{self.counter}.puffin"
        self.environment.store.put(path, b"PFA1" * 20)
        return DataFile(
            content=FileContent.POSITION_DELETES,
            file_path=path,
            file_format="PUFFIN",
            spec_id=0,
            partition=(),
            record_count=1 + sum(each.data_file.record_count for each in old),
            file_size_in_bytes=80,
            referenced_data_file=of.file_path,
            content_offset=4,
            content_size_in_bytes=44,
        )

    def report(self, result: CommitResult, branch: str, changeset: Changeset) -> None:
        snapshot = result.snapshot
        line = {
            "branch": branch,
            "snapshot_id": snapshot.snapshot_id,
            "sequence_number": snapshot.sequence_number,
            "first_row_id": snapshot.first_row_id,
            "added_rows": snapshot.added_rows,
            "added": [f.file_path for f in changeset.added_data_files],
            "removed": [e.data_file.file_path for e in changeset.removed_entries],
            "attempts": result.attempts,
            "conflicts": self.conflicts,
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    orders = json.loads(sys.argv[1])
    environment = open_backend(orders["catalog"], orders["properties"])
    location = environment.catalog.load_table(IDENTIFIER).metadata.location
    number = orders["number"]
    Worker(number, environment, location, random.Random(number)).run(orders["commits"])


if __name__ == "__main__":
    main()
