from dataclasses import replace

import numpy as np
import pytest

from resolver.target import LiveFiles
from tableformat.codec.avro import manifest_notes
from tableformat.codec.avro.manifest_notes import HASHES, read_notes, write_notes
from tableformat.codec.avro.manifest_store import (
    note_manifests,
    open_manifest,
    recall_manifests,
    remember_manifest,
    remember_manifest_list,
)
from tableformat.spec.manifest_file import ManifestContent
from tests.support.manifests import (
    added,
    data_file,
    deletion_vector,
    equality_delete,
    existing,
    written_manifest,
)

LIST = "memory://warehouse/t/metadata/list.avro"


class Store:
    """Objects in a dict; remembers what was read. A new one has nothing cached."""

    def __init__(self, objects):
        self.objects = objects
        self.reads = []

    def get(self, location, *, offset=0, length=None):
        self.reads.append(location)
        return self.objects[location]


@pytest.fixture(autouse=True)
def small_tables_are_noted(monkeypatch):
    monkeypatch.setattr(manifest_notes, "UNNOTED_FILES_MAX", 0)
    monkeypatch.setattr(manifest_notes, "UNNOTED_SHARE_MAX", 0)


@pytest.fixture
def table():
    """Ten files in each of four data manifests, a vector for every second one; one file more
    that has a name of another kind, and an equality delete in a manifest of its own."""
    contents = [
        *([added(data_file(f"{m}-{n}")) for n in range(10)] for m in range(4)),
        [existing(data_file("odd", file_path="memory://warehouse/t/data/odd.orc"))],
        *([added(deletion_vector(f"{m}-{n}")) for n in range(0, 10, 2)] for m in range(4)),
        [added(equality_delete("eq"))],
    ]
    objects, manifests = {}, []
    for number, entries in enumerate(contents):
        kind = ManifestContent.DATA if number < 5 else ManifestContent.DELETES
        location = f"memory://warehouse/t/metadata/m{number}.avro"
        data, manifest = written_manifest(entries, content=kind, location=location)
        objects[location] = data
        manifests.append(manifest)
    return objects, manifests, contents


def opened(table, notes):
    """A process that begins: its store, and the live files."""
    objects, manifests, _ = table
    store = Store(objects)
    recall_manifests(store, notes)
    remember_manifest_list(store, LIST, manifests)
    return store, LiveFiles(store, manifests)


def path_of(name):
    return f"memory://warehouse/t/data/{name}.parquet"


def looked_at(live):
    """What a cycle asks."""
    some = [path_of(name) for name in ("0-3", "0-4", "2-8", "9-9")]
    return (
        live.find(some),
        live.find_dvs(some),
        live.find(["memory://warehouse/t/data/odd.orc"]),
        [entry.data_file.file_path for entry in live.equality_deletes],
        live.position_deletes,
    )


def test_next_process_reads_manifests_that_name_what_it_looks_for(table, tmp_path):
    notes = tmp_path / "notes"
    store, live = opened(table, notes)
    seen = looked_at(live)
    assert len(set(store.reads)) == 10
    note_manifests(store, notes, table[1])

    store, live = opened(table, notes)
    assert live.find_dvs([path_of("2-8")]).keys() == {path_of("2-8")}
    assert store.reads == ["memory://warehouse/t/metadata/m7.avro"]
    assert live.find([path_of("none")]) == {}
    assert live.position_deletes == ()
    assert store.reads[1:] == ["memory://warehouse/t/metadata/m9.avro"], "it has something else"
    assert looked_at(live) == seen


def test_manifests_that_were_written_are_noted_as_those_that_were_read(table, tmp_path):
    objects, manifests, contents = table
    read, written = tmp_path / "read", tmp_path / "written"
    store, live = opened(table, read)
    looked_at(live)
    note_manifests(store, read, manifests)
    writer = Store({})
    remember_manifest_list(writer, LIST, manifests)
    for manifest, entries in zip(manifests, contents, strict=True):
        remember_manifest(writer, manifest, entries)
    note_manifests(writer, written, manifests)

    theirs, ours = read_notes(read, HASHES), read_notes(written, HASHES)

    assert theirs.keys() == ours.keys() == objects.keys()
    for location, (hashes, vectors_only) in ours.items():
        assert set(hashes) == set(theirs[location][0])
        if location > "memory://warehouse/t/metadata/m4.avro":
            assert vectors_only == theirs[location][1]


def test_manifest_with_unknown_deletes_is_not_said_to_have_vectors_only(table, tmp_path):
    store, live = opened(table, tmp_path / "notes")
    live.find_dvs([path_of("0-4")])  # nobody asked for the others
    note_manifests(store, tmp_path / "notes", table[1])

    _, live = opened(table, tmp_path / "notes")

    assert len(live.equality_deletes) == 1


def test_every_byte_flipped_in_the_notes_is_noticed(table, tmp_path):
    notes = tmp_path / "notes"
    store, live = opened(table, notes)
    looked_at(live)
    note_manifests(store, notes, table[1])
    good = notes.read_bytes()
    damaged = [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(len(good))]

    for each in [b"", good[:-1], good + b"\0", *damaged]:
        notes.write_bytes(each)
        assert read_notes(notes, HASHES) == {}


def test_notes_of_a_later_format_are_none(tmp_path, monkeypatch):
    monkeypatch.setattr("tableformat.codec.avro.manifest_notes.NOTES_FORMAT", 2)
    write_notes(tmp_path / "notes", {"m": (np.array([3], HASHES), True)})
    monkeypatch.undo()

    assert read_notes(tmp_path / "notes", HASHES) == {}


def test_notes_are_written_when_much_is_new_and_not_again(table, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest_notes, "UNNOTED_FILES_MAX", 40)
    notes = tmp_path / "notes"
    store, live = opened(table, notes)
    note_manifests(store, notes, table[1][:4])
    assert not notes.exists(), "40 files"
    note_manifests(store, notes, table[1])
    assert notes.exists()
    notes.unlink()

    later = [replace(table[1][0], manifest_path="memory://warehouse/t/metadata/m99.avro")]
    note_manifests(store, notes, [*table[1], *later])

    assert not notes.exists()
    assert live.find([path_of("0-3")])


def test_a_noted_manifest_that_is_decoded_is_read_once(table, tmp_path):
    store, live = opened(table, tmp_path / "notes")
    looked_at(live)
    note_manifests(store, tmp_path / "notes", table[1])

    store, live = opened(table, tmp_path / "notes")
    whole = live.data
    for manifest in table[1][:5]:
        assert open_manifest(store, manifest).live_files(list(whole))

    assert len(whole) == 41
    assert len(store.reads) == 5
