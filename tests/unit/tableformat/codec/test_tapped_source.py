"""Files as Arrow reads them, with somebody looking at what goes by."""

import gc
import io
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tableformat.codec.tapped_source import PART_BYTES, TappedSource, read_range
from tableformat.errors import CorruptDataError

DATA = bytes(range(256)) * 4


def test_tap_sees_what_is_read_before_the_reader_does() -> None:
    seen = []
    source = TappedSource(pa.BufferReader(DATA), lambda data, at: seen.append((at, data)))
    assert source.seek(-8, io.SEEK_END) == len(DATA) - 8
    assert source.read(4) == DATA[-8:-4]
    assert source.read() == DATA[-4:]
    assert source.tell() == len(DATA)
    source.seek(2)
    source.seek(3, io.SEEK_CUR)
    assert source.read(2) == DATA[5:7]
    assert seen == [(len(DATA) - 8, DATA[-8:-4]), (len(DATA) - 4, DATA[-4:]), (5, DATA[5:7])]


@pytest.mark.parametrize("place", [0, len(DATA) - 8, len(DATA) + 8, -4])
def test_read_beyond_the_end_is_an_error_and_takes_no_memory(place: int) -> None:
    source = TappedSource(pa.BufferReader(DATA), lambda data, at: None)
    source.seek(place)
    with pytest.raises(CorruptDataError, match="leads out of the file"), source.errors():
        source.read(1 << 60)


def test_error_of_the_tap_is_the_error_of_the_reader() -> None:
    def refuse(data: bytes, at: int) -> None:
        raise CorruptDataError("seen and refused")

    source = TappedSource(pa.BufferReader(DATA), refuse)
    with pytest.raises(CorruptDataError, match="seen and refused"), source.errors():
        pa.PythonFile(source, "r").read(10)


def test_reader_that_has_failed_is_not_kept_by_its_error() -> None:
    """Arrow keeps the error that ends a read, and an error keeps the frames it went through."""

    class Noticed:
        pass

    def fail() -> weakref.ref[Noticed]:
        noticed = Noticed()

        def refuse(data: bytes, at: int) -> None:
            assert noticed
            raise CorruptDataError("seen and refused")

        sink = io.BytesIO()
        pq.write_table(pa.table({"a": [1, 2, 3]}), sink)
        content = pa.BufferReader(sink.getvalue())
        source = TappedSource(content, refuse)
        reader = pq.ParquetFile(source, metadata=pq.read_metadata(content)).reader
        with pytest.raises(CorruptDataError), source.errors():
            reader.read_row_groups([0], use_threads=False)
        return weakref.ref(noticed)

    left = [fail() for _ in range(5)]
    gc.collect()
    assert not any(reference() for reference in left)


@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES - 5])
def test_large_range_is_the_same_in_parts(size: int) -> None:
    data = np.random.default_rng(1).bytes(3 * PART_BYTES)
    assert read_range(pa.BufferReader(data), 3, size) == data[3 : 3 + size]
