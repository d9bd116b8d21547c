"""Branches and tags of one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Concatenate, ParamSpec

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit import cherry_pick, refs
from tableformat.environment import Environment
from tableformat.lookup.immutable_rows import check_picked
from tableformat.spec.names import MAIN_BRANCH

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class TableRefs:
    """What `Table.refs` gives: every method is one commit, and moves the table on.

    Attributes:
        environment: Catalog and clock.
        identifier: The table.
        move_on: Told the table's version after each commit.
    """

    environment: Environment
    identifier: Identifier
    move_on: Callable[[TableState], None]

    def create_branch(self, name: str, *, snapshot_id: int | None = None) -> None:
        """Create a branch at a snapshot, or at the head of `main`."""
        self._do(refs.create_branch, name, snapshot_id=snapshot_id)

    def create_tag(self, name: str, *, snapshot_id: int | None = None) -> None:
        """Create a tag at a snapshot, or at the head of `main`."""
        self._do(refs.create_tag, name, snapshot_id=snapshot_id)

    def drop(self, name: str) -> None:
        """Remove a branch or tag; its snapshots stay until they expire."""
        self._do(refs.drop_ref, name)

    def fast_forward(self, branch: str, *, to: str | int) -> None:
        """Move a branch to a descendant of its head."""
        self._do(refs.fast_forward, branch, to=to)

    def replace(self, branch: str, *, to: str | int, expected_head: int | None) -> None:
        """Point a branch anywhere, if its head is still `expected_head`."""
        self._do(refs.replace_branch, branch, to=to, expected_head=expected_head)

    def rollback(self, *, snapshot_id: int, branch: str = MAIN_BRANCH) -> None:
        """Point a branch back at one of its own ancestors."""
        self._do(refs.rollback, snapshot_id=snapshot_id, branch=branch)

    def cherry_pick(self, *, snapshot_id: int, branch: str = MAIN_BRANCH) -> int:
        """Apply the change of one snapshot to a branch; returns the new snapshot's id."""
        result = cherry_pick.cherry_pick(
            self.environment,
            self.identifier,
            snapshot_id=snapshot_id,
            branch=branch,
            check=partial(check_picked, self.environment, branch),
        )
        self.move_on(result.state)
        return result.snapshot.snapshot_id

    def _do(
        self,
        change: Callable[Concatenate[Environment, Identifier, P], TableState],
        *given: P.args,
        **named: P.kwargs,
    ) -> None:
        self.move_on(change(self.environment, self.identifier, *given, **named))
