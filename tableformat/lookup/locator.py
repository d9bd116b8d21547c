"""The seam to an index: it says in which file, and where in it, the rows of keys are.

`tableformat` has no index; packages above it provide one. A provider is found by itself, through
the entry point `icefold.lookup` (a callable from `Environment` to `RowLocator`), or registered with
`register_locator`. Without any, or when it does not know, rows are found by a pruned scan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import pyarrow as pa
from pyiceberg.table.snapshots import Snapshot

from tableformat.array_types import Int64s
from tableformat.catalog.base import TableState
from tableformat.entry_points import EntryPoints
from tableformat.environment import Environment
from tableformat.lookup.result import LookupSource

EXTENSIONS = EntryPoints("icefold.lookup", "lookup")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQuery:
    """What to find.

    Attributes:
        state: The table.
        snapshot: The snapshot whose rows are wanted.
        branch: The branch it was reached by, if it was.
        index: Name of a secondary index; None: the primary key's.
        field_ids: The key's columns.
        keys: One column per field, by name, in that order; nulls are values like others.
    """

    state: TableState
    snapshot: Snapshot
    branch: str
    index: str | None
    field_ids: tuple[int, ...]
    keys: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveRows:
    """Live rows of keys.

    Attributes:
        key: Shape `(n,)`: ordinal of the key.
        file: Shape `(n,)`: ordinal in `paths`.
        position: Shape `(n,)`: 0-based row ordinal in the file.
        paths: Data files of the snapshot.
    """

    key: Int64s
    file: Int64s
    position: Int64s
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Located(LiveRows):
    """Where rows are: every live row of each key, and maybe some that are deleted.

    Attributes:
        source: `INDEX` or `FOLLOWED`.
        reason: What the index is behind, for people.
    """

    source: LookupSource = LookupSource.INDEX
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NotLocated:
    """The index cannot say.

    Attributes:
        reason: One line, for people.
    """

    reason: str


class RowLocator(Protocol):
    """An index, read beside whoever maintains it. Called by one thread at a time."""

    def locate(self, query: KeyQuery) -> Located | NotLocated:
        """Find the rows of keys; trouble with the index is an answer, not an error."""

    def close(self) -> None:
        """Release what is open."""


LocatorFactory = Callable[[Environment], RowLocator]
_registered: list[LocatorFactory] = []


def register_locator(factory: LocatorFactory) -> None:
    """Use this provider, whatever is installed."""
    _registered[:] = [factory]


def open_locator(environment: Environment) -> RowLocator | None:
    """The provider's locator; None when there is no provider."""
    if not _registered:
        for name in EXTENSIONS.names():
            register_locator(cast("LocatorFactory", EXTENSIONS.load(name)))
    return _registered[0](environment) if _registered else None
