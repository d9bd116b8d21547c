"""Row ids of the target are decoded once, and are those that the table has."""

from __future__ import annotations

import pyarrow as pa
import pytest

from resolver import batch_parts, resolve, target_row_ids
from resolver.row_identity import NO_ROW_ID
from tests.support.staged_tables import StagedTable

FILES, ROWS = 4, 6


@pytest.fixture
def staged(tmp_path):
    table = StagedTable(tmp_path)
    table.table.set_properties({"icefold.publish": "rewrite"})
    for first in range(0, FILES * ROWS, ROWS):
        rows = ((key, "eu", "base") for key in range(first, first + ROWS))
        table.table.append(table.rows(*rows))
    return table


def ids(staged):
    rows = staged.table.refresh().scan(columns=["id", "_row_id"]).to_arrow().to_pylist()
    return {row["id"]: row["_row_id"] for row in rows}


def upsert(staged, keys, note):
    staged.table.stage(staged.rows(*((key, "eu", note) for key in keys)))
    return resolve(staged.table)


def opened(staged, monkeypatch):
    """Files that are opened from now on."""
    found, real = [], staged.environment.store.open_input
    monkeypatch.setattr(
        staged.environment.store,
        "open_input",
        lambda location, *args, **options: (
            found.append(location),
            real(location, *args, **options),
        )[1],
    )
    return found


def test_data_file_is_read_by_one_cycle_only(staged, monkeypatch):
    before = ids(staged)
    base = {task.entry.data_file.file_path for task in staged.tasks()}
    found = opened(staged, monkeypatch)

    for version in range(ROWS):
        upsert(staged, range(version, FILES * ROWS, ROWS), f"v{version}")
        assert base.intersection(found) == (base if version == 0 else set())
        found.clear()

    assert ids(staged) == before


@pytest.mark.parametrize(
    ("limit", "bytes_max"),
    [
        ("ROW_IDS_BYTES_MAX", 2 * ROWS * target_row_ids.ROW_BYTES),  # of two files
        ("ROW_IDS_BYTES_MAX", 0),
        ("ROWS_PER_WANTED_MAX", 1),  # none is asked for all of its rows
    ],
)
def test_files_that_are_not_kept_are_read_each_time(staged, monkeypatch, limit, bytes_max):
    monkeypatch.setattr(target_row_ids, limit, bytes_max)
    before = ids(staged)

    for version in range(3):
        upsert(staged, range(version, FILES * ROWS, ROWS), f"v{version}")
        upsert(staged, range(ROWS), f"again{version}")

    assert ids(staged) == before


def test_file_that_is_added_again_has_its_new_ids(staged):
    """A name does not tell the ids of rows: they come from the commit that adds the file."""
    upsert(staged, [0], "remembered")
    entries = [task.entry for task in staged.tasks()]
    first = min(entries, key=lambda entry: entry.data_file.first_row_id or 0)
    assert first.data_file.record_count == ROWS
    staged.commit(branch="main", removed=[first])
    staged.commit(branch="main", data=[first.data_file.with_(first_row_id=None)])
    now = ids(staged)
    assert now[1] >= FILES * ROWS

    upsert(staged, [1], "after")

    assert ids(staged)[1] == now[1]


@pytest.mark.parametrize(("parts", "is_kept"), [(4, True), (5, False)])
def test_batch_of_many_parts_keeps_nothing(staged, monkeypatch, parts, is_kept):
    before = ids(staged)
    upsert(staged, range(FILES * ROWS), "remembered")
    monkeypatch.setattr(batch_parts, "PART_KEYS", -(-2 * FILES * ROWS // parts))

    for version in range(2):
        upsert(staged, range(FILES * ROWS), f"v{version}")
        kept = target_row_ids._remembered.of(staged.environment.store)
        assert (kept.used > 0) == is_kept

    assert ids(staged) == before


@pytest.mark.parametrize("largest", [5, 2**32 - 1, 2**32, 2**40, 2**62, None])
def test_ids_of_any_size_are_kept_exactly(largest):
    ids = pa.array([0, 3, largest], pa.int64())

    assert target_row_ids._packed(ids).tolist() == ids.fill_null(NO_ROW_ID).to_pylist()
