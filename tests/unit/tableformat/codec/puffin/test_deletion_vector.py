import json
import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap64

from tableformat.codec.puffin import deletion_vector
from tableformat.codec.puffin.deletion_vector import (
    build_positions,
    decode_deletion_vector,
    encode_deletion_vector,
)
from tableformat.codec.puffin.roaring_layout import MalformedBitmapError, walk_bitmaps
from tableformat.errors import CorruptDataError, InvalidInputError

GOLDEN = Path(__file__).parents[4] / "golden"
EXPECTED = json.loads((GOLDEN / "expected_positions.json").read_text())
FRAMED = [name for name, each in EXPECTED.items() if name[0] != "_" and each["framed"]]
BARE = ["deletes/64map32bitvals.bin", "deletes/64mapempty.bin", "deletes/64mapspreadvals.bin"]
LOCATION = "memory://warehouse/t/data/dvs.puffin"


def positions_of(ranges):
    positions = BitMap64()
    for first, last in ranges:
        positions.add_range(first, last + 1)
    return positions


def decode(blob, **checks):
    return decode_deletion_vector(blob, location=LOCATION, **checks)


def framed(vector):
    body = bytes.fromhex("d1d33964") + vector
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def bitmap(*values, key=0, count=1):
    """A 64-bit vector of one array container."""
    body = struct.pack("<IIHHI", 12346, 1, 0, len(values) - 1, 16)
    body += struct.pack(f"<{len(values)}H", *values)
    return struct.pack("<qI", count, key) + body


# Golden ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FRAMED)
def test_blob_written_by_java_is_decoded_and_written_again_byte_for_byte(name):
    blob = (GOLDEN / name).read_bytes()
    expected = EXPECTED[name]

    positions = decode(blob, cardinality=expected["cardinality"])

    assert positions == positions_of(expected["ranges"])
    assert encode_deletion_vector(positions) == blob
    assert len(blob) == expected["bytes"]


@pytest.mark.parametrize("name", FRAMED)
def test_golden_positions_are_encoded_as_java_does(name):
    assert (
        encode_deletion_vector(positions_of(EXPECTED[name]["ranges"]))
        == (GOLDEN / name).read_bytes()
    )


@pytest.mark.parametrize("name", BARE)
def test_bare_vector_written_by_java_is_decoded(name):
    vector = (GOLDEN / name).read_bytes()

    positions = decode(framed(vector))

    if name.endswith("spreadvals.bin"):
        expected = positions_of([(k << 32, (k << 32) + 9) for k in range(10)])
    else:
        expected = positions_of(EXPECTED[name]["ranges"])
    assert positions == expected


def test_damaged_golden_vector_is_refused():
    vector = (GOLDEN / "deletes/64maphighvals.bin").read_bytes()

    with pytest.raises(CorruptDataError, match=r"key 4022190063|bitmap"):
        decode(framed(vector))


def test_vector_of_one_and_two_is_as_documented():
    blob = encode_deletion_vector(BitMap64([1, 2]))

    assert blob.hex() == (
        "00000024d1d339640100000000000000000000003a30000001000000000001001000000001000200712fa6e8"
    )


def test_missing_keys_are_written_as_empty_bitmaps_like_java():
    positions = BitMap64([5, (3 << 32) | 7])

    blob = encode_deletion_vector(positions)

    assert len(blob) == 76 + 12
    empty = bytes.fromhex("3a30000000000000")
    assert blob[8:16] == struct.pack("<q", 4)
    assert struct.pack("<I", 1) + empty + struct.pack("<I", 2) + empty in blob
    assert decode(blob) == positions


def test_leading_keys_are_filled_in_too():
    positions = BitMap64([(2 << 32) | 9])

    blob = encode_deletion_vector(positions)

    keys = [key for key, _, _ in walk_bitmaps(blob[8:-4])]
    assert keys == [0, 1, 2]
    assert decode(blob) == positions


# Round trips -----------------------------------------------------------------------------------

