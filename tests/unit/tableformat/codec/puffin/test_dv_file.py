import itertools
import json
import random
import struct
from dataclasses import replace

import numpy as np
import pytest
from pyroaring import BitMap64

from tableformat.codec.puffin import dv_file
from tableformat.codec.puffin.container import Blob, encode_puffin
from tableformat.codec.puffin.deletion_vector import build_positions, encode_deletion_vector
from tableformat.codec.puffin.dv_file import (
    DeletionVector,
    PuffinFiles,
    read_deletion_vectors,
    write_deletion_vectors,
)
from tableformat.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)
from tableformat.spec.data_file import FileContent
from tests.support.manifests import data_file, deletion_vector, equality_delete


class DictStore:
    """Objects in a dict, as strict as the port says; remembers the ranges that were read."""

    def __init__(self):
        self.objects = {}
        self.reads = []
        self.fail_after = None

    def get(self, location, *, offset=0, length=None):
        self.reads.append((location, offset, length))
        if location not in self.objects:
            raise NotFoundError("object does not exist", location=location)
        data = self.objects[location]
        end = len(data) if length is None else offset + length
        if offset > len(data) or end > len(data):
            raise CorruptDataError("object is short", location=location)
        return data[offset:end]

    def put(self, location, data):
        if self.fail_after is not None and len(self.objects) >= self.fail_after:
            raise StoreUnavailableError("put failed", location=location)
        if location in self.objects:
            raise AlreadyExistsError("object exists", location=location)
        self.objects[location] = bytes(data)


def read_deletion_vector(store, dv, *, record_count):
    return read_deletion_vectors(store, [(dv, record_count)])[0]


def locations():
    counter = itertools.count()
    return lambda: f"memory://warehouse/t/data/{next(counter)}-dvs.puffin"


def write(store, vectors, placement="packed", **options):
    return write_deletion_vectors(
        store, vectors, location_for=locations(), placement=placement, **options
    )


def vector(name, *positions, **changes):
    return DeletionVector(data_file(name, **changes), BitMap64(positions))


def puffin_blobs(data):
    """Footer blobs of a Puffin file, by an own parser."""
    assert data[:4] == data[-4:] == b"PFA1"
    assert data[-8:-4] == bytes(4)
    size = struct.unpack("<i", data[-12:-8])[0]
    assert data[-16 - size : -12 - size] == b"PFA1"
    return json.loads(data[-12 - size : -12])


# Writing ---------------------------------------------------------------------------------------


def test_entry_is_what_the_spec_wants():
    store = DictStore()

    (entry,) = write(
        store, [vector("a", 1, 5, 7, partition=(11,), sort_order_id=3, first_row_id=9)]
    )

    data = store.objects[entry.file_path]
    path = data_file("a").file_path
    assert entry == deletion_vector(
        "a",
        file_path="memory://warehouse/t/data/0-dvs.puffin",
        partition=(11,),
        record_count=3,
        file_size_in_bytes=len(data),
        content_offset=4,
        content_size_in_bytes=len(encode_deletion_vector(BitMap64([1, 5, 7]))),
    )
    assert entry.referenced_data_file == path
    assert entry.lower_bounds == entry.upper_bounds == {2147483546: path.encode()}
    assert (entry.sort_order_id, entry.first_row_id, entry.equality_ids) == (None, None, None)


def test_entry_repeats_the_bounds_of_the_columns_asked_for():
    low, high = {1: b"\x01" * 8, 2: b"a"}, {1: b"\x09" * 8, 2: b"z"}
    with_bounds = vector("a", 1, lower_bounds=low, upper_bounds=high)
    without = vector("b", 1)

    first, second = write(DictStore(), [with_bounds, without], bounds_of=(1, 7))

    path = {2147483546: data_file("a").file_path.encode()}
    assert first.lower_bounds == {1: low[1]} | path
    assert first.upper_bounds == {1: high[1]} | path
    assert second.lower_bounds == {2147483546: data_file("b").file_path.encode()}


