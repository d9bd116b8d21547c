"""A large batch is matched by parts of its keys: with the same outcome."""

from __future__ import annotations

import numpy as np
import pytest

import resolver.batch_parts as batch_parts
import resolver.key_reader as key_reader
import resolver.resolution as resolution
from resolver import resolve
from tests.support.staged_tables import StagedTable, keys


@pytest.fixture
def in_parts(monkeypatch):
    """Batches of a few keys are large; counts the parts."""
    parts = []
    real = batch_parts.BatchPart

    def counted(**fields):
        parts.append(fields["rows"])
        return real(**fields)

    monkeypatch.setattr(batch_parts, "PART_KEYS", 8)
    monkeypatch.setattr(key_reader, "SMALL_FROM_ROWS", 0)
    monkeypatch.setattr(resolution, "PUT_ROWS", 3)
    monkeypatch.setattr(batch_parts, "BatchPart", counted)
    return parts


def history(folder, publish, partition_by):
    """What `main` has after cycles over random upserts and deletes."""
    staged = StagedTable(folder, partition_by=partition_by)
    staged.table.set_properties({"icefold.publish": publish})
    staged.table.append(staged.rows(*((key, "eu", "base") for key in range(20))))
    draw = np.random.default_rng(7)
    for cycle in range(3):
        for commit in range(3):
            upserted = draw.choice(30, 8, replace=False).tolist()
            gone = sorted({*draw.choice(30, 4).tolist()} - {*upserted})
            staged.table.stage(
                upserts=staged.rows(
                    *((key, ("eu", "us")[key % 2], f"{cycle}.{commit}") for key in upserted)
                ),
                deletes=keys(*gone) if "region" not in partition_by else None,
            )
        resolve(staged.table, limit=None if cycle % 2 else 2)
    columns = ["id", "region", "note", "_row_id", "_last_updated_sequence_number"]
    rows = staged.table.refresh().scan(columns=columns).to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


@pytest.mark.parametrize("partition_by", [(), ("bucket(2, id)",), ("region",)])
@pytest.mark.parametrize("publish", ["link", "rewrite"])
def test_parts_give_what_the_whole_gives(tmp_path, publish, partition_by, in_parts, monkeypatch):
    found = history(tmp_path / "parts", publish, partition_by)
    assert len(in_parts) > 12
    assert all(not isinstance(rows, slice) for rows in in_parts[:3])
    monkeypatch.undo()
    whole = history(tmp_path / "whole", publish, partition_by)
    if publish == "link":  # names of files decide which of them has the lower row ids
        found, whole = ([row[:3] for row in rows] for rows in (found, whole))
    assert found == whole


def test_batch_with_deletes_by_position_is_matched_as_a_whole(tmp_path, in_parts):
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows(*((key, "eu", "base") for key in range(20))))
    staged.table.stage(upserts=staged.rows(*((key, "eu", "new") for key in range(10))))
    staged.stage_vector(staged.tasks()[0].entry.data_file, 15)
    resolve(staged.table)
    assert [isinstance(rows, slice) for rows in in_parts] == [True]
    assert set(staged.published()) == {
        *((key, "eu", "new") for key in range(10)),
        *((key, "eu", "base") for key in range(10, 20) if key != 15),
    }
