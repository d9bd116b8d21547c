import gc
import threading
from dataclasses import replace

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from tableformat.codec.avro import container as avro
from tableformat.codec.avro import manifest_cache, manifest_entries, manifest_store
from tableformat.codec.avro.manifest_list import encode_manifest_list
from tableformat.codec.avro.manifest_store import (
    clear_manifest_cache,
    load_manifest,
    load_manifest_list,
    open_manifest,
    remember_manifest,
    remember_manifest_list,
)
from tableformat.errors import CorruptDataError, NotFoundError, UnsupportedError
from tableformat.spec.data_file import EntryStatus
from tableformat.spec.manifest_file import UNKNOWN_COUNT, ManifestContent
from tests.support.manifests import (
    LOCATION,
    added,
    data_file,
    deleted,
    deletion_vector,
    existing,
    written_manifest,
)

LIST = "memory://warehouse/t/metadata/list.avro"


class CountingStore:
    """Objects in a dict; remembers what was read."""

    def __init__(self, objects):
        self.objects = objects
        self.reads = []

    def get(self, location, *, offset=0, length=None):
        self.reads.append(location)
        if location not in self.objects:
            raise NotFoundError("object does not exist", location=location)
        data = self.objects[location]
        return data[offset : len(data) if length is None else offset + length]


class SlottedStore:
    """A store that cannot be referred to weakly."""

    __slots__ = ("data", "reads")

    def __init__(self, data):
        self.data = data
        self.reads = 0

    def get(self, location, *, offset=0, length=None):
        self.reads += 1
        return self.data


def stored(entries, **options):
    data, manifest = written_manifest(entries, **options)
    store = CountingStore({manifest.manifest_path: data})
    remember_manifest_list(store, LIST, [manifest])
    return store, manifest


def snapshot(location="memory://warehouse/t/metadata/snap.avro"):
    return Snapshot(
        snapshot_id=7001,
        manifest_list=location,
        sequence_number=9,
        timestamp_ms=1,
        summary=Summary(Operation.APPEND),
    )


def test_manifest_is_read_once():
    store, manifest = stored([added(data_file())])

    first = load_manifest(store, manifest)
    second = load_manifest(store, manifest)

    assert first == second
    assert store.reads == [LOCATION]


def test_cached_entries_cannot_be_changed_through_the_list():
    store, manifest = stored([added(data_file())])

    load_manifest(store, manifest).clear()

    assert len(load_manifest(store, manifest)) == 1


def test_one_manifest_listed_with_other_row_ids_is_another_in_the_cache():
    store, manifest = stored([added(data_file())], first_row_id=10)

    here = load_manifest(store, manifest)
    there = load_manifest(store, replace(manifest, first_row_id=900))

    assert [each[0].data_file.first_row_id for each in (here, there)] == [10, 900]


def test_stores_do_not_share_what_they_cached():
    one, manifest = stored([added(data_file("a"))])
    other, _ = stored([added(data_file("b"))])
    load_manifest(one, manifest)

    with pytest.raises(NotFoundError):
        load_manifest(CountingStore({}), manifest)
    assert load_manifest(other, manifest)[0].data_file.file_path.endswith("b.parquet")


def test_cache_dies_with_its_store():
    store, manifest = stored([added(data_file())])
    load_manifest(store, manifest)
    gc.collect()  # what other tests have left
    count = len(manifest_store._caches)

    del store
    gc.collect()

    assert len(manifest_store._caches) == count - 1


def test_clearing_the_cache_reads_again():
    store, manifest = stored([added(data_file())])
    load_manifest(store, manifest)

    clear_manifest_cache(store)
    load_manifest(store, manifest)

    assert len(store.reads) == 2


def test_store_without_weak_references_works_uncached():
    data, manifest = written_manifest([added(data_file())])
    store = SlottedStore(data)

    load_manifest(store, manifest)
    load_manifest(store, manifest)

    assert store.reads == 2


def test_least_recently_used_manifests_leave_a_full_cache(monkeypatch):
    monkeypatch.setattr(manifest_cache, "CACHED_MANIFEST_ENTRIES_MAX", 7)
    monkeypatch.setattr(manifest_cache, "CACHED_MANIFEST_BYTES_MAX", 0)
    objects, manifests = {}, []
    for name in "abc":
        location = f"memory://warehouse/t/metadata/{name}.avro"
        entries = [added(data_file(f"{name}{i}")) for i in range(2)]
        data, manifest = written_manifest(entries, location=location)
        objects[location] = data
        manifests.append(manifest)
    store = CountingStore(objects)
    remember_manifest_list(store, LIST, manifests)
    a, b, c = manifests

    for manifest in (a, b, a, c, a, b):  # 3 + 3 fit into 7, so c pushes b out
        load_manifest(store, manifest)

    assert [location[-6] for location in store.reads] == ["a", "b", "c", "b"]


