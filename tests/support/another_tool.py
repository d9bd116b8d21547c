"""Commits as tools make them that know nothing of icefold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from pyiceberg.table.snapshots import Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from tableformat import Table
from tableformat.catalog.base import TableState
from tableformat.commit.evolution import update_properties
from tableformat.environment import Environment
from tableformat.spec.names import STAGING_MARKER

RETENTION = ("max_ref_age_ms", "max_snapshot_age_ms", "min_snapshots_to_keep")


@contextmanager
def another_tool(environment: Environment, keeps: Collection[str] = ()) -> Iterator[None]:
    """Commits within say nothing of icefold in their summary but `keeps`, and of no retention."""
    catalog = environment.catalog
    real = catalog.commit

    def commit(base: TableState, updates: Sequence[TableUpdate]) -> TableState:
        return real(base, [_anonymous(each, keeps) for each in updates])

    with patch.object(catalog, "commit", commit):
        yield


def _anonymous(update: TableUpdate, keeps: Collection[str]) -> TableUpdate:
    if isinstance(update, SetSnapshotRefUpdate):
        return update.model_copy(update=dict.fromkeys(RETENTION))
    if not isinstance(update, AddSnapshotUpdate):
        return update
    snapshot = update.snapshot
    assert snapshot.summary is not None
    said = snapshot.summary.additional_properties.items()
    own = {k for k, _ in said if k.startswith("icefold.") or k == STAGING_MARKER}
    kept = {k: v for k, v in said if k not in own or k in keeps}
    plain = Summary(snapshot.summary.operation, **kept)
    return update.model_copy(update={"snapshot": snapshot.model_copy(update={"summary": plain})})


def set_unchecked(table: Table, properties: Mapping[str, str]) -> None:
    """Set properties as a tool does that does not know what they mean."""
    update_properties(table.environment, table.identifier, updates=properties)
    table.refresh()
