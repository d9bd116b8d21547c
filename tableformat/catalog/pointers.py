"""The state of a pointer catalog, as a port: SQL tables, or the simulator's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tableformat.catalog.base import Identifier
from tableformat.errors import AlreadyExistsError


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerSwap:
    """Replace `expected` by `new`."""

    identifier: Identifier
    expected: str
    new: str


class MetadataPointers(Protocol):
    """Where the pointers live. Every method is one atomic step."""

    def read(self, identifier: Identifier) -> str | None:
        """The metadata location of a table; None if there is no such table."""

    def insert(self, identifier: Identifier, metadata_location: str) -> bool:
        """Add a table; False, and nothing done, if there is one."""

    def swap(self, identifier: Identifier, *, expected: str, new: str) -> bool:
        """Replace `expected` by `new`; False, and nothing done, if it is not `expected`.

        Raises:
            StoreUnavailableError: Nothing was changed, and nothing will be.
            Exception: Anything else: it may have been.
        """

    def swap_all(self, swaps: Sequence[PointerSwap]) -> bool:
        """As `swap`, for several tables: all are replaced, or none is.

        Args:
            swaps: Each table once, in the order of the identifiers: the order of the locks.
        """

    def remove(self, identifier: Identifier) -> bool:
        """Drop a table; False if there is none."""

    def rename(self, identifier: Identifier, new: Identifier) -> bool:
        """Give a table another name; False if there is none of that name.

        Raises:
            AlreadyExistsError: The new name is taken; nothing was done.
        """

    def tables(self) -> list[Identifier]:
        """All tables."""

    def locations(self) -> dict[Identifier, str]:
        """The metadata locations of all tables, in one read."""

    def add_namespace(self, namespace: Identifier) -> None:
        """Add a namespace; nothing if it exists."""

    def remove_namespace(self, namespace: Identifier) -> None:
        """Remove a namespace; nothing if it does not exist."""

    def namespaces(self) -> list[Identifier]:
        """All namespaces, also those that exist only through a table."""


def table_exists(identifier: Identifier) -> AlreadyExistsError:
    """The error for a name that is taken."""
    return AlreadyExistsError("table exists already", table=".".join(identifier))