def test_footer_describes_the_vector():
    store = DictStore()

    (entry,) = write(store, [vector("a", 1, 5)])

    footer = puffin_blobs(store.objects[entry.file_path])
    assert footer == {
        "blobs": [
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": entry.content_offset,
                "length": entry.content_size_in_bytes,
                "properties": {
                    "referenced-data-file": data_file("a").file_path,
                    "cardinality": "2",
                },
            }
        ],
        "properties": {"created-by": "icefold"},
    }
    blob = store.objects[entry.file_path][4 : 4 + entry.content_size_in_bytes]
    assert blob == encode_deletion_vector(BitMap64([1, 5]))


def test_packed_vectors_share_a_file_and_differ_in_identity():
    store = DictStore()

    entries = write(store, [vector("a", 1), vector("b", 2, 3), vector("c", 4)])

    assert len(store.objects) == 1
    assert len({entry.file_path for entry in entries}) == 1
    assert len({entry.identity for entry in entries}) == 3
    assert {entry.file_size_in_bytes for entry in entries} == {
        len(data) for data in store.objects.values()
    }


def test_per_file_placement_gives_each_vector_its_file():
    store = DictStore()

    entries = write(store, [vector("a", 1), vector("b", 2)], placement="per-file")

    assert [entry.content_offset for entry in entries] == [4, 4]
    assert [entry.file_path for entry in entries] == sorted(store.objects)


def test_packed_file_that_is_full_is_followed_by_another(monkeypatch):
    monkeypatch.setattr(dv_file, "PUFFIN_TARGET_BYTES", 100)
    store = DictStore()

    entries = write(store, [vector(name, 1) for name in "abcde"])

    assert len(store.objects) == 3
    assert [e.referenced_data_file[-9] for e in entries] == list("abcde")
    for entry, position in zip(entries, [1] * 5, strict=True):
        assert list(read_deletion_vector(store, entry, record_count=100)) == [position]


@pytest.mark.parametrize("vectors", [[], [vector("a")], [vector("a"), vector("b")]])
@pytest.mark.parametrize("placement", ["packed", "per-file"])
def test_nothing_to_delete_writes_nothing(vectors, placement):
    store = DictStore()

    assert write(store, vectors, placement) == []
    assert store.objects == {}


def test_empty_vectors_among_others_are_left_out():
    store = DictStore()

    entries = write(store, [vector("a"), vector("b", 1), vector("c")])

    assert [entry.referenced_data_file for entry in entries] == [data_file("b").file_path]


@pytest.mark.parametrize("stored", [0, 1])
def test_put_that_fails_is_raised(stored):
    store = DictStore()
    store.fail_after = stored

    with pytest.raises(StoreUnavailableError):
        write(store, [vector("a", 1), vector("b", 2)], placement="per-file")


def test_location_that_is_taken_is_never_overwritten():
    store = DictStore()
    write(store, [vector("a", 1)])
    before = dict(store.objects)

    with pytest.raises(AlreadyExistsError):
        write(store, [vector("a", 1, 2)])
    assert store.objects == before


@pytest.mark.parametrize(
    ("vectors", "problem"),
    [
        ([vector("a", 1), vector("a", 2)], "two vectors for one data file"),
        ([vector("a", 100)], "position 100 of 100 rows"),
        ([DeletionVector(equality_delete(), BitMap64([1]))], "EQUALITY_DELETES"),
        ([DeletionVector(deletion_vector(), BitMap64([1]))], "POSITION_DELETES"),
    ],
)
def test_vector_that_no_reader_could_use_is_not_written(vectors, problem):
    store = DictStore()

    with pytest.raises(InternalError, match=problem):
        write(store, vectors)
    assert store.objects == {}


def test_unknown_placement_is_refused():
    with pytest.raises(InvalidInputError, match="placement"):
        write(DictStore(), [], placement="scattered")


# Reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["packed", "per-file"])
def test_vectors_round_trip(placement):
    store = DictStore()
    source = np.random.default_rng(4)
    vectors = [
        DeletionVector(
            data_file(str(i), record_count=10_000),
            build_positions(source.integers(0, 10_000, int(source.integers(1, 5000)))),
        )
        for i in range(20)
    ]

    entries = write(store, vectors, placement)

    for each, entry in zip(vectors, entries, strict=True):
        assert read_deletion_vector(store, entry, record_count=10_000) == each.positions


def test_small_file_costs_one_read():
    store = DictStore()
    entries = write(store, [vector(name, 1) for name in "abc"])

    read_deletion_vector(store, entries[1], record_count=None)

    assert store.reads == [(entries[1].file_path, 0, None)]


def test_several_vectors_of_one_file_cost_one_read_and_come_in_order():
    store = DictStore()
    entries = write(store, [vector(name, n) for n, name in enumerate("abcd")])

    read = read_deletion_vectors(store, [(entries[i], 100) for i in (2, 0, 3)])

    assert [list(each) for each in read] == [[2], [0], [3]]
    assert len(store.reads) == 1


def test_vectors_of_one_file_read_one_by_one_cost_one_read_too():
    store = DictStore()
    entries = write(store, [vector(name, n) for n, name in enumerate("abcd")])
    puffins = PuffinFiles(store)

    read = [puffins.read([(entry, 100)])[0] for entry in entries]

    assert [list(each) for each in read] == [[0], [1], [2], [3]]
    assert len(store.reads) == 1


def test_footers_that_are_held_are_bounded(monkeypatch):
    monkeypatch.setattr(dv_file, "OPEN_BLOBS_MAX", 3)
    store = DictStore()
    place = locations()
    files = [
        write_deletion_vectors(
            store,
            [vector(f"{number}-{name}", 1) for name in "ab"],
            location_for=place,
            placement="packed",
        )
        for number in range(2)
    ]
    puffins = PuffinFiles(store)

    for entry in (*files[0], *files[1], *files[1], files[0][0]):
        puffins.read([(entry, 100)])

    assert len(store.reads) == 3  # the second file pushes the first one out


def test_large_file_is_read_in_parts(monkeypatch):
    monkeypatch.setattr(dv_file, "PUFFIN_WHOLE_READ_BYTES_MAX", 150)
    monkeypatch.setattr(dv_file, "PUFFIN_FOOTER_GUESS_BYTES", 60)
    monkeypatch.setattr(dv_file, "PUFFIN_READ_GAP_BYTES_MAX", 0)
    store = DictStore()
    entries = write(store, [vector(name, n) for n, name in enumerate("abcdef")])
    size = entries[0].file_size_in_bytes

    read = read_deletion_vectors(store, [(entries[i], 100) for i in (1, 2, 5)])

    assert [list(each) for each in read] == [[1], [2], [5]]
    ranges = [(offset, length) for _, offset, length in store.reads]
    assert ranges[0] == (0, 4)
    assert ranges[1] == (size - 60, 60)
    assert sum(ranges[2]) == size  # the footer was larger than guessed
    blob_bytes = entries[0].content_size_in_bytes
    assert ranges[3:] == [
        (entries[1].content_offset, 2 * blob_bytes),
        (entries[5].content_offset, blob_bytes),
    ]


def test_close_vectors_of_a_large_file_come_in_one_read(monkeypatch):
    monkeypatch.setattr(dv_file, "PUFFIN_WHOLE_READ_BYTES_MAX", 200)
    store = DictStore()
    entries = write(store, [vector(name, n) for n, name in enumerate("abcdef")])

    read = read_deletion_vectors(store, [(entries[i], 100) for i in (0, 2, 5)])

    assert [list(each) for each in read] == [[0], [2], [5]]
    blob_reads = store.reads[2:]
    assert len(blob_reads) == 2  # 0 and 2 together; 5 would make it longer than 200 bytes


