import bz2
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from tableformat.codec.compression import MalformedDataError, compress, decompress

DATA = bytes(range(256)) * 40


def stored(codec, data=DATA):
    if codec == "snappy":
        body = pa.compress(data, codec="snappy", asbytes=True)
        return body + zlib.crc32(data).to_bytes(4, "big")
    if codec == "lz4":
        return pa.compress(data, codec="lz4", asbytes=True)
    return compress(data, codec)


CODECS = ["null", "deflate", "bzip2", "zstd", "lz4", "snappy"]
FRAMED = ["deflate", "bzip2", "zstd", "lz4", "snappy"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "one", "many"])
def test_data_round_trips(codec, data):
    assert decompress(stored(codec, data), codec, bytes_max=len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_more_than_allowed_is_refused(codec):
    with pytest.raises(MalformedDataError, match="far more bytes"):
        decompress(stored(codec), codec, bytes_max=len(DATA) - 1)


@pytest.mark.parametrize("codec", FRAMED)
def test_data_cut_anywhere_is_refused(codec):
    whole = stored(codec)
    for size in range(0, len(whole), 7):
        with pytest.raises(MalformedDataError):
            decompress(whole[:size], codec, bytes_max=len(DATA))


@pytest.mark.parametrize("codec", FRAMED)
def test_bytes_behind_the_data_are_refused(codec):
    with pytest.raises(MalformedDataError):
        decompress(stored(codec) + b"five!", codec, bytes_max=len(DATA))


def test_checksum_of_snappy_counts():
    damaged = bytearray(stored("snappy"))
    damaged[-1] ^= 1

    with pytest.raises(MalformedDataError, match="checksum"):
        decompress(bytes(damaged), "snappy", bytes_max=len(DATA))


def test_snappy_that_claims_gigabytes_allocates_none():
    with pytest.raises(MalformedDataError, match="far more bytes"):
        decompress(b"\xff\xff\xff\xff\x3f" + bytes(20), "snappy", bytes_max=1000)


def test_deflate_is_raw_and_bzip2_is_plain():
    assert zlib.decompress(compress(DATA, "deflate"), wbits=-15) == DATA
    assert bz2.decompress(compress(DATA, "bzip2")) == DATA


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_damaged_data_leaves_no_memory_behind(codec):
    """Arrow's `read` keeps the megabyte it allocated when the stream turns out to be broken."""
    cut = stored(codec)[:-5]

    def fail(times):
        for _ in range(times):
            with pytest.raises(MalformedDataError):
                decompress(cut, codec, bytes_max=len(DATA))
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmData"))

    before_kib = fail(20)
    assert fail(300) - before_kib < 100 * 1024