def test_manifest_larger_than_the_cache_is_not_kept(monkeypatch):
    monkeypatch.setattr(manifest_cache, "CACHED_MANIFEST_ENTRIES_MAX", 2)
    monkeypatch.setattr(manifest_cache, "CACHED_MANIFEST_BYTES_MAX", 0)
    store, manifest = stored([added(data_file(str(i))) for i in range(2)])

    load_manifest(store, manifest)
    load_manifest(store, manifest)

    assert len(store.reads) == 2


def test_manifest_larger_than_the_cache_pushes_nothing_out(monkeypatch):
    monkeypatch.setattr(manifest_cache, "CACHED_MANIFEST_ENTRIES_MAX", 4)
    store, small = stored([added(data_file("small"))])
    location = "memory://warehouse/t/metadata/large.avro"
    data, large = written_manifest([added(data_file(str(i))) for i in range(9)], location=location)
    store.objects[location] = data
    remember_manifest_list(store, LIST + "2", [large])

    for manifest in (small, large, small):
        load_manifest(store, manifest)

    assert store.reads == [LOCATION, location]


def test_manifest_stays_while_a_kept_list_names_it(monkeypatch):
    monkeypatch.setattr(manifest_cache, "CACHED_MANIFEST_LISTS_PER_TABLE_MAX", 2)
    store, manifest = stored([added(data_file())])
    load_manifest(store, manifest)

    for name, listed_now in [("a", [manifest]), ("b", []), ("c", [])]:
        load_manifest(store, manifest)
        remember_manifest_list(store, f"memory://warehouse/t/metadata/{name}", listed_now)
    load_manifest(store, manifest)
    load_manifest(store, manifest)

    assert store.reads == [LOCATION] * 3  # only the last two found nothing that names it


def test_lists_of_other_tables_leave_a_manifest_where_it_is(monkeypatch):
    monkeypatch.setattr(manifest_cache, "CACHED_MANIFEST_LISTS_PER_TABLE_MAX", 2)
    store, manifest = stored([added(data_file())])

    for number in range(9):
        load_manifest(store, manifest)
        remember_manifest_list(store, f"memory://warehouse/u/metadata/{number}", [])

    assert store.reads == [LOCATION]


def test_lists_used_longest_ago_leave_a_full_cache(monkeypatch):
    monkeypatch.setattr(manifest_cache, "CACHED_LISTED_MANIFESTS_MAX", 4)
    store, manifest = stored([added(data_file())])
    load_manifest(store, manifest)

    remember_manifest_list(store, "memory://warehouse/u/metadata/a", [])
    remember_manifest_list(store, "memory://warehouse/u/metadata/b", [])
    load_manifest(store, manifest)
    remember_manifest_list(store, "memory://warehouse/u/metadata/c", [])
    load_manifest(store, manifest)

    assert store.reads == [LOCATION] * 2


def test_manifest_of_another_size_is_refused():
    store, manifest = stored([added(data_file())])
    store.objects[LOCATION] += b"\x00"

    with pytest.raises(CorruptDataError, match="wrong size") as caught:
        load_manifest(store, manifest)

    assert caught.value.context["location"] == LOCATION


def test_failed_read_is_not_cached():
    store, manifest = stored([added(data_file())])
    good = store.objects[LOCATION]
    store.objects[LOCATION] = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(CorruptDataError):
        load_manifest(store, manifest)

    store.objects[LOCATION] = good

    assert len(load_manifest(store, manifest)) == 1


def test_threads_share_one_cache():
    store, manifest = stored([added(data_file(str(i))) for i in range(20)])
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(load_manifest(store, manifest)))
        for _ in range(8)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(result == results[0] for result in results)
    assert len(results) == 8


def listed(store, manifests, location="memory://warehouse/t/metadata/snap.avro"):
    encoded = encode_manifest_list(
        manifests, snapshot_id=7001, parent_snapshot_id=None, sequence_number=9, first_row_id=1000
    )
    store.objects[location] = encoded.data


