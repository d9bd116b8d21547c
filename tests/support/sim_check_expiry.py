"""Expiry takes nothing that waits, and cuts no history that Flink validates (R88)."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.sim_history import History
from tests.support.sim_world import Violation


class ExpiryChecks(History):
    """What may not go."""

    def _see_expiry(self, old: Mapping[str, int], gone: set[int], is_foreign: bool) -> None:
        """Expiry takes no staged change and no staging branch; another tool's none that icefold
        has given retention."""
        for branch in ("staging", *sorted(filter(self._is_known, self.others))):
            if branch not in old or not (gone or branch not in self.refs):
                continue
            waiting = self._waiting_on(branch, old)
            is_lost = branch not in self.refs and bool(waiting)
            lost = waiting & gone
            if not is_lost and not lost:
                continue
            if not is_foreign or branch in self.kept_branches:
                whose = "another tool's expiry" if is_foreign else "expiry"
                what = "the branch" if is_lost else f"snapshots {sorted(lost)}"
                raise Violation(f"{whose} took {what} of {branch}, whose changes wait")
            self.stranded |= lost
        self.kept_branches &= self.refs.keys()
        if self.location in self.strips:
            self.kept_branches.discard("staging")

    def _see_history_of_flink(self, known: set[int]) -> None:
        """Expiry cuts no history that was whole: Flink's sink validates all of it (R88)."""
        summaries = (self.landed[each]["summary"] for each in known)
        if self.retained >= known or not any(map(_is_delete_of_flink, summaries)):
            return
        for branch, head in self.refs.items():
            if branch.startswith("kept-tag-"):
                continue  # nobody commits to it
            history = set(self._history(head))
            if history <= known and not history <= self.retained:
                raise Violation(f"expiry cut the history of {branch}, which Flink validates")

    def _is_known(self, branch: str) -> bool:
        """Whether a branch can be told to be a staging branch: not by another tool's appends."""
        staged = (self.operation_of[each] for each in self.others[branch])
        return any(each.keys or not each.is_foreign for each in staged)

    def _waiting_on(self, branch: str, refs: Mapping[str, int]) -> set[int]:
        """Staged snapshots in a branch's history that no target has."""
        if branch != "staging":
            return set(self.others[branch]).intersection(self._history(refs[branch]))
        waiting = set(self.staged[self.state_of(refs.get("main")).published :])
        return {each for each in self._history(refs[branch]) if each in waiting}


def _is_delete_of_flink(summary: Mapping[str, str]) -> bool:
    """Whether Flink's sink committed it, and not icefold, which repeats what Flink said."""
    is_own = "flink.job-id" in summary and "icefold.carried" not in summary
    return is_own and ("added-equality-delete-files" in summary or "added-dvs" in summary)
