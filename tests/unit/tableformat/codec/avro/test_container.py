import bz2
import io
import json
import tracemalloc
import zlib

import fastavro
import pyarrow as pa
import pytest

from tableformat.codec.avro.container import decode_container, encode_container
from tableformat.codec.avro.values import MalformedAvroError, read_long, write_long
from tableformat.errors import CorruptDataError, InvalidInputError, UnsupportedError

SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "long", "field-id": 1}]}
LOCATION = "memory://warehouse/x.avro"


def varint(value):
    out = bytearray()
    write_long(out, value)
    return bytes(out)


def container(*, codec="null", blocks=((3, b"\x02\x04\x06"),), schema=None, sync=b"s" * 16):
    """A container by hand; blocks are (count, stored bytes)."""
    header = {"avro.schema": json.dumps(schema or SCHEMA), "avro.codec": codec}
    out = b"Obj\x01" + varint(len(header))
    for key, value in header.items():
        for part in (key.encode(), value.encode()):
            out += varint(len(part)) + part
    out += varint(0) + sync
    for count, stored in blocks:
        out += varint(count) + varint(len(stored)) + stored + sync
    return out


def decode(data):
    return decode_container(data, location=LOCATION)


@pytest.mark.parametrize("codec", ["gzip", "zstd", "uncompressed", "none", "bzip2", "deflate"])
def test_container_round_trips(codec):
    data = encode_container([b"\x02", b"\x04"], schema=SCHEMA, metadata={"k": "ü"}, codec=codec)

    decoded = decode(data)

    assert decoded.schema == SCHEMA
    assert decoded.metadata == {"k": "ü"}
    assert [(block.record_count, block.decompressed()) for block in decoded.blocks] == [
        (2, b"\x02\x04")
    ]


@pytest.mark.parametrize("codec", ["gzip", "uncompressed", "bzip2"])
def test_fastavro_reads_our_container(codec):
    data = encode_container([b"\x02", b"\x04"], schema=SCHEMA, metadata={"k": "v"}, codec=codec)

    reader = fastavro.reader(io.BytesIO(data))

    assert list(reader) == [{"x": 1}, {"x": 2}]
    assert reader.metadata["k"] == "v"


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2"])
def test_container_of_fastavro_in_several_blocks_is_read(codec):
    out = io.BytesIO()
    records = [{"x": value} for value in range(1000)]
    fastavro.writer(out, SCHEMA, records, codec=codec, sync_interval=100)

    decoded = decode(out.getvalue())

    assert decoded.record_count == 1000
    assert len(decoded.blocks) > 5


def test_snappy_block_is_read():
    payload = b"\x02" * 100
    stored = pa.compress(payload, codec="snappy", asbytes=True)
    stored += zlib.crc32(payload).to_bytes(4, "big")

    decoded = decode(container(codec="snappy", blocks=[(100, stored)]))

    assert decoded.blocks[0].decompressed() == payload


def test_deflate_block_with_its_zlib_checksum_left_behind_is_read():
    payload = b"\x02" * 100
    stored = zlib.compress(payload)[2:]

    assert (
        decode(container(codec="deflate", blocks=[(100, stored)])).blocks[0].decompressed()
        == payload
    )


def test_no_records_make_no_block():
    data = encode_container([], schema=SCHEMA, metadata={}, codec="gzip")

    assert decode(data).blocks == ()
    assert list(fastavro.reader(io.BytesIO(data))) == []


def test_negative_block_count_in_the_header_carries_a_size():
    body = varint(11) + b"avro.schema" + varint(len(json.dumps(SCHEMA)))
    body += json.dumps(SCHEMA).encode()
    data = b"Obj\x01" + varint(-1) + varint(len(body)) + body + varint(0) + b"s" * 16

    assert decode(data).schema == SCHEMA


def test_header_that_claims_more_entries_than_bytes_is_refused_at_once():
    with pytest.raises(CorruptDataError, match="header claims"):
        decode(b"Obj\x01" + varint(2**40) + b"\x02a" * 30)


def test_unknown_codec_is_not_written():
    with pytest.raises(InvalidInputError, match="codec"):
        encode_container([], schema=SCHEMA, metadata={}, codec="snappy")


def test_unknown_codec_is_not_read():
    with pytest.raises(UnsupportedError, match="codec") as caught:
        decode(container(codec="xz"))

    assert caught.value.context == {"codec": "xz", "location": LOCATION}


GOOD = container()
DEFLATED = container(codec="deflate", blocks=[(100, zlib.compress(b"\x02" * 100)[2:-4])])