def test_same_vector_may_be_asked_for_twice():
    store = DictStore()
    (entry,) = write(store, [vector("a", 3)])

    assert read_deletion_vectors(store, [(entry, 100), (entry, None)]) == [BitMap64([3])] * 2


def test_returned_positions_are_the_callers_own():
    store = DictStore()
    (entry,) = write(store, [vector("a", 3)])

    read_deletion_vector(store, entry, record_count=100).add(4)

    assert list(read_deletion_vector(store, entry, record_count=100)) == [3]


def test_vector_in_a_file_with_other_blobs_is_read():
    store = DictStore()
    own = encode_deletion_vector(BitMap64([1]))
    puffin = encode_puffin(
        [
            Blob(type="apache-datasketches-theta-v1", data=b"sketch", fields=(1,)),
            Blob(
                type="deletion-vector-v1",
                data=own,
                fields=(2147483645,),
                properties={
                    "referenced-data-file": data_file("a").file_path,
                    "cardinality": "1",
                },
            ),
        ],
        {},
    )
    entry = deletion_vector(
        "a",
        record_count=1,
        file_size_in_bytes=len(puffin.data),
        content_offset=10,
        content_size_in_bytes=len(own),
    )
    store.objects[entry.file_path] = puffin.data

    assert list(read_deletion_vector(store, entry, record_count=None)) == [1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"content_offset": 5}, "no deletion vector at the manifest's offset"),
        ({"content_size_in_bytes": 43}, "no deletion vector at the manifest's offset"),
        ({"record_count": 3}, "cardinality is 2, the manifest says 3"),
        ({"referenced_data_file": "memory://warehouse/t/data/b.parquet"}, "refers to"),
        ({"referenced_data_file": None}, "referenced_data_file"),
        ({"content_offset": None}, "offset or size"),
        ({"content_size_in_bytes": None}, "offset or size"),
        ({"content_offset": -4}, "outside"),
        ({"content_size_in_bytes": -1}, "outside"),
        ({"content_size_in_bytes": 2**40}, "outside"),
        ({"file_size_in_bytes": 2**40, "content_size_in_bytes": 2**31}, "larger than 2 GB"),
    ],
)
def test_manifest_entry_that_differs_from_the_footer_is_refused(changes, problem):
    store = DictStore()
    (entry,) = write(store, [vector("a", 1, 2)])

    with pytest.raises(CorruptDataError, match=problem) as caught:
        read_deletion_vector(store, replace(entry, **changes), record_count=100)

    assert caught.value.context["location"] == entry.file_path


def blob_of(**changes):
    values = {
        "type": "deletion-vector-v1",
        "data": encode_deletion_vector(BitMap64([1, 2])),
        "fields": (2147483645,),
        "properties": {"referenced-data-file": data_file("a").file_path, "cardinality": "2"},
    }
    return Blob(**(values | changes))


@pytest.mark.parametrize(
    ("blob", "problem"),
    [
        (blob_of(type="deletion-vector-v2"), "type"),
        (blob_of(properties={"cardinality": "2"}), "refers to None"),
        (blob_of(properties={"referenced-data-file": data_file("a").file_path}), "cardinality"),
        (
            blob_of(
                properties={
                    "referenced-data-file": data_file("a").file_path,
                    "cardinality": "2.0",
                }
            ),
            "cardinality",
        ),
    ],
)
def test_footer_that_does_not_describe_the_vector_is_refused(blob, problem):
    store = DictStore()
    puffin = encode_puffin([blob], {})
    entry = deletion_vector(
        "a", record_count=2, file_size_in_bytes=len(puffin.data), content_size_in_bytes=44
    )
    store.objects[entry.file_path] = puffin.data

    with pytest.raises(CorruptDataError, match=problem):
        read_deletion_vector(store, entry, record_count=None)


