"""A v2 table that stock PyIceberg wrote: read, upgraded, changed by us, read again by PyIceberg."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog as StockCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tableformat.backend import open_backend
from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.commit.evolution import update_schema, upgrade_format_version
from tableformat.commit.operations import replace_partitions_changeset
from tableformat.errors import UnsupportedError
from tableformat.scan.plan import plan_scan
from tableformat.scan.reader import read_scan
from tests.support.table_checker import check_snapshot, read_metadata

IDENTIFIER = ("shop", "orders")


@pytest.fixture
def stock(tmp_path):
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/wh"
    catalog = StockCatalog("shared", uri=uri, warehouse=warehouse)
    catalog.create_namespace("shop")
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "note", StringType())
    )
    table = catalog.create_table(IDENTIFIER, schema, properties={"format-version": "2"})
    rows = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
    for start in (0, 10, 20):
        ids = list(range(start, start + 10))
        table.append(pa.table({"id": ids, "note": [str(i) for i in ids]}, schema=rows))
    table.delete("id = 25")  # copy on write: a manifest with DELETED and EXISTING entries
    yield catalog, {"type": "sql", "uri": uri, "warehouse": warehouse}
    catalog.engine.dispose()


@pytest.fixture
def environment(stock):
    return open_backend("shared", stock[1])


def rows(environment, **columns):
    state = environment.catalog.load_table(IDENTIFIER)
    plan = plan_scan(environment, state)
    batches = list(read_scan(environment, plan))
    return sorted(row["id"] for batch in batches for row in batch.to_pylist())


def entries(environment):
    head = environment.catalog.load_table(IDENTIFIER).head("main")
    return [
        entry
        for manifest in load_manifest_list(environment.store, head)
        for entry in load_manifest(environment.store, manifest)
        if entry.is_live
    ]


EXPECTED = [each for each in range(30) if each != 25]


def test_v2_table_is_written_as_v2_and_by_pyiceberg_again(stock, environment):
    """Manifests of PyIceberg's that are written again, and ours that it writes again."""
    assert rows(environment) == EXPECTED
    victim = min(entries(environment), key=lambda entry: entry.sequence_number)
    commit(environment, IDENTIFIER, Changeset(kind=CommitKind.DELETE, removed_entries=(victim,)))
    expected = [each for each in EXPECTED if each >= 10]
    assert rows(environment) == expected
    theirs = stock[0].load_table(IDENTIFIER)
    assert sorted(theirs.scan().to_arrow()["id"].to_pylist()) == expected
    theirs.delete("id = 11")
    assert rows(environment) == [each for each in expected if each != 11]
    state = environment.catalog.load_table(IDENTIFIER)
    metadata = read_metadata(environment.store.get, state.metadata_location)
    assert metadata["format-version"] == 2
    assert "next-row-id" not in metadata
    [ours] = [s for s in metadata["snapshots"] if "icefold.branch" in s["summary"]]
    check_snapshot(environment.store.get, metadata, ours)


def test_column_default_needs_v3(environment):
    with pytest.raises(UnsupportedError, match="column defaults"):
        update_schema(
            environment, IDENTIFIER, lambda s: s.add_column("n", LongType(), default_value=1)
        )
    update_schema(environment, IDENTIFIER, lambda s: s.add_column("n", LongType()))
    assert rows(environment) == EXPECTED


def test_upgraded_table_gets_row_ids_at_its_first_commit(stock, environment):
    state = upgrade_format_version(environment, IDENTIFIER)
    assert state.metadata.format_version == 3
    assert state.metadata.next_row_id == 0
    before = entries(environment)
    assert {entry.data_file.first_row_id for entry in before} == {None}
    assert rows(environment) == EXPECTED

    snapshot = commit(environment, IDENTIFIER, Changeset(kind=CommitKind.APPEND)).snapshot

    after = entries(environment)
    assert [e.data_file.file_path for e in after] == [e.data_file.file_path for e in before]
    assert [e.sequence_number for e in after] == [e.sequence_number for e in before]
    spans = sorted((e.data_file.first_row_id, e.data_file.record_count) for e in after)
    end = 0
    for first, count in spans:
        assert first >= end
        end = first + count
    assert snapshot.first_row_id == 0
    assert end <= snapshot.added_rows
    state = environment.catalog.load_table(IDENTIFIER)
    assert state.metadata.next_row_id == snapshot.added_rows
    assert rows(environment) == EXPECTED
    # Stock PyIceberg reads v3.
    again = stock[0].load_table(IDENTIFIER).scan().to_arrow()
    assert sorted(again["id"].to_pylist()) == EXPECTED


def test_rewriting_a_v2_manifest_gives_its_files_row_ids(environment):
    upgrade_format_version(environment, IDENTIFIER)
    victim = min(entries(environment), key=lambda entry: entry.sequence_number)
    commit(environment, IDENTIFIER, Changeset(kind=CommitKind.DELETE, removed_entries=(victim,)))
    assert rows(environment) == [each for each in EXPECTED if each >= 10]
    assert None not in {entry.data_file.first_row_id for entry in entries(environment)}
    state = environment.catalog.load_table(IDENTIFIER)
    metadata = read_metadata(environment.store.get, state.metadata_location)
    newest = metadata["snapshots"][-1]
    check_snapshot(environment.store.get, metadata, newest)


def test_upgraded_table_can_be_overwritten_whole(environment):
    upgrade_format_version(environment, IDENTIFIER)
    state = environment.catalog.load_table(IDENTIFIER)
    kept = entries(environment)[0].data_file
    change = replace_partitions_changeset(
        environment, state, [kept.with_(file_path=f"{kept.file_path}.copy")]
    )
    snapshot = commit(environment, IDENTIFIER, change).snapshot
    assert snapshot.summary["total-data-files"] == "1"
