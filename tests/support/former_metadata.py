"""Older metadata files that a table's log still lists."""

from __future__ import annotations

from tableformat.catalog.base import TableState
from tableformat.environment import Environment


def delete_former_metadata(environment: Environment, state: TableState) -> None:
    """As a cleaner leaves a table: its newest metadata file is all that tells of its past."""
    environment.store.delete([each.metadata_file for each in state.metadata.metadata_log])
