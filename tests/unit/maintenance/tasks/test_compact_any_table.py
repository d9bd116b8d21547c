"""Every table that other engines are shown: compacted, it reads the same, lineage included."""

from __future__ import annotations

import pytest

import tableformat as tf
from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.options import (
    CompactOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
)
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from tests.support.interop_engines import canonical_rows, plain_rows
from tests.support.interop_tables import CASES
from tests.support.table_checker import check_table

LINEAGE = ["_row_id", "_last_updated_sequence_number"]
SKIPPED = {"large_file", "no_snapshot"}


def seen(table):
    names = [field.name for field in table.schema().fields]
    rows = table.scan().to_arrow()
    ids = table.scan(columns=[*table.primary_key, *LINEAGE]).to_arrow()
    return canonical_rows(rows.select(names), rows.schema), sorted(plain_rows(ids), key=repr)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [case for case in CASES if case.__name__ not in SKIPPED],
    ids=lambda case: case.__name__,
)
def test_any_table_reads_the_same_after_all_rewrites(tmp_path, build):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = build(catalog).table
    expected = seen(table)
    rewrite_vectors(table, RewriteVectorsOptions(rewrite_all=True))
    assert seen(table) == expected
    report = compact(table, CompactOptions(rewrite_all=True))
    assert report.errors == ()
    assert seen(table) == expected
    drop_dead_deletes(table)
    rewrite_manifests(table, RewriteManifestsOptions(rewrite_all=True))
    assert seen(table) == expected
    assert all(not task.has_deletes for task in table.scan().plan.tasks)
    check_table(table.environment.store.get, table.refresh().metadata_location)