def test_manifest_list_of_a_snapshot_is_loaded():
    store, manifest = stored([added(data_file())])
    listed(store, [manifest])

    assert load_manifest_list(store, snapshot()) == [manifest]


def test_counts_that_the_list_lacks_are_counted(monkeypatch):
    entries = [
        added(data_file("a", record_count=3)),
        existing(data_file("b")),
        deleted(data_file()),
    ]
    store, manifest = stored(entries)
    listed(store, [manifest])
    without = replace(
        manifest,
        added_files_count=UNKNOWN_COUNT,
        existing_files_count=UNKNOWN_COUNT,
        deleted_files_count=UNKNOWN_COUNT,
        added_rows_count=UNKNOWN_COUNT,
        existing_rows_count=UNKNOWN_COUNT,
        deleted_rows_count=UNKNOWN_COUNT,
    )
    monkeypatch.setattr(manifest_store, "decode_manifest_list", lambda data, location: [without])

    assert load_manifest_list(store, snapshot()) == [manifest]


def test_snapshot_that_lists_manifests_itself_is_not_supported():
    with pytest.raises(UnsupportedError, match="without a manifest list"):
        load_manifest_list(CountingStore({}), snapshot(location=""))


def test_missing_manifest_list_is_not_an_empty_table():
    with pytest.raises(NotFoundError):
        load_manifest_list(CountingStore({}), snapshot())


@pytest.mark.parametrize(("total", "refused"), [("3", True), ("0", False), (None, False)])
def test_empty_list_of_a_snapshot_with_data_files_is_refused(total, refused):
    store = CountingStore({})
    listed(store, [])
    summary = Summary(Operation.APPEND, **({} if total is None else {"total-data-files": total}))
    of_snapshot = snapshot().model_copy(update={"summary": summary})

    if refused:
        with pytest.raises(CorruptDataError, match="manifest list is empty"):
            load_manifest_list(store, of_snapshot)
    else:
        assert load_manifest_list(store, of_snapshot) == []


def test_entries_keep_their_status():
    store, manifest = stored([deleted(data_file())])

    assert load_manifest(store, manifest)[0].status == EntryStatus.DELETED


@pytest.mark.parametrize("first_row_id", [None, 70])
def test_remembered_manifest_is_what_reading_it_gives(first_row_id):
    entries = [
        added(data_file("a", record_count=3)),
        existing(data_file("b", first_row_id=5)),
        existing(data_file("c", first_row_id=None)),
        deleted(data_file("d", first_row_id=9)),
        added(data_file("e", record_count=4), sequence_number=2),
    ]
    data, manifest = written_manifest(entries)
    manifest = replace(manifest, first_row_id=first_row_id)
    read = load_manifest(CountingStore({manifest.manifest_path: data}), manifest)
    store = CountingStore({})
    remember_manifest_list(store, LIST, [manifest])

    remember_manifest(store, manifest, entries)

    assert load_manifest(store, manifest) == read
    assert store.reads == []


def test_remembered_manifest_list_is_not_read():
    store, manifest = stored([added(data_file())])
    remember_manifest_list(store, snapshot().manifest_list, [manifest])
    assert load_manifest_list(store, snapshot()) == [manifest]
    assert store.reads == []


def test_manifest_list_is_read_once():
    store = CountingStore({})
    listed(store, [])
    load_manifest_list(store, snapshot())
    load_manifest_list(store, snapshot()).append(None)
    assert load_manifest_list(store, snapshot()) == []
    assert len(store.reads) == 1


def test_live_entries_are_found_by_identity_and_by_referenced_file():
    vector = deletion_vector("a")
    store, manifest = stored([added(vector)], content=ManifestContent.DELETES)
    loaded = open_manifest(store, manifest)
    assert loaded.live_by_identity[vector.identity] == loaded.entries[0]
    assert loaded.live_by_referenced_file == {data_file("a").file_path: loaded.entries}
    assert open_manifest(store, manifest) is loaded


def test_removed_entries_are_not_found():
    store, manifest = stored([deleted(data_file())])
    loaded = open_manifest(store, manifest)
    assert not loaded.live_by_identity


