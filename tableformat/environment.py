"""What every I/O function needs, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from tableformat.catalog.base import Catalog
from tableformat.commit_turns import CommitTurns
from tableformat.runtime import Runtime
from tableformat.store.base import ObjectStore


@dataclass(frozen=True, slots=True, repr=False)
class Environment:
    """The seams: catalog, object store, clock/ids/fail points; and whose turn it is to commit."""

    catalog: Catalog
    store: ObjectStore
    runtime: Runtime = field(default_factory=Runtime)
    turns: CommitTurns = field(default_factory=CommitTurns, compare=False)
