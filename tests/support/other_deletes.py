"""Equality deletes on other columns than the key."""

from __future__ import annotations

import pyarrow as pa

from tableformat import Table
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.paths import equality_delete_locations
from tableformat.write.equality_deletes import write_equality_deletes


def delete_by(table: Table, **columns: list[object]) -> None:
    """Stage an equality delete of another writer, on any columns."""
    metadata, environment = table.refresh().state.metadata, table.environment
    files = write_equality_deletes(
        environment.store,
        pa.table(columns),
        schema=metadata.schema(),
        equality_ids=[metadata.schema().find_field(name).field_id for name in columns],
        spec=metadata.spec(),
        properties={},
        location_for=equality_delete_locations(metadata, environment.runtime.ids),
    )
    kind = CommitKind.ROW_DELTA
    change = Changeset(kind=kind, branch="staging", added_delete_files=tuple(files))
    commit(environment, table.identifier, change)
