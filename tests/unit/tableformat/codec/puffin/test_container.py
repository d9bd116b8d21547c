import json
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from tableformat.codec.puffin import container as puffin_module
from tableformat.codec.puffin.container import (
    Blob,
    decode_puffin,
    decode_puffin_footer,
    encode_puffin,
)
from tableformat.errors import CorruptDataError, InvalidInputError

GOLDEN = Path(__file__).parents[4] / "golden" / "puffin_v1"
LOCATION = "memory://warehouse/t/data/x.puffin"
SECOND = (
    "some blob \0 binary data 🤯 that is not very very very very very very long, is it?".encode()
)
SAMPLE = [
    Blob(type="some-blob", data=b"abcdefghi", fields=(1,), snapshot_id=2, sequence_number=1),
    Blob(type="some-other-blob", data=SECOND, fields=(2,), snapshot_id=2, sequence_number=1),
]


def decode(data):
    return decode_puffin(data, location=LOCATION)


def parse(data):
    """An independent look at a Puffin file: (blobs by offset, footer JSON)."""
    assert data[:4] == data[-4:] == b"PFA1"
    size, flags = struct.unpack("<iI", data[-12:-4])
    assert flags == 0
    payload = data[-12 - size : -12]
    assert data[-16 - size : -12 - size] == b"PFA1"
    footer = json.loads(payload)
    return [data[b["offset"] : b["offset"] + b["length"]] for b in footer["blobs"]], footer


def with_footer(payload, *, flags=b"\x00\x00\x00\x00", size=None, body=b"abcdefghi"):
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    tail = struct.pack("<i", len(raw) if size is None else size) + flags + b"PFA1"
    return b"PFA1" + body + b"PFA1" + raw + tail


def blob_json(**changes):
    values = {
        "type": "t",
        "fields": [1],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": 4,
        "length": 9,
    }
    values.update(changes)
    return {key: value for key, value in values.items() if value is not ...}


# Golden ----------------------------------------------------------------------------------------


def test_empty_file_is_javas():
    assert encode_puffin([], {}).data == (GOLDEN / "empty-puffin-uncompressed.bin").read_bytes()


def test_file_with_blobs_is_javas():
    encoded = encode_puffin(SAMPLE, {"created-by": "Test 1234"})

    assert encoded.data == (GOLDEN / "sample-metric-data-uncompressed.bin").read_bytes()


@pytest.mark.parametrize("name", ["uncompressed", "compressed-zstd"])
def test_blobs_written_by_java_are_read(name):
    data = (GOLDEN / f"sample-metric-data-{name}.bin").read_bytes()

    footer = decode(data)

    assert footer.properties == {"created-by": "Test 1234"}
    assert [(b.type, b.fields, b.snapshot_id, b.sequence_number) for b in footer.blobs] == [
        ("some-blob", (1,), 2, 1),
        ("some-other-blob", (2,), 2, 1),
    ]
    stored = [data[b.offset : b.offset + b.length] for b in footer.blobs]
    if name == "uncompressed":
        assert stored == [b"abcdefghi", SECOND]
    else:
        assert [b.compression_codec for b in footer.blobs] == ["zstd", "zstd"]


def test_places_in_the_golden_files_are_as_documented():
    plain = decode((GOLDEN / "sample-metric-data-uncompressed.bin").read_bytes())
    packed = decode((GOLDEN / "sample-metric-data-compressed-zstd.bin").read_bytes())

    assert [(b.offset, b.length) for b in plain.blobs] == [(4, 9), (13, 83)]
    assert [(b.offset, b.length) for b in packed.blobs] == [(4, 22), (26, 77)]
    assert packed.offset == 417 - 314


# Encoding --------------------------------------------------------------------------------------


def test_blobs_stand_where_the_footer_says():
    encoded = encode_puffin(SAMPLE, {"k": "v"})

    blobs, footer = parse(encoded.data)

    assert blobs == [b"abcdefghi", SECOND]
    assert footer["properties"] == {"k": "v"}
    assert [(b.offset, b.length) for b in encoded.blobs] == [(4, 9), (13, 83)]
    assert decode(encoded.data).blobs == encoded.blobs


def test_json_keys_stand_in_javas_order():
    blob = Blob(type="t", data=b"x", fields=(1, 2), properties={"b": "1", "a": "2"})

    _, footer = parse(encode_puffin([blob], {"created-by": "x"}).data)

    assert list(footer) == ["blobs", "properties"]
    keys = ["type", "fields", "snapshot-id", "sequence-number", "offset", "length", "properties"]
    assert list(footer["blobs"][0]) == keys
    assert (footer["blobs"][0]["snapshot-id"], footer["blobs"][0]["sequence-number"]) == (-1, -1)


def test_empty_blob_is_allowed():
    encoded = encode_puffin([Blob(type="t", data=b"", fields=())], {})

    assert decode(encoded.data).blobs[0].length == 0


def test_paths_of_any_script_survive():
    encoded = encode_puffin([Blob(type="t", data=b"", fields=(), properties={"p": 'Zü🤯"\\'})], {})

    assert decode(encoded.data).blobs[0].properties == {"p": 'Zü🤯"\\'}
    assert "Zü🤯".encode() in encoded.data


