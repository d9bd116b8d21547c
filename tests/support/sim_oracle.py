"""What a run must look like: a fold over what the actors asked for. Shares no code with icefold.

It sees every swap as it happens, reads metadata as JSON, manifests with fastavro, Parquet with
pyarrow and the bitmap of a deletion vector with pyroaring. A snapshot belongs to the operation that
drew its id, so also those are known whose answer was lost or whose process died.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
from pyroaring import BitMap64

from tests.support.sim_world import Violation, World
from tests.support.table_checker import CheckedSnapshot, Read, check_snapshot, read_metadata

MARKER = "equality-convert-staging-snapshot"
Row = tuple[int, str | None, int]


@dataclass(eq=False, slots=True)
class Operation:
    """What an actor asked for. `keys` die in rows staged before, `rows` come.

    `becomes` is the meaning of an SQL statement: what a row is after it, None when it goes.
    """

    actor: str
    kind: str  # stage | append | publish | statement | rewrite | rollback | expire | clean
    rows: tuple[Row, ...] = ()
    keys: frozenset[int] = frozenset()
    ids: list[int] = field(default_factory=list)
    outcome: str = "running"
    becomes: Callable[[Row], Row | None] | None = None


@dataclass(frozen=True, slots=True)
class MainState:
    """Rows of a main snapshot, and how many staged snapshots are in them."""

    rows: Counter[Row]
    published: int


EMPTY = MainState(Counter(), 0)


class Oracle:
    """Checks every swap; raises nothing into the product, but ends the run."""

    def __init__(self, world: World, read: Read) -> None:
        self.world = world
        self.read = read
        self.operation_of: dict[int, Operation] = {}
        self.landed: dict[int, dict[str, Any]] = {}
        self.staged: list[int] = []
        self.main: dict[int, MainState] = {}
        self.refs: dict[str, int] = {}
        self.location = ""
        self.next_row_id = 0
        self.swaps = 0
        self.identities: dict[int, dict[int, tuple[Row, int]]] = {}
        self._files: dict[str, tuple[list[Row], list[int | None], list[int | None]]] = {}
        self._vectors: dict[tuple[int, str], BitMap64] = {}

    @property
    def waiting(self) -> int:
        """Staged snapshots that main does not have."""
        return len(self.staged) - self.state_of(self.refs.get("main")).published

    def state_of(self, snapshot_id: int | None) -> MainState:
        return EMPTY if snapshot_id is None else self.main[snapshot_id]

    def on_swap(self, location: str) -> None:
        self.swaps += 1
        try:
            self._see(read_metadata(self.read, location), location)
        except Exception as error:  # whatever it is, the product must not see it
            self.world.fail(f"{type(error).__name__}: {error} (at {location})")

    def settle(self, operation: Operation, outcome: str) -> None:
        """An operation has ended; check what it said against what is there (I9)."""
        operation.outcome = outcome
        self.world.outcomes[f"{operation.kind} {outcome}"] += 1
        landed = [each for each in operation.ids if each in self.landed]
        if outcome == "ok" and operation.kind in {"stage", "append"} and not landed:
            self.world.fail(f"acknowledged and missing: {operation}")
        is_definite = outcome in {"CommitConflictError", "FencedError"} or (
            operation.kind in {"stage", "append"} and outcome not in {"ok", "CommitUnknownError"}
        )
        if is_definite and landed:
            self.world.fail(f"said {outcome}, but landed: {operation}")

    def _see(self, metadata: dict[str, Any], location: str) -> None:
        self.location = location
        assert metadata["next-row-id"] >= self.next_row_id, "next-row-id went back"
        self.next_row_id = metadata["next-row-id"]
        refs = {name: ref["snapshot-id"] for name, ref in metadata.get("refs", {}).items()}
        old, self.refs = self.refs, refs
        fresh = [s for s in metadata["snapshots"] if s["snapshot-id"] not in self.landed]
        assert len(fresh) <= 1, "two snapshots in one swap"
        for snapshot in fresh:
            self._see_snapshot(metadata, snapshot)
        if not fresh:
            self._see_moved_refs(old, refs)

    def _see_snapshot(self, metadata: dict[str, Any], snapshot: dict[str, Any]) -> None:
        snapshot_id = snapshot["snapshot-id"]
        operation = self.operation_of.get(snapshot_id)
        assert operation is not None, f"nobody drew snapshot {snapshot_id}"
        assert not any(i in self.landed for i in operation.ids), f"landed twice: {operation}"
        if operation.outcome not in {"running", "CommitUnknownError", "crashed"}:
            raise Violation(f"landed after it had said {operation.outcome}: {operation}")
        self.landed[snapshot_id] = snapshot
        if operation.kind == "stage":
            assert self.refs["staging"] == snapshot_id
            self.staged.append(snapshot_id)
            return
        assert self.refs["main"] == snapshot_id
        parent = self.state_of(snapshot.get("parent-snapshot-id"))
        state = self._fold(parent, snapshot, operation)
        self.main[snapshot_id] = state
        self.check_rows(metadata, snapshot, state)
        self._check_identities(snapshot, operation)

    def _check_identities(self, snapshot: dict[str, Any], operation: Operation) -> None:
        """Row ids are unique; a row keeps its own, and what it holds, while it lives (I7, R42)."""
        now = self.identities[snapshot["snapshot-id"]]
        before = self.identities.get(snapshot.get("parent-snapshot-id", -1), {})
        if operation.becomes is not None:
            expected = _changed_identities(before, operation.becomes, snapshot["sequence-number"])
            assert now == expected, (
                f"a statement changed {set(now.items()) ^ set(expected.items())}"
            )
            return
        if operation.kind == "rewrite":
            assert now == before, f"a rewrite changed {set(now.items()) ^ set(before.items())}"
        changed = {row_id for row_id in now.keys() & before.keys() if now[row_id] != before[row_id]}
        assert not changed, f"rows changed under their row ids {changed}"
        kept = {row for row, _ in now.values()} & {row for row, _ in before.values()}
        ids = {row_id for row_id, (row, _) in before.items() if row in kept}
        assert ids <= now.keys(), "rows got other row ids"

    def _fold(self, parent: MainState, snapshot: dict[str, Any], operation: Operation) -> MainState:
        marker = snapshot["summary"].get(MARKER)
        if operation.kind == "append":
            carried = 0 if marker is None else self.staged.index(int(marker)) + 1
            assert carried in {0, parent.published}, f"an append moved the marker to {marker}"
            return MainState(parent.rows + Counter(operation.rows), parent.published)
        if operation.becomes is not None:
            carried = 0 if marker is None else self.staged.index(int(marker)) + 1
            assert carried == parent.published, f"a statement moved the marker to {marker}"
            after: Counter[Row] = Counter()
            for row, count in parent.rows.items():
                became = operation.becomes(row)
                if became is not None:
                    after[became] += count
            return MainState(after, parent.published)
        if operation.kind == "rewrite":
            carried = 0 if marker is None else self.staged.index(int(marker)) + 1
            assert carried == parent.published, f"a rewrite moved the marker to {marker}"
            return parent
        assert operation.kind == "publish", operation
        assert marker is not None, "a publish without a marker"
        published = self.staged.index(int(marker)) + 1
        assert published > parent.published, f"published again: {marker}"
        rows = Counter(parent.rows)
        for staged_id in self.staged[parent.published : published]:
            staged = self.operation_of[staged_id]
            for row in [row for row in rows if row[0] in staged.keys]:
                del rows[row]
            rows.update(staged.rows)
        return MainState(rows, published)

    def _see_moved_refs(self, old: dict[str, int], new: dict[str, int]) -> None:
        if new.get("main") != old.get("main"):
            assert new["main"] in self.main, "main points at a snapshot that never was on it"
        if new.get("staging") != old.get("staging"):
            state = self.main.get(new["staging"])
            assert state is not None, "staging moved to a snapshot that never was on main"
            assert state.published == len(self.staged), "the trim dropped staged changes"

    def check_rows(
        self, metadata: dict[str, Any], snapshot: dict[str, Any], state: MainState
    ) -> CheckedSnapshot:
        checked = check_snapshot(self.read, metadata, snapshot)
        foreign = [f.path for f in checked.live if f.content != 0 and f.offset is None]
        assert not foreign, f"equality or position deletes on main: {foreign}"
        dead = {
            f.referenced: self._vector(f.path, f.offset, f.size)
            for f in checked.live
            if f.offset is not None
        }
        found: Counter[Row] = Counter()
        identities: dict[int, tuple[Row, int]] = {}
        for file in checked.live:
            if file.content == 0:
                rows, ids, updates = self._rows(file.path)
                assert len(rows) == file.record_count, file
                gone = dead.get(file.path, ())
                for at, row in enumerate(rows):
                    if at in gone:
                        continue
                    found[row] += 1
                    stored, updated = ids[at], updates[at]
                    row_id = (file.first_row_id or 0) + at if stored is None else stored
                    assert row_id not in identities, f"row id {row_id} twice"
                    identities[row_id] = (
                        row, file.sequence_number if updated is None else updated
                    )  # fmt: skip
        self.identities[snapshot["snapshot-id"]] = identities
        if found != state.rows:
            raise Violation(
                f"snapshot {snapshot['snapshot-id']}: too many {dict(found - state.rows)}, "
                f"missing {dict(state.rows - found)}"
            )
        return checked

    def check_everything(self) -> None:
        """Every retained snapshot by its own files; every reachable object exists."""
        metadata = read_metadata(self.read, self.location)
        for snapshot in metadata["snapshots"]:
            state = self.main.get(snapshot["snapshot-id"])
            if state is not None:
                checked = self.check_rows(metadata, snapshot, state)
            else:
                checked = check_snapshot(self.read, metadata, snapshot)
            for file in checked.live:
                self.read(file.path)

    def _rows(self, path: str) -> tuple[list[Row], list[int | None], list[int | None]]:
        """Rows, and the row ids and last updates stored with them."""
        if path not in self._files:
            table = pq.read_table(io.BytesIO(self.read(path)))
            columns = [table.column(name).to_pylist() for name in ("id", "region", "amount")]
            rows = list(zip(*columns, strict=True))
            lineage = [
                table.column(name).to_pylist() if name in table.column_names else [None] * len(rows)
                for name in ("_row_id", "_last_updated_sequence_number")
            ]
            self._files[path] = (rows, lineage[0], lineage[1])
        return self._files[path]

    def _vector(self, path: str, offset: int | None, size: int) -> BitMap64:
        assert offset is not None
        if (offset, path) not in self._vectors:
            blob = self.read(path)[offset : offset + size]
            assert blob[4:8] == bytes([0xD1, 0xD3, 0x39, 0x64]), "not a deletion vector"
            self._vectors[offset, path] = BitMap64.deserialize(blob[8:-4])
        return self._vectors[offset, path]


def _changed_identities(
    before: dict[int, tuple[Row, int]], becomes: Callable[[Row], Row | None], sequence_number: int
) -> dict[int, tuple[Row, int]]:
    """A row keeps its id; only a row that changed was last updated by this snapshot (R42)."""
    after = {}
    for row_id, (row, updated) in before.items():
        became = becomes(row)
        if became is not None:
            # An UPDATE that writes what was there is an update all the same; see `sim_run`.
            after[row_id] = (became, updated if became == row else sequence_number)
    return after
