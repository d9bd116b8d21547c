"""Tables that the regression tests start from."""

from __future__ import annotations

import pytest

import tableformat as tf
from tests.support.staged_tables import BASE, SCHEMA, StagedTable, rows_of


@pytest.fixture
def staged(tmp_path):
    """In memory but for the index: the rows of `BASE` in one file."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows(*BASE))
    return staged


@pytest.fixture
def catalog(tmp_path):
    return tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))


@pytest.fixture
def table(catalog):
    """On disk: the rows of `BASE` in one file."""
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.append(rows_of(*BASE))
    return table