def test_too_many_blobs_for_one_footer_are_refused(monkeypatch):
    monkeypatch.setattr(puffin_module, "PUFFIN_FOOTER_BYTES_MAX", 100)

    with pytest.raises(InvalidInputError, match="too many blobs"):
        encode_puffin(SAMPLE, {})


# Decoding --------------------------------------------------------------------------------------


def test_footer_is_decoded_from_the_end_of_the_file_alone():
    data = encode_puffin(SAMPLE, {}).data
    whole = decode(data)

    tail = decode_puffin_footer(data[-300:], file_size_bytes=len(data), location=LOCATION)

    assert tail == whole


def lz4_frame(data):
    return pa.compress(data, codec="lz4", asbytes=True)


def test_lz4_footer_is_read():
    payload = lz4_frame(json.dumps({"blobs": [blob_json()]}).encode())

    footer = decode(with_footer(payload, flags=b"\x01\x00\x00\x00"))

    assert footer.blobs[0].length == 9


GOOD = encode_puffin(SAMPLE, {"created-by": "x"}).data


@pytest.mark.parametrize("size", range(len(GOOD)))
def test_file_cut_anywhere_is_refused(size):
    with pytest.raises(CorruptDataError) as caught:
        decode(GOOD[:size])

    assert caught.value.context["location"] == LOCATION


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "start"),
        (b"PAR1" + GOOD[4:], "magic at its start"),
        (GOOD[:-1] + b"2", "magic at its end"),
        (GOOD + b"\x00", "magic at its end"),
        (with_footer({"blobs": []}, size=-1), "footer size"),
        (with_footer({"blobs": []}, size=2**31 - 1), "footer size"),
        (with_footer({"blobs": []}, size=12), "magic at the footer"),
        (with_footer({"blobs": []}, flags=b"\x02\x00\x00\x00"), "unknown flags"),
        (with_footer({"blobs": []}, flags=b"\x00\x00\x00\x80"), "unknown flags"),
        (with_footer({"blobs": []}, flags=b"\x01\x00\x00\x00"), "lz4 data is damaged"),
        (with_footer(b"{"), "footer"),
        (with_footer(b"\xff\xfe"), "footer"),
        (with_footer(b"[" * 100_000), "footer"),
        (with_footer([]), "list of blobs"),
        (with_footer({}), "list of blobs"),
        (with_footer({"blobs": {}}), "list of blobs"),
        (with_footer({"blobs": [5]}), "not an object"),
        (with_footer(b'{"blobs": [], "blobs": []}'), "twice"),
        (with_footer({"blobs": [], "properties": {"a": 1}}), "properties"),
        (with_footer({"blobs": [], "properties": []}), "properties"),
        (with_footer({"blobs": [blob_json(type=...)]}), "type"),
        (with_footer({"blobs": [blob_json(fields=...)]}), "fields"),
        (with_footer({"blobs": [blob_json(fields=["1"])]}), "fields"),
        (with_footer({"blobs": [blob_json(**{"snapshot-id": ...})]}), "snapshot-id"),
        (with_footer({"blobs": [blob_json(**{"sequence-number": "1"})]}), "sequence-number"),
        (with_footer({"blobs": [blob_json(offset=True)]}), "offset"),
        (with_footer({"blobs": [blob_json(offset=1.5)]}), "offset"),
        (with_footer({"blobs": [blob_json(offset=3)]}), "outside"),
        (with_footer({"blobs": [blob_json(length=-1)]}), "outside"),
        (with_footer({"blobs": [blob_json(length=10)]}), "outside"),
        (with_footer({"blobs": [blob_json(offset=2**62, length=2**62)]}), "outside"),
        (with_footer({"blobs": [blob_json(**{"compression-codec": 5})]}), "codec"),
        (with_footer({"blobs": [blob_json(properties={"a": None})]}), "properties"),
    ],
)
def test_file_that_breaks_the_format_is_refused(data, problem):
    with pytest.raises(CorruptDataError, match=problem) as caught:
        decode(data)

    assert caught.value.context["location"] == LOCATION
    assert "\n" not in str(caught.value)


def test_footer_above_the_size_limit_is_refused(monkeypatch):
    monkeypatch.setattr(puffin_module, "PUFFIN_FOOTER_BYTES_MAX", 100)

    with pytest.raises(CorruptDataError, match="footer is too large"):
        decode(GOOD)


def test_lz4_bomb_in_the_footer_is_refused():
    frame = lz4_frame(bytes(500 << 20))

    with pytest.raises(CorruptDataError, match="far more bytes"):
        decode(with_footer(frame, flags=b"\x01\x00\x00\x00"))


def test_every_changed_bit_of_the_frame_is_noticed_or_harmless():
    expected = decode(GOOD)
    end = len(GOOD)
    for bit in [*range(32), *range((end - 12) * 8, end * 8)]:
        damaged = bytearray(GOOD)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError):
            decode(bytes(damaged))
    assert decode(GOOD) == expected
