import bz2
import zlib

import pyarrow as pa
import pytest

from tableformat.files.compression import MalformedDataError, compress, decompress

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
