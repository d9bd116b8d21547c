"""What a cycle reads follows what waits, not what is live; also in a fresh process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from resolver import resolve
from resolver.target import LiveFiles, live_files
from tableformat.codec.avro import container as avro
from tableformat.codec.avro import manifest_cache, manifest_entries
from tableformat.codec.avro.manifest_store import clear_manifest_cache, load_manifest_list
from tableformat.spec.manifest_file import ManifestContent
from tests.support.staged_tables import StagedTable, keys

FILES = 40


@pytest.fixture
def staged(tmp_path, monkeypatch):
    """A table of `FILES` files whose index is at its head."""
    monkeypatch.setattr(avro, "BLOCK_RECORDS", 4)
    staged = StagedTable(tmp_path)
    files = [staged.data_files((key, "eu", "old"))[0] for key in range(FILES)]
    staged.commit(branch="main", data=files)
    staged.table.stage(upserts=staged.rows((0, "eu", "new")))
    resolve(staged.table)
    return staged


@contextmanager
def fresh_process(staged) -> Iterator[dict[str, list]]:
    """Nothing is remembered; counts as `counted`."""
    clear_manifest_cache(staged.environment.store)
    with counted(staged) as seen:
        yield seen


@contextmanager
def counted(staged) -> Iterator[dict[str, list]]:
    """Counts decoded entries, those of data files, reads and loads."""
    store, catalog = staged.environment.store, staged.environment.catalog
    seen: dict[str, list] = {"entries": [], "decoded": [], "read": [], "loads": []}
    get, load, inherit = store.get, catalog.load_table, manifest_entries._inherit

    def counted_inherit(values, manifest, *rest):
        seen["entries"].append(values)
        if manifest.content == ManifestContent.DATA:
            seen["decoded"].append(values)
        return inherit(values, manifest, *rest)

    def counted_get(location, **options):
        seen["read"].append(location)
        return get(location, **options)

    def counted_load(identifier):
        seen["loads"].append(identifier)
        return load(identifier)

    with (
        patch.object(manifest_entries, "_inherit", counted_inherit),
        patch.object(store, "get", counted_get),
        patch.object(catalog, "load_table", counted_load),
    ):
        yield seen


def manifests(staged, content):
    listed = load_manifest_list(staged.environment.store, staged.table.refresh().state.head("main"))
    return {each.manifest_path for each in listed if each.content == content}


def test_idle_cycle_reads_no_data_manifest_and_loads_the_table_before_and_after_the_lock(staged):
    data = manifests(staged, ManifestContent.DATA)
    with fresh_process(staged) as seen:
        assert not resolve(staged.table).staged_snapshots
    assert seen["read"]
    assert not data & set(seen["read"])
    assert len(seen["loads"]) == 2


def test_few_staged_rows_decode_few_entries(staged):
    staged.table.stage(upserts=staged.rows((3, "eu", "new"), (20, "eu", "new")), deletes=keys(30))
    with fresh_process(staged) as seen:
        assert resolve(staged.table).index == "current"
    assert 0 < len(seen["decoded"]) <= 3 * 4 + 2  # blocks of the files, and the staged one
    published = staged.published()
    assert published[(3, "eu", "new")] == published[(20, "eu", "new")] == 1
    assert len(published) == FILES - 1


def test_each_entry_is_decoded_where_all_files_are_asked_for(staged):
    with fresh_process(staged) as seen:
        live = live_files(staged.environment, staged.table.refresh().state.head("main"))
        assert not seen["decoded"]
        found = live.find(["nowhere"])
        assert not found
        assert not seen["decoded"]
        assert len(live.data) == len(seen["decoded"]) == FILES + 1


def test_index_that_follows_decodes_new_manifests_only(staged):
    staged.table.append(staged.rows((100, "eu", "old")))
    staged.table.stage(upserts=staged.rows((100, "eu", "new")))
    with fresh_process(staged) as seen:
        assert resolve(staged.table).index == "followed"
    assert 0 < len(seen["decoded"]) <= 4
    assert staged.published()[(100, "eu", "new")] == 1


def test_idle_cycle_of_a_fresh_process_reads_one_list_and_no_manifest(staged):
    with fresh_process(staged) as seen:
        assert not resolve(staged.table).staged_snapshots
    head = staged.table.refresh().state.head("main")
    assert [each for each in seen["read"] if each.endswith(".avro")] == [head.manifest_list]


@pytest.mark.parametrize("total", [{}, {"total-equality-deletes": "0"}, None])
def test_equality_deletes_are_found_whatever_the_totals_say(staged, total):
    deletes = staged.equality_deletes(keys(7))
    staged.commit(branch="main", deletes=deletes)
    store, head = staged.environment.store, staged.table.refresh().state.head("main")
    own = head.summary.additional_properties
    positions = {"total-position-deletes": own["total-position-deletes"]}
    live = LiveFiles(
        store, load_manifest_list(store, head), own if total is None else total | positions
    )
    assert [each.data_file.file_path for each in live.equality_deletes] == [
        each.file_path for each in deletes
    ]


def warm_cycle(folder, manifests):
    """What a cycle of two rows reads and decodes in a process that has resolved before."""
    staged = StagedTable(folder)
    staged.table.set_properties({"commit.manifest.min-count-to-merge": "1000"})
    for key in range(manifests):
        staged.commit(branch="main", data=staged.data_files((key, "eu", "old")))
    for key in range(0, manifests, 5):
        staged.table.stage(upserts=staged.rows((key, "eu", "new")))
        resolve(staged.table)
    staged.table.stage(upserts=staged.rows((0, "eu", "newer"), (1, "eu", "newer")))
    with counted(staged) as seen:
        assert resolve(staged.table).deleted_rows == 2
    listed = load_manifest_list(staged.environment.store, staged.table.refresh().state.head("main"))
    assert len(listed) > manifests
    return len([each for each in seen["read"] if each.endswith(".avro")]), len(seen["entries"])


def test_warm_cycle_reads_as_many_manifests_with_fifty_of_them_as_with_five(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest_cache, "CACHED_MANIFEST_ENTRIES_MAX", 8)  # not those of fifty
    few, many = warm_cycle(tmp_path / "few", 5), warm_cycle(tmp_path / "many", 50)
    assert many[0] <= few[0] + 1
    assert many[1] <= few[1] + 4  # files and vectors that are touched
