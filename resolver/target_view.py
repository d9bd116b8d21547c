"""A version of the table as a cycle meets it: what the backlog is held against."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

from resolver.runner import Runner
from resolver.target import LiveFiles
from tableformat.catalog.base import TableState
from tableformat.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """One version of the table, its two branches, and how files of it are read.

    Attributes:
        environment: Where files are.
        state: The version.
        staging, target: The branch whose changes are resolved, and the one they are published to.
        live: The live files of the target.
        runner: Where columns of many files are read.
    """

    environment: Environment
    state: TableState
    staging: str
    target: str
    live: LiveFiles
    runner: Runner

    @property
    def metadata(self) -> TableMetadata:
        """Of the version."""
        return self.state.metadata
