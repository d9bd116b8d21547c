"""Each marker on main is newer than its parent's, and repeated by who must (I8)."""

from __future__ import annotations

from typing import Any

from tests.support.sim_history import MARKER, History, MainState
from tests.support.sim_operation import Operation


class MarkerChecks(History):
    """Which staged snapshot a commit may name."""

    def _check_marker(
        self, parent: MainState, snapshot: dict[str, Any], operation: Operation
    ) -> None:
        marker = snapshot["summary"].get(MARKER)
        carried = self.marked_by(marker)
        what = f"{operation.kind} moved the marker to {marker}"
        match operation.kind:
            case "append" | "pick" | "upsert":
                assert carried in {0, parent.marked}, what
            case "statement" | "rewrite":
                # Other tools repeat none, and what they leave in the history may have expired.
                parent_id = snapshot.get("parent-snapshot-id")
                is_silent = operation.is_foreign or self._marks(parent_id) == []
                assert carried == parent.marked or (is_silent and not carried), what
            case _:
                assert operation.kind == "publish", operation
                if parent.has_deletes and carried in {0, parent.marked}:
                    return  # in place
                assert marker is not None, "a publish without a marker"
                if carried == parent.published and self.reads_state:  # nothing is staged, it says
                    parent_id = snapshot.get("parent-snapshot-id")
                    assert int(marker) not in self._marks(parent_id), f"said again: {marker}"
                    return
                assert carried > parent.published, f"published again: {marker}"