SHAPES = {
    "empty": np.array([], dtype=np.int64),
    "zero": np.array([0]),
    "array": np.arange(0, 4096 * 7, 7),
    "full array": np.arange(0, 4096 * 15, 15),
    "smallest bitset": np.arange(0, 4097 * 15, 15),
    "bitset": np.arange(0, 65536, 2),
    "run": np.arange(100_000, 300_000),
    "bounds": np.array([65535, 65536, 2**31, 2**32 - 1]),
    "sparse": np.arange(0, 2**31, 40_000_003),
    "mixed": np.concatenate(
        [np.arange(9), np.arange(70_000, 140_000), np.arange(200_000, 9**6, 2)]
    ),
    "five runs": np.concatenate([np.arange(k << 16, (k << 16) + 50) for k in range(5)]),
    "high": np.array([1, (1 << 32) + 5, (1 << 32) + 70_000, (5 << 32)]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_positions_round_trip(name):
    positions = build_positions(SHAPES[name])

    blob = encode_deletion_vector(positions)

    assert decode(blob, cardinality=len(SHAPES[name])) == positions
    assert positions == BitMap64(SHAPES[name].tolist())


def test_random_positions_round_trip():
    source = np.random.default_rng(11)
    for _ in range(60):
        span = int(source.integers(1, 1 << int(source.integers(1, 34))))
        ordinals = source.integers(0, span, int(source.integers(1, 3000)))
        positions = build_positions(ordinals)
        assert decode(encode_deletion_vector(positions), record_count=span) == positions


def test_positions_given_one_by_one_are_encoded_as_runs_like_java():
    one_by_one = build_positions(np.arange(100_000, 300_000))

    blob = encode_deletion_vector(one_by_one)

    assert blob == encode_deletion_vector(positions_of([(100_000, 299_999)]))
    assert len(blob) < 100


def test_positions_merged_from_several_deletes_are_encoded_as_runs_like_java():
    even, odd = (build_positions(np.arange(start, 300_000, 2)) for start in (100_000, 100_001))

    blob = encode_deletion_vector(even | odd)

    assert blob == encode_deletion_vector(positions_of([(100_000, 299_999)]))
    assert len(blob) < 100


def test_encoding_leaves_the_callers_bitmap_alone():
    positions = build_positions(np.arange(1000))
    before = positions.serialize()

    encode_deletion_vector(positions)

    assert positions.serialize() == before


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint8])
def test_positions_are_built_from_any_integers_in_any_order(dtype):
    assert list(build_positions(np.array([7, 3, 3, 100], dtype=dtype))) == [3, 7, 100]


def test_positions_beyond_32_bits_keep_their_high_bits():
    ordinals = np.array([2**32 + 7, 5, 2**32 - 1, 2**40])
    assert list(build_positions(ordinals)) == sorted(ordinals.tolist())
    assert list(build_positions(ordinals[:3])) == sorted(ordinals[:3].tolist())


@pytest.mark.parametrize(
    "ordinals",
    [
        np.array([-1]),
        np.array([2**64 - 1], dtype=np.uint64),
        np.array([1.5]),
        np.array([[1]]),
        np.array([True]),
    ],
)
def test_what_is_no_position_is_refused(ordinals):
    with pytest.raises(InvalidInputError, match="position"):
        build_positions(ordinals)


def test_position_far_above_any_file_is_not_written():
    with pytest.raises(InvalidInputError, match="no data file has that many rows"):
        encode_deletion_vector(BitMap64([2**62]))


def test_position_above_the_formats_maximum_is_not_written():
    with pytest.raises(InvalidInputError, match="out of range"):
        encode_deletion_vector(BitMap64([2**63 + 5]))


def test_blob_above_the_size_limit_is_not_written(monkeypatch):
    monkeypatch.setattr(deletion_vector, "DELETION_VECTOR_BYTES_MAX", 43)

    with pytest.raises(InvalidInputError, match="larger than 2 GB"):
        encode_deletion_vector(BitMap64([1, 2]))


# What is refused -------------------------------------------------------------------------------

SMALL = [
    encode_deletion_vector(positions_of(ranges))
    for ranges in (
        [],
        [(1, 2)],
        [(0, 0), (2**32, 2**32)],
        [(5, 3000)],
        [(i, i) for i in range(0, 60, 3)],
        [(2**31, 2**31), (3 << 32, 3 << 32)],
    )
]


@pytest.mark.parametrize("blob", SMALL, ids=range(len(SMALL)))
def test_no_changed_bit_is_accepted(blob):
    for bit in range(len(blob) * 8):
        damaged = bytearray(blob)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError):
            decode(bytes(damaged))


@pytest.mark.parametrize("blob", SMALL, ids=range(len(SMALL)))
def test_no_changed_byte_is_accepted(blob):
    source = random.Random(5)
    for position in range(len(blob)):
        damaged = bytearray(blob)
        damaged[position] ^= source.randrange(1, 256)
        with pytest.raises(CorruptDataError):
            decode(bytes(damaged))


@pytest.mark.parametrize("blob", SMALL, ids=range(len(SMALL)))
def test_blob_cut_or_extended_anywhere_is_refused(blob):
    for size in range(len(blob)):
        with pytest.raises(CorruptDataError):
            decode(blob[:size])
    with pytest.raises(CorruptDataError):
        decode(blob + b"\x00")


@pytest.mark.parametrize("vector_end", range(1, 40))
def test_vector_cut_under_a_valid_checksum_is_refused(vector_end):
    vector = encode_deletion_vector(positions_of([(1, 2), (70_000, 70_900)]))[8:-4]

    with pytest.raises(CorruptDataError):
        decode(framed(vector[:-vector_end]))


RUN = struct.pack("<qII", 1, 0, 12347) + b"\x01" + struct.pack("<HHH", 0, 10, 1)


