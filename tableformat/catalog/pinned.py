"""A catalog of one version of one table, for workers that must not ask the real one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tableformat.catalog.base import Identifier, TableState
from tableformat.errors import NotFoundError

# What finds local files beside the table; nothing that may be a secret.
_KEPT = ("warehouse", "index-directory")


@dataclass(frozen=True, slots=True)
class PinnedCatalog:
    """Gives the version it was made with. It reads; the writing half of `Catalog` is not there.

    Attributes:
        name: The real catalog's name.
        properties: Of the real one, those that say where things are.
        state: The table.
    """

    name: str
    properties: Mapping[str, str]
    state: TableState

    @staticmethod
    def of(name: str, properties: Mapping[str, str], state: TableState) -> PinnedCatalog:
        """Pin a table."""
        kept = {key: properties[key] for key in _KEPT if key in properties}
        return PinnedCatalog(name, kept, replace(state, stored=None))  # who reads needs it once

    def load_table(self, identifier: Identifier) -> TableState:
        """See `Catalog.load_table`."""
        if identifier != self.state.identifier:
            raise NotFoundError("there is no such table here", table=".".join(identifier))
        return self.state
