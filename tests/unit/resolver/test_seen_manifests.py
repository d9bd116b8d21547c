"""What a process has seen in manifests is there for the next one, wherever the index is."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import resolve
from tableformat.codec.avro import manifest_notes, manifest_store

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
FILES = 8


def rows(*ids):
    return pa.table({"id": ids, "note": ["x"] * len(ids)}, SCHEMA)


@pytest.mark.parametrize("shared", [False, True], ids=["local index", "shared index"])
def test_next_process_reads_the_manifests_that_it_needs(tmp_path, monkeypatch, shared):
    for name in ("UNNOTED_FILES_MAX", "UNNOTED_SHARE_MAX"):
        monkeypatch.setattr(manifest_notes, name, 0)
    properties = {"index-cache-directory": str(tmp_path / "cache")}
    if shared:
        properties["index-location"] = f"file://{tmp_path}/warehouse/indexes"
    read = []
    inner = manifest_store._read
    monkeypatch.setattr(
        manifest_store, "_read", lambda store, each: read.append(each) or inner(store, each)
    )

    def manifests_read(upserted):
        """Of a cycle in a process that has just started, but for those of staging."""
        catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"), **properties)
        table = catalog.load_table("t.rows")
        table.stage(upserts=rows(upserted))
        listed = {each.manifest_path for each in _listed(table)}
        read.clear()
        assert resolve(table).index in ("built", "current")
        return len([each for each in read if each.manifest_path in listed])

    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"), **properties)
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    for number in range(FILES):
        table.append(rows(number))
    assert manifests_read(0) == FILES  # builds the index
    with_notes = manifests_read(2)
    notes = [*tmp_path.rglob("CURRENT.manifests")]
    assert len(notes) == 1
    notes[0].unlink()

    assert with_notes < manifests_read(4)


def _listed(table):
    head = table.refresh().state.head("main")
    return manifest_store.load_manifest_list(table.environment.store, head)
