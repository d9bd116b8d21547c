"""The simulator's foreign tool makes tables that icefold and the checker find right."""

import pyarrow as pa
import pytest

from resolver import resolve
from tests.support.foreign_table import (
    ForeignCommit,
    ForeignTable,
    expire_snapshots,
    moved_branch,
    write_rows,
    write_vector,
)
from tests.support.memory_tables import memory_catalog
from tests.support.sim_schema import read_schema
from tests.support.table_checker import check_table

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
DAY_MS = 86_400_000


def rows(*given):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given],
                                schema=SCHEMA)  # fmt: skip


@pytest.fixture
def table(tmp_path):
    catalog = memory_catalog(str(tmp_path))
    table = catalog.create_table(
        "t.rows", SCHEMA, primary_key=["id"], partition_by=("bucket(2, id)",)
    )
    table.append(rows((1, "eu", 1), (2, "us", 2), (3, None, 3)))
    return table


def opened(table):
    return ForeignTable(table.environment.store.get, table.refresh().metadata_location)


def land(table, foreign, location):
    pointers = table.environment.catalog._pointers
    assert pointers.swap(table.identifier, expected=foreign.location, new=location)
    return check_table(table.environment.store.get, location)


def published(table):
    found = table.refresh().scan().to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def test_row_delta_of_another_tool_is_read_and_published(table):
    put, foreign = table.environment.store.put, opened(table)
    head = foreign.head("main")
    entry = next(e for e in foreign.entries(head) if e.file["record_count"] == 2)
    commit = ForeignCommit(foreign, "staging", "overwrite", 7001, 0, parent_branch="main")
    where = f"{foreign.metadata['location']}/data"
    row_id = entry.file["first_row_id"]
    schema = read_schema(foreign.metadata["schemas"][0])
    first = table.environment.store.get(entry.path)
    key = pa.parquet.read_table(pa.BufferReader(first)).column("id")[0].as_py()
    commit.add(entry, write_vector(put, f"{where}/v.puffin", entry.path, [0]))
    new = write_rows(put, f"{where}/n.parquet", schema, [(key, "eu", 9)], [row_id], [None])
    commit.add(entry, new)
    land(table, foreign, commit.write(put))
    before = published(table)
    assert resolve(table.refresh()).staged_snapshots == 1
    assert published(table) == sorted([r for r in before if r[0] != key] + [(key, "eu", 9)])
    table.append(rows((8, "eu", 8)))
    check_table(table.environment.store.get, table.refresh().metadata_location)


def test_rewrite_of_another_tool_changes_no_row(table):
    put, foreign = table.environment.store.put, opened(table)
    head = foreign.head("main")
    commit = ForeignCommit(foreign, "main", "replace", 7002, 0)
    schema = read_schema(foreign.metadata["schemas"][0])
    entry = foreign.entries(head)[0]
    stored = pa.parquet.read_table(pa.BufferReader(table.environment.store.get(entry.path)))
    kept = [tuple(row.values()) for row in stored.to_pylist()]
    ids = [entry.file["first_row_id"] + at for at in range(len(kept))]
    path = f"{foreign.metadata['location']}/data/c.parquet"
    file = write_rows(put, path, schema, kept, ids, [1] * len(kept))
    commit.add(entry, file, sequence_number=head["sequence-number"])
    commit.remove(entry)
    before = published(table)
    land(table, foreign, commit.write(put))
    assert published(table) == before


def test_fast_forward_moves_main_and_its_log(table):
    table.stage(upserts=rows((5, "eu", 5)))
    foreign = opened(table)
    staged = foreign.head("staging")["snapshot-id"]
    land(table, foreign, moved_branch(table.environment.store.put, foreign, "main", staged, 0))
    state = table.refresh().state
    assert state.metadata.current_snapshot_id == staged
    log = state.metadata.snapshot_log[-1]
    assert log.snapshot_id == staged
    assert log.timestamp_ms > state.metadata.snapshot_by_id(staged).timestamp_ms


def ages(table, *, ref=None, retain_last=1):
    """What another tool's expiry a day later takes, with settings of the staging ref."""
    foreign = opened(table)
    foreign.metadata["refs"]["staging"].update(ref or {})
    now_ms = foreign.metadata["last-updated-ms"] + DAY_MS
    return expire_snapshots(
        table.environment.store.put, foreign, now_ms=now_ms, older_than_ms=now_ms,
        retain_last=retain_last,
    )  # fmt: skip


def staged_three(table):
    for key in (5, 6, 7):
        table.stage(upserts=rows((key, "eu", key)))
    head = opened(table).head("staging")
    return [s["snapshot-id"] for s in opened(table).ancestors(head["snapshot-id"])]


def test_foreign_expiry_honours_what_a_ref_says(table):
    newest, second, first, base = staged_three(table)
    lasting = {"max-snapshot-age-ms": 2 * DAY_MS, "min-snapshots-to-keep": 1}
    kept = ages(table, ref=lasting)
    assert kept is None or not {newest, second, first} & set(kept.snapshot_ids)
    least = ages(table, ref={"max-snapshot-age-ms": 1, "min-snapshots-to-keep": 2})
    assert set(least.snapshot_ids) == {first}
    assert base not in least.snapshot_ids
    gone = ages(table, ref={"max-ref-age-ms": 1})
    assert gone.refs == ("staging",)
    assert {newest, second, first} <= set(gone.snapshot_ids)
    assert opened(table).head("staging")["manifest-list"] in gone.files