@pytest.mark.parametrize("block_records", [1, 2, 256])
def test_files_are_found_without_decoding_the_other_blocks(monkeypatch, block_records):
    monkeypatch.setattr(avro, "BLOCK_RECORDS", block_records)
    names = ("a", "a.parquet", "c", "gone")
    paths = [data_file(name).file_path for name in names]
    kinds = (added, existing, added, deleted)
    store, manifest = stored(
        [kind(data_file(name)) for kind, name in zip(kinds, names, strict=True)]
    )
    found = open_manifest(store, manifest).live_files([*paths, "memory://warehouse/t/data/other"])
    whole = {entry.data_file.file_path: entry for entry in load_manifest(store, manifest)}
    assert [entry.data_file.file_path for entry in found] == paths[:3]
    for entry in found:
        expected = whole[entry.data_file.file_path]
        row_id = entry.data_file.first_row_id
        assert row_id in (None, expected.data_file.first_row_id)
        file = expected.data_file.with_(first_row_id=row_id)
        assert entry == replace(expected, data_file=file)


def test_manifest_that_is_searched_in_most_places_is_decoded_once(monkeypatch):
    monkeypatch.setattr(avro, "BLOCK_RECORDS", 1)
    store, manifest = stored([added(data_file(str(number))) for number in range(4)])
    paths = [data_file(str(number)).file_path for number in range(4)]
    loaded = open_manifest(store, manifest)
    few, many = loaded.live_files(paths[1:3]), loaded.live_files(paths[:3])
    assert [each.data_file.first_row_id for each in few] == [None, None]
    assert many == list(loaded.entries[:3])
    assert open_manifest(store, manifest).entries is loaded.entries
    assert len(store.reads) == 1


def test_manifest_is_kept_as_it_is_stored_when_its_entries_are_dropped(monkeypatch):
    monkeypatch.setattr(manifest_cache, "CACHED_MANIFEST_ENTRIES_MAX", 0)
    store, manifest = stored([added(data_file("a"))])
    assert load_manifest(store, manifest) == load_manifest(store, manifest)
    assert len(store.reads) == 1
    remember_manifest_list(store, LIST + "2", [manifest])
    for number in range(manifest_cache.CACHED_MANIFEST_LISTS_PER_TABLE_MAX):
        remember_manifest_list(store, f"{LIST}-{number}", [])
    load_manifest(store, manifest)
    assert len(store.reads) == 2  # no list that is kept names it


def long_name(number):
    return f"{number:08d}-0123-4567-89ab-cdef01234567"


@pytest.mark.parametrize("block_records", [1, 3, 256])
@pytest.mark.parametrize("folder", ["", "a.parquet/", "a.puffin"])
def test_manifest_says_which_files_it_may_name_and_decodes_nothing(
    monkeypatch, block_records, folder
):
    monkeypatch.setattr(avro, "BLOCK_RECORDS", block_records)
    names = [folder + long_name(number) for number in range(10)]
    files = [data_file(name) for name in names[:5]]
    store, manifest = stored(list(map(added, files)))
    vectors = [added(deletion_vector(name)) for name in names[:5]]
    monkeypatch.setattr(manifest_entries, "_inherit", None)  # what decodes an entry fails
    loaded = open_manifest(store, manifest)
    assert all(loaded.may_name([file.file_path]) for file in files)
    assert all(loaded.may_name([data_file(name).file_path, files[0].file_path]) for name in names)
    assert not loaded.may_name([data_file(name).file_path for name in names[5:]])
    other, deletes = stored(vectors, content=ManifestContent.DELETES)
    assert all(open_manifest(other, deletes).may_name([file.file_path]) for file in files)


def test_vectors_are_found_by_their_data_file_in_few_blocks(monkeypatch):
    monkeypatch.setattr(avro, "BLOCK_RECORDS", 1)
    kinds = (added, existing, deleted, added)
    entries = [kind(deletion_vector(long_name(number))) for number, kind in enumerate(kinds)]
    store, manifest = stored(entries, content=ManifestContent.DELETES)
    paths = [data_file(long_name(number)).file_path for number in (1, 2)]
    found = open_manifest(store, manifest).live_vectors(paths)
    whole = load_manifest(store, manifest)
    assert found == [whole[1]]
    assert open_manifest(store, manifest).live_vectors(paths) == found  # from all entries


def test_file_is_not_looked_for_in_a_damaged_manifest():
    store, manifest = stored([added(data_file("a"))])
    data = store.objects[manifest.manifest_path]
    store.objects[manifest.manifest_path] = data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]
    with pytest.raises(CorruptDataError):
        open_manifest(store, manifest).live_files([data_file("a").file_path])
