"""Tables on local disk: where they are, and how another process sees them."""

from __future__ import annotations

from pathlib import Path

import tableformat as tf
from tableformat import Table


def folder_of(table: Table) -> Path:
    """The table's folder."""
    return Path(table.state.metadata.location.removeprefix("file://"))


def opened_again(table: Table) -> Table:
    """The table as another process loads it."""
    catalog = tf.open_catalog("local", warehouse=str(folder_of(table).parents[1]))
    return catalog.load_table(table.name)