@pytest.mark.parametrize(
    ("vector", "problem"),
    [
        (bitmap(1, 2) + b"\x00", "after the last bitmap"),
        (bitmap(1, 2) + bytes.fromhex("010000003a30000000000000"), "after the last bitmap"),
        (struct.pack("<q", 0) + b"rest", "after the last bitmap"),
        (bitmap(1, count=-1), "bitmap count"),
        (bitmap(1, count=2**31), "bitmap count"),
        (bitmap(1, count=2**62), "bitmap count"),
        (bitmap(1, count=2) + bitmap(2)[8:], "key 0 after 0"),
        (bitmap(1, count=2, key=4) + bitmap(2, key=3)[8:], "key 3 after 4"),
        (bitmap(1, key=2147483647), "key 2147483647 is too large"),
        (bitmap(1, key=0xEFBDBFEF), "key 4022190063 is too large"),
        (struct.pack("<qI", 1, 2**31) + bytes.fromhex("3a30000000000000"), "key 2147483648"),
        (bitmap(2, 1), "deserialization"),
        (bitmap(1, 1), "deserialization"),
        (bitmap(1).replace(b"\x3a\x30", b"\x3a\x31"), "cookie"),
        (struct.pack("<qIII", 1, 0, 12346, 70_000) + bytes(9), "container count"),
        (struct.pack("<qIII", 1, 0, 12346, 65_536), "ends early"),
        (RUN + struct.pack("<HH", 65534, 10), "deserialization"),
        (RUN, "ends early"),
        (RUN[:-2], "ends early"),
        (struct.pack("<qIII", 1, 0, 12347 | 500 << 16, 0), "ends early"),
        (bitmap(1, key=2147483646)[:-2] + struct.pack("<H", 1), None),
    ],
)
def test_vector_that_breaks_the_layout_under_a_valid_checksum_is_refused(vector, problem):
    if problem is None:
        assert len(decode(framed(vector))) == 1
        return
    with pytest.raises(CorruptDataError, match=problem) as caught:
        decode(framed(vector))

    assert caught.value.context["location"] == LOCATION


def test_checksum_is_compared_before_the_vector_is_parsed():
    blob = bytearray(framed(bitmap(2, 1)))
    blob[-1] ^= 1

    with pytest.raises(CorruptDataError, match="CRC"):
        decode(bytes(blob))


def test_checksum_error_names_both_values():
    blob = bytearray(encode_deletion_vector(BitMap64([1, 2])))
    blob[-1] ^= 1

    with pytest.raises(
        CorruptDataError, match="stored CRC 712fa6e9 differs from computed 712fa6e8"
    ):
        decode(bytes(blob))


def test_wrong_magic_is_refused_with_a_valid_checksum():
    body = b"\xd1\xd3\x39\x65" + bitmap(1)
    blob = struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))

    with pytest.raises(CorruptDataError, match="magic"):
        decode(blob)


@pytest.mark.parametrize("length", [-1, 0, 35, 37, 2**31 - 1])
def test_wrong_length_field_is_refused(length):
    blob = encode_deletion_vector(BitMap64([1, 2]))

    with pytest.raises(CorruptDataError, match="length field"):
        decode(struct.pack(">i", length) + blob[4:])


def test_cardinality_of_the_manifest_must_agree():
    blob = encode_deletion_vector(BitMap64([1, 2]))

    with pytest.raises(CorruptDataError, match="cardinality 2 differs from the manifest's 3"):
        decode(blob, cardinality=3)


def test_position_past_the_data_file_is_refused():
    blob = encode_deletion_vector(BitMap64([1, 99]))

    assert len(decode(blob, record_count=100)) == 2
    with pytest.raises(CorruptDataError, match="position 99 is past the data file's 99 rows"):
        decode(blob, record_count=99)


@pytest.mark.parametrize("cardinality", [None, 491, 601])
def test_run_container_that_lies_about_its_cardinality_is_refused(cardinality):
    vector = bytearray(encode_deletion_vector(positions_of([(10, 500)]))[8:-4])
    vector[-4:] = struct.pack("<HH", 10, 600)  # the run is longer than the header says

    with pytest.raises(CorruptDataError, match="run container has another cardinality"):
        decode(framed(bytes(vector)), cardinality=cardinality)


def test_absurdly_high_key_costs_no_memory():
    blob = framed(bitmap(1, key=2147483646))
    tracemalloc.start()
    try:
        assert len(decode(blob)) == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 100_000


def test_empty_bitmaps_of_java_are_read_over():
    vector = struct.pack("<q", 3)
    for key in (0, 1, 2):
        vector += struct.pack("<I", key) + bytes.fromhex("3a30000000000000")

    assert decode(framed(vector)) == BitMap64()


@pytest.mark.parametrize("name", SHAPES)
def test_walk_finds_the_pieces_of_a_vector(name):
    positions = build_positions(SHAPES[name])
    positions.run_optimize()
    vector = positions.serialize()

    pieces = list(walk_bitmaps(vector))

    assert [key for key, _, _ in pieces] == sorted({int(each) >> 32 for each in SHAPES[name]})
    assert not pieces or pieces[-1][2] == len(vector)


def test_walk_of_an_unoptimized_vector_ends_with_it():
    vector = build_positions(np.arange(0, 10**6, 3)).serialize()

    assert list(walk_bitmaps(vector)) == [(0, 12, len(vector))]
    with pytest.raises(MalformedBitmapError, match="ends early"):
        list(walk_bitmaps(vector[:-1]))
