"""What a run must look like: a fold over what the actors asked for. Shares no code with icefold.

It sees every swap as it happens, reads metadata as JSON, manifests with fastavro, Parquet with
pyarrow and the bitmap of a deletion vector with pyroaring. A snapshot belongs to the operation that
drew its id, so also those are known whose answer was lost or whose process died.

| invariant | in |
|---|---|
| rows of main: the fold of what was staged and done | `sim_check_rows.py` |
| row ids | `sim_check_row_ids.py` |
| markers: nothing is published twice | `sim_check_markers.py` |
| staged commits hold what was asked for | `sim_check_staged.py` |
| expiry takes nothing that waits | `sim_check_expiry.py` |
| the index | `sim_check_index.py` |
| what was acknowledged is there, and once; delete files on main; branches that move | here |
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.sim_check_expiry import ExpiryChecks
from tests.support.sim_check_index import IndexChecks
from tests.support.sim_check_markers import MarkerChecks
from tests.support.sim_check_row_ids import RowIdChecks
from tests.support.sim_check_rows import RowChecks, different
from tests.support.sim_check_staged import StagedChecks
from tests.support.sim_files import View, spec_of
from tests.support.sim_fold import fold, in_other_schema
from tests.support.sim_history import MARKER, PUBLISH, MainState
from tests.support.sim_movers import see_move
from tests.support.sim_operation import Operation
from tests.support.sim_world import Violation
from tests.support.table_checker import read_metadata

WRITES = frozenset({"stage", "append", "upsert"})


class Oracle(RowChecks, RowIdChecks, MarkerChecks, StagedChecks, ExpiryChecks, IndexChecks):
    """Checks every swap; raises nothing into the product, but ends the run."""

    def begin(self, operation: Operation) -> None:
        """An operation starts."""
        operation.since = self.swaps
        if operation.shows is not None:
            operation.shown = operation.shows(self.schemas.current, self.spec)
            self.evolving.append(operation)

    def on_swap(self, location: str) -> None:
        self.swaps += 1
        try:
            self._see(read_metadata(self.read, location), location)
        except Exception as error:  # whatever it is, the product must not see it
            self.world.fail(f"{type(error).__name__}: {error} (at {location})")

    def settle(self, operation: Operation, outcome: str) -> None:
        """An operation has ended; check what it said against what is there (I9)."""
        operation.outcome = outcome
        if operation.shows is not None:
            self.evolving.remove(operation)
            if outcome == "ok" and not operation.shown:
                self.world.fail(f"acknowledged and not to be seen: {operation}")
        self.world.outcomes[f"{operation.kind} {outcome}"] += 1
        landed = [each for each in operation.ids if each in self.landed]
        is_moved = operation.source in self.main  # main was set to the snapshot that was picked
        if outcome == "ok" and operation.kind in WRITES and not (landed or is_moved):
            self.world.fail(f"acknowledged and missing: {operation}")
        is_definite = outcome in {"CommitConflictError", "FencedError"} or (
            operation.kind in WRITES and outcome not in {"ok", "CommitUnknownError"}
        )
        if is_definite and landed:
            self.world.fail(f"said {outcome}, but landed: {operation}")

    def _see(self, metadata: dict[str, Any], location: str) -> None:
        self.location, self.metadata = location, metadata
        self.settings.append((self.swaps, metadata["properties"].get(PUBLISH) == "rewrite"))
        self.schemas.see(metadata, self.swaps)
        self.spec = spec_of(metadata, metadata["default-spec-id"])
        for operation in self.evolving:
            operation.shown |= operation.shows is not None and operation.shows(
                self.schemas.current, self.spec
            )
        next_row_id = metadata.get("next-row-id", 0)  # v2 has none
        assert next_row_id >= self.next_row_id, "next-row-id went back"
        self.next_row_id = next_row_id
        refs = {name: ref["snapshot-id"] for name, ref in metadata.get("refs", {}).items()}
        old, self.refs = self.refs, refs
        if refs.get("main") != old.get("main"):
            self.heads.append((self.swaps, refs["main"]))
        known, self.retained = self.retained, {s["snapshot-id"] for s in metadata["snapshots"]}
        if location in self.moves:
            see_move(self)
            return
        self._see_expiry(old, known - self.retained, location in self.foreign_swaps)
        if location not in self.foreign_swaps and metadata["format-version"] > 2:
            self._see_history_of_flink(known)
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
        if operation.kind == "loose":  # on no branch; it may come to main as it is
            assert snapshot_id not in self.refs.values()
            return
        if operation.kind == "stage":
            assert self.refs[operation.branch] == snapshot_id
            self.repeated.update(operation.again)
            if operation.branch == "staging":
                self.staged.append(snapshot_id)
            else:
                self.others.setdefault(operation.branch, []).append(snapshot_id)
            if not operation.is_foreign:
                self.kept_branches.add(operation.branch)
            self._bind_staged(metadata, snapshot, operation)
            return
        if self.refs["main"] != snapshot_id:
            assert self.refs["audit"] == snapshot_id, operation
            self._see_audit(metadata, snapshot)
            return
        self._see_main(metadata, snapshot, operation)

    def _see_main(
        self, metadata: dict[str, Any], snapshot: dict[str, Any], operation: Operation
    ) -> None:
        """One of the states that the operation may have made is there."""
        snapshot_id, parent_id = snapshot["snapshot-id"], snapshot.get("parent-snapshot-id")
        parent = self.state_of(parent_id)
        self._check_marker(parent, snapshot, operation)
        schema = self.schemas.by_schema_id[snapshot["schema-id"]]
        view = self.view(metadata, snapshot, schema)
        self.files.check_computed(view, schema)
        states = list(self._folds(parent, snapshot, operation, schema, view))
        assert states, f"no schema could take it, but it landed: {operation}"
        fitting = [state for state in states if state.rows == view.found]
        if not fitting:
            raise different(snapshot, view.found, states[0].rows)
        if view.has_deletes and operation.kind not in {"pick", "upsert"}:
            surplus = {f.path for f in view.surplus} - self._may_keep(parent_id, operation)
            if surplus:
                raise Violation(f"equality or position deletes on main: {sorted(surplus)}")
        self._remember(snapshot_id, fitting[0], parent, view, operation)
        self._check_identities(snapshot, operation, parent.schema, fitting)

    def _may_keep(self, parent_id: int | None, operation: Operation) -> frozenset[str]:
        """Equality and position deletes of the parent; of a publish those that came after its
        start, which knew nothing of them."""
        given = self.deletes.get(parent_id or -1, frozenset())
        had_main = any(at <= operation.since for at, _ in self.heads)
        if operation.kind != "publish" or not had_main:
            return given
        heads = [self.deletes[each] for each in self._met(operation) if each in self.deletes]
        return given - frozenset.intersection(*heads) if heads else given

    def _remember(
        self,
        snapshot_id: int,
        state: MainState,
        parent: MainState,
        view: View,
        operation: Operation | None,
    ) -> None:
        """What is known of a snapshot of main, for those that follow it."""
        orders, renamed = parent.orders, parent.renamed
        if operation is not None and operation.is_lossy:
            parent_id = self.landed[snapshot_id].get("parent-snapshot-id", -1)
            before = in_other_schema(self.identities[parent_id], parent.schema, state.schema)
            orders, renamed = self._renamed(before, parent, view)
        live = {file.path for file in view.checked.live if file.content == 0}
        staged = frozenset(live & self.order_of.keys())
        self.listed[snapshot_id] = staged
        ever = parent.ever | staged
        if state.folded is not None and state.folded.placed:
            self.rewritten[snapshot_id] = state.folded.placed
            ever |= {path for path, _ in state.folded.placed}
        first = state.published
        waiting = {path for path in staged if self.order_of[path] > first}
        if waiting or any(order <= first for order in orders.values()):
            orders = {i: order for i, order in orders.items() if order > first}
            for (path, _), row_id in view.places.items() if waiting else ():
                if path in waiting:
                    orders[row_id] = self.order_of[path]
        self.identities[snapshot_id] = view.identities
        self.places[snapshot_id] = view.places
        self.deletes[snapshot_id] = _deletes(view)
        mark = self.landed[snapshot_id]["summary"].get(MARKER)
        self.main[snapshot_id] = replace(
            state,
            marked=parent.marked if mark is None else self.marked_by(mark),
            has_deletes=view.has_deletes,
            orders=orders,
            ever=ever,
            renamed=renamed,
        )

    def _forwarded(self, snapshot_id: int) -> None:
        """Main is at a staged snapshot: what staging was there, is main now."""
        history = self._history(snapshot_id)
        known = next((each for each in history if each in self.main), None)
        parent, published = self.state_of(known), self.staged.index(snapshot_id) + 1
        snapshot = next(s for s in self.metadata["snapshots"] if s["snapshot-id"] == snapshot_id)
        schema = self.schemas.by_schema_id[snapshot["schema-id"]]
        batch = [
            (at + 1, self.stages[self.staged[at]]) for at in range(parent.published, published)
        ]
        rows = fold(self._base(known, parent, schema), batch, self.files, schema).rows
        view = self.view(self.metadata, snapshot, schema)
        if rows != view.found:
            raise different(snapshot, view.found, rows)
        state = MainState(rows, published, schema)
        self._remember(snapshot_id, state, parent, view, None)

    def _see_moved_refs(self, old: dict[str, int], new: dict[str, int]) -> None:
        if new.get("main") != old.get("main"):
            if new["main"] not in self.main and new["main"] in self.staged:
                self._forwarded(new["main"])
            if self.operation_of[new["main"]].kind == "loose" and new["main"] not in self.main:
                self._see_published(new["main"])
            assert new["main"] in self.main, "main points at a snapshot that never was on it"
        if new.get("staging") not in {None, old.get("staging")}:
            state = self.main.get(new["staging"])
            assert state is not None, "staging moved to a snapshot that never was on main"
            assert state.published == len(self.staged), "the trim dropped staged changes"
            if self.location not in self.foreign_swaps:
                self.kept_branches.add("staging")

    def _see_published(self, snapshot_id: int) -> None:
        """Main is at a snapshot that was on no branch: an append on top of its parent."""
        snapshot = next(s for s in self.metadata["snapshots"] if s["snapshot-id"] == snapshot_id)
        written = self.operation_of[snapshot_id]
        append = Operation(written.actor, "append", bound=written.bound, is_foreign=True)
        self._see_main(self.metadata, snapshot, append)

    def check_everything(self) -> None:
        """Every retained snapshot by its own files; every reachable object exists."""
        metadata = read_metadata(self.read, self.location)
        for snapshot in metadata["snapshots"]:
            state = self.main.get(snapshot["snapshot-id"])
            if state is not None:
                view = self.view(metadata, snapshot, state.schema)
                checked = view.checked
                if view.found != state.rows:
                    raise different(snapshot, view.found, state.rows)
            else:
                checked = self.checked(metadata, snapshot, repeated=self.repeated)
            for file in checked.live:
                self.read(file.path)


def _deletes(view: View) -> frozenset[str]:
    """Files of equality deletes and of position deletes."""
    return frozenset(f.path for f in view.checked.live if f.content != 0 and f.offset is None)