def test_compressed_vector_is_refused():
    store = DictStore()
    (entry,) = write(store, [vector("a", 1)])
    data = store.objects[entry.file_path]
    size = struct.unpack("<i", data[-12:-8])[0]
    footer = puffin_blobs(data)
    footer["blobs"][0]["compression-codec"] = "zstd"
    payload = json.dumps(footer).encode()
    changed = data[: -12 - size] + payload + struct.pack("<i", len(payload)) + data[-8:]
    store.objects[entry.file_path] = changed

    with pytest.raises(CorruptDataError, match="it is compressed"):
        read_deletion_vector(
            store, replace(entry, file_size_in_bytes=len(changed)), record_count=None
        )


def test_position_past_the_data_file_is_refused_and_named():
    store = DictStore()
    (entry,) = write(store, [vector("a", 1, 50)])

    with pytest.raises(CorruptDataError, match="past the data file's 50 rows") as caught:
        read_deletion_vector(store, entry, record_count=50)

    assert caught.value.context == {
        "location": entry.file_path,
        "data_file": data_file("a").file_path,
    }


@pytest.mark.parametrize("data", [b"", b"PFA1", b"x" * 400])
def test_puffin_file_with_other_bytes_is_refused(data):
    store = DictStore()
    (entry,) = write(store, [vector("a", 1)])
    store.objects[entry.file_path] = data

    with pytest.raises(CorruptDataError):
        read_deletion_vector(store, entry, record_count=None)


@pytest.mark.parametrize("whole_read_max", [10, 10**6])
def test_no_changed_byte_of_a_vector_is_accepted(monkeypatch, whole_read_max):
    monkeypatch.setattr(dv_file, "PUFFIN_WHOLE_READ_BYTES_MAX", whole_read_max)
    store = DictStore()
    entry = write(store, [vector("a", 1, 9), vector("b", 2)])[0]
    good = store.objects[entry.file_path]
    source = random.Random(1)
    for position in range(4 + entry.content_size_in_bytes):
        damaged = bytearray(good)
        damaged[position] ^= source.randrange(1, 256)
        store.objects[entry.file_path] = bytes(damaged)
        with pytest.raises(CorruptDataError):
            read_deletion_vector(store, entry, record_count=None)


def test_puffin_file_cut_anywhere_is_refused():
    store = DictStore()
    (entry,) = write(store, [vector("a", 1, 9)])
    good = store.objects[entry.file_path]
    for size in range(len(good)):
        store.objects[entry.file_path] = good[:size]
        with pytest.raises(CorruptDataError):
            read_deletion_vector(store, entry, record_count=None)


def test_large_puffin_file_cut_anywhere_is_refused(monkeypatch):
    monkeypatch.setattr(dv_file, "PUFFIN_WHOLE_READ_BYTES_MAX", 10)
    store = DictStore()
    (entry,) = write(store, [vector("a", 1, 9)])
    good = store.objects[entry.file_path]
    for size in range(len(good)):
        store.objects[entry.file_path] = good[:size]
        with pytest.raises(CorruptDataError):
            read_deletion_vector(store, entry, record_count=None)


@pytest.mark.parametrize("difference", [-1, 1])
def test_puffin_file_of_another_size_is_refused(difference):
    store = DictStore()
    (entry,) = write(store, [vector("a", 1)])
    other = replace(entry, file_size_in_bytes=entry.file_size_in_bytes + difference)

    with pytest.raises(CorruptDataError, match="wrong size"):
        read_deletion_vector(store, other, record_count=None)


def test_missing_puffin_file_is_not_an_empty_vector():
    with pytest.raises(NotFoundError):
        read_deletion_vector(DictStore(), deletion_vector(), record_count=None)


def test_other_delete_files_are_no_vectors():
    with pytest.raises(InternalError, match="not a deletion vector"):
        read_deletion_vector(
            DictStore(), data_file(content=FileContent.POSITION_DELETES), record_count=None
        )


def test_nothing_asked_is_nothing_read():
    assert read_deletion_vectors(DictStore(), []) == []