@pytest.mark.parametrize("data", [GOOD, DEFLATED], ids=["plain", "deflate"])
def test_file_cut_anywhere_is_refused(data):
    header_bytes = data.index(b"s" * 16) + 16  # here the file is whole, without blocks
    for size in range(len(data)):
        if size == header_bytes:
            continue
        with pytest.raises(CorruptDataError):
            decode(data[:size])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Obj\x02" + GOOD[4:],
        b"PAR1" + GOOD[4:],
        GOOD[:-1] + b"x",
        GOOD + b"\x00",
        container(blocks=[(-3, b"\x02\x04\x06")]),
        container(blocks=[(2**62, b"\x02")]),
        container(codec="deflate", blocks=[(3, b"\xff\xff")]),
        container(codec="deflate", blocks=[(3, zlib.compress(b"\x02" * 3)[2:-4] + b"trailing")]),
        container(codec="deflate", blocks=[(3, zlib.compress(bytes(1000))[2:-6])]),
        container(codec="bzip2", blocks=[(3, b"BZh9nonsense")]),
        container(codec="bzip2", blocks=[(3, bz2.compress(b"\x02") + b"trailing")]),
        container(codec="zstandard", blocks=[(3, b"\x28\xb5\x2f\xfdgarbage")]),
        container(codec="snappy", blocks=[(3, b"\x03\x08\x02\x02\x02\x00\x00\x00\x00")]),
        container(codec="snappy", blocks=[(3, b"")]),
        b"Obj\x01" + varint(2**40),
        b"Obj\x01" + varint(1) + varint(-5),
        b"Obj\x01" + varint(1) + varint(2**50) + b"abc",
        b"Obj\x01" + b"\xff" * 40,
        b"Obj\x01" + varint(0) + b"s" * 16,
        container(schema="x").replace(b'"x"', b'"x '),
    ],
)
def test_malformed_container_is_refused_with_its_location(data):
    with pytest.raises(CorruptDataError, match="not a readable Avro file") as caught:
        decode(data)

    assert caught.value.context["location"] == LOCATION
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("position", range(16))
def test_every_byte_of_the_sync_marker_counts(position):
    data = bytearray(GOOD)
    data[len(data) - 16 + position] ^= 1

    with pytest.raises(CorruptDataError, match="sync marker"):
        decode(bytes(data))


def test_deeply_nested_schema_json_is_refused():
    text = '{"type":' * 200_000
    header = varint(1) + varint(11) + b"avro.schema" + varint(len(text)) + text.encode()

    with pytest.raises(CorruptDataError, match="nested too deeply"):
        decode(b"Obj\x01" + header + varint(0) + b"s" * 16)


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "zstandard"])
def test_small_file_that_decodes_to_gigabytes_is_refused_within_bounded_memory(codec):
    zeros = bytes(1 << 20)
    if codec == "deflate":
        compressor = zlib.compressobj(9, wbits=-15)
        stored = b"".join(compressor.compress(zeros) for _ in range(200)) + compressor.flush()
    elif codec == "bzip2":
        compressor = bz2.BZ2Compressor()
        stored = b"".join(compressor.compress(zeros) for _ in range(64)) + compressor.flush()
    else:
        stored = pa.compress(bytes(200 << 20), codec="zstd", asbytes=True)
    data = container(codec=codec, blocks=[(1, stored)])
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match="far more bytes"):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 200 * 1024 * 1024


def test_many_blocks_share_one_budget():
    compressed = zlib.compress(bytes(8 << 20))[2:-4]
    blocks = [(1, compressed)] * 5

    with pytest.raises(CorruptDataError, match="far more bytes"):
        decode(container(codec="deflate", blocks=blocks))


def test_more_records_than_the_bytes_can_hold_are_refused():
    with pytest.raises(CorruptDataError, match="claims"):
        decode(container(blocks=[(20_000, b"\x02")]))


@pytest.mark.parametrize("value", [0, -1, 1, 63, -64, 64, 2**31, -(2**31), 2**63 - 1, -(2**63)])
def test_integer_round_trips(value):
    encoded = varint(value)

    assert read_long(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize(
    "encoded", [b"\x80" * 10 + b"\x00", b"\xff" * 9 + b"\x7f", b"\x80" * 9 + b"\x02"]
)
def test_integer_of_more_than_64_bits_is_refused(encoded):
    with pytest.raises(MalformedAvroError):
        read_long(encoded, 0)


def said_by(container):
    blocks = [(block.record_count, block.decompressed()) for block in container.blocks]
    return container.schema, container.metadata, blocks


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "zstd"])
def test_no_flipped_bit_of_our_container_reads_as_something_else(codec):
    records = [varint(value) for value in range(40)]
    data = encode_container(records, schema=SCHEMA, metadata={"spec": "7"}, codec=codec)
    whole = decode(data)
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        try:
            found = decode(bytes(flipped))
        except (CorruptDataError, UnsupportedError):
            continue
        assert said_by(found) == said_by(whole), (
            at
        )  # e.g. in the unused bits behind a compressed stream


def test_container_of_another_writer_needs_no_checksum():
    out = io.BytesIO()
    fastavro.writer(out, SCHEMA, [{"x": 1}], sync_marker=b"icefold\x00" + bytes(8))
    assert decode(out.getvalue()).record_count == 1
