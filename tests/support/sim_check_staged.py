"""A staged commit holds what its writer asked for; a truncate leaves no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.support.sim_files import Place, View
from tests.support.sim_fold import Staged, read_staged
from tests.support.sim_history import History
from tests.support.sim_operation import Operation
from tests.support.sim_world import Violation
from tests.support.table_checker import CheckedSnapshot


class StagedChecks(History):
    """What a staged snapshot must hold."""

    def _bind_staged(
        self, metadata: dict[str, Any], snapshot: dict[str, Any], operation: Operation
    ) -> None:
        """Staged rows are what was asked for, under a schema that the writer may have met."""
        checked = self.checked(metadata, snapshot, repeated=self.repeated)
        known = self.schemas.by_schema_id[snapshot["schema-id"]]
        before = self._vectors_before(metadata, checked)
        staged = read_staged(
            self.files,
            checked,
            before,
            operation.keys,
            known,
            next_row_id=self._next_row_id(snapshot),
            is_again=bool(operation.again),
            removed=self._removed_rows(metadata, checked) if operation.copies else None,
        )
        self.stages[snapshot["snapshot-id"]] = self._without_repeats(staged, operation)
        if operation.empties:
            self._check_emptied(checked)
        if operation.branch == "staging":
            for file in staged.files:
                self.order_of.setdefault(file.path, len(self.staged))
        expected = [] if operation.bound is None else [operation.bound]
        for schema in self.schemas.since(operation.since) if operation.bound is None else ():
            rows = operation.rows_under(schema)
            if rows is not None:
                expected.append((schema, tuple(rows)))
        for schema, wanted in expected:
            if Counter(wanted) == Counter(
                row
                for file in staged.files
                for at, row in enumerate(self.files.rows_of(file.path, schema))
                if at not in file.dead
            ):
                operation.bound = (schema, wanted)
                return
        raise Violation(f"other rows were staged: {operation}")

    def _without_repeats(self, staged: Staged, operation: Operation) -> Staged:
        """A batch of a stream that comes again means nothing, nor do deletes in its files."""
        if operation.epoch is not None:
            query, epoch = operation.epoch
            if epoch <= self.epochs.get(query, -1):
                self.world.outcomes["batches staged again"] += 1
                self.left_out.update(file.path for file in staged.files)
            self.epochs[query] = epoch
        dead = frozenset(dead.place for dead in staged.places if dead.place[0] in self.left_out)
        return replace(
            staged,
            never=dead if staged.is_copy and staged.files else frozenset(),
            files=tuple(file for file in staged.files if file.path not in self.left_out),
            places=tuple(dead for dead in staged.places if dead.place[0] not in self.left_out),
        )

    def _check_emptied(self, checked: CheckedSnapshot) -> None:
        """No row of a file that was there before is left."""
        dead = self.files.vectors(checked)
        for file in checked.live:
            is_older = file.content == 0 and file.snapshot_id != checked.snapshot["snapshot-id"]
            if is_older and len(dead.get(file.path, ())) != file.record_count:
                raise Violation(f"a truncate has left rows in {file.path}")

    def _next_row_id(self, staged: dict[str, Any]) -> int:
        """The first row id that nobody had where staging left main."""
        ancestors = self._history(staged.get("parent-snapshot-id"))
        left = next((each for each in ancestors if each not in self.stages), None)
        made = {} if left is None else self.landed[left]
        if "first-row-id" not in made:  # v2, where nobody stages positions
            return 0
        return int(made["first-row-id"] + made["added-rows"])

    def _removed_rows(
        self, metadata: dict[str, Any], checked: CheckedSnapshot
    ) -> Mapping[Place, int]:
        """Row ids, by their places, of live rows of the parent in files that are not there."""
        view, live = self._parent_view(metadata, checked), checked.names()
        return {place: row_id for place, row_id in view.places.items() if place[0] not in live}

    def _parent_view(self, metadata: dict[str, Any], checked: CheckedSnapshot) -> View:
        parent_id = checked.snapshot["parent-snapshot-id"]
        parent = next(s for s in metadata["snapshots"] if s["snapshot-id"] == parent_id)
        return self.files.view(
            self.checked(metadata, parent, repeated=self.repeated),
            metadata,
            self.schemas.by_schema_id[parent["schema-id"]],
        )

    def _vectors_before(
        self, metadata: dict[str, Any], checked: CheckedSnapshot
    ) -> Mapping[str, Any]:
        """Positions that had been dead when a snapshot with vectors on older files was made."""
        snapshot_id = checked.snapshot["snapshot-id"]
        own = {f.path for f in checked.live if f.snapshot_id == snapshot_id and f.content == 0}
        if all(f.referenced is None or f.referenced in own or f.snapshot_id != snapshot_id
               for f in checked.live):  # fmt: skip
            return {}
        view = self._parent_view(metadata, checked)
        before: dict[str, set[int]] = {}
        for path, position in view.dead:
            before.setdefault(path, set()).add(position)
        return before
