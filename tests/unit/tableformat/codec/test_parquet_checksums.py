"""The checksums of column chunks and footers: what is written, and what they notice."""

import io
import zlib
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from tableformat.codec.parquet.chunk_checksums import CHUNK_CHECKSUMS_KEY, ChunkChecksums
from tableformat.codec.parquet.footer_checksum import FOOTER_CHECKSUM_KEY
from tableformat.codec.parquet.rows import ParquetRows
from tableformat.codec.parquet.thrift_compact import I32, decode_struct, encode_struct
from tableformat.codec.tapped_source import PART_BYTES, TappedSource
from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import DataFile, EntryStatus, ManifestEntry
from tableformat.spec.types import iceberg_schema
from tests.support.data_files import DataFiles, without_checksums

COUNT = 4_000
TABLE = pa.table(
    {
        "id": np.arange(COUNT),
        "name": [f"name {i % 50}" for i in range(COUNT)],
        "price": np.arange(COUNT) / 3,
        "tags": [[f"t{i % 3}"] * (i % 4) for i in range(COUNT)],
        "s": [{"a": i, "b": None if i % 7 else "x"} for i in range(COUNT)],
    }
)
SMALL_GROUPS = {"write.parquet.row-group-limit": "1500", "write.parquet.page-row-limit": "400"}
_FILE_KEY_VALUES, _UNKNOWN_FIELD = 5, 50
_PAGE_SIZE, _PAGE_STORED, _PAGE_V1, _PAGE_VALUES = 2, 3, 5, 1


def written(**properties: str) -> tuple[DataFiles, DataFile, bytes]:
    files = DataFiles(iceberg_schema(TABLE.schema), properties=SMALL_GROUPS | properties)
    file = files.write_one(TABLE)
    return files, file, files.store.get(file.file_path)


def footer_of(data: bytes) -> pq.FileMetaData:
    return pq.read_metadata(io.BytesIO(data))


def footer_text(data: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[-8 - size : -8]


def with_footer(data: bytes, text: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[: -8 - size] + text + len(text).to_bytes(4, "little") + data[-4:]


def signed(text: bytes) -> bytes:
    """A footer with its checksum: the CRC-32 of the footer with zeros for the checksum."""
    at = text.index(FOOTER_CHECKSUM_KEY.encode()) + len(FOOTER_CHECKSUM_KEY) + 2
    crc = zlib.crc32(text[:at] + b"0" * 8 + text[at + 8 :])
    return text[:at] + b"%08x" % crc + text[at + 8 :]


def chunks_of(footer: pq.FileMetaData) -> list[tuple[int, int]]:
    """First and last offset of all chunks."""
    found = []
    for group in range(footer.num_row_groups):
        for leaf in range(footer.num_columns):
            chunk = footer.row_group(group).column(leaf)
            places = (chunk.dictionary_page_offset, chunk.data_page_offset)
            start = min(place for place in places if place)
            found.append((start, start + chunk.total_compressed_size))
    return found


def read_some(files: DataFiles, file: DataFile, count: int, of: int = COUNT) -> pa.RecordBatch:
    """Rows by position: `count` of them, which may be too many for single pages."""
    entry = ManifestEntry(
        status=EntryStatus.ADDED,
        snapshot_id=1,
        sequence_number=1,
        file_sequence_number=1,
        data_file=file,
    )
    rows = ParquetRows(files.store)
    try:
        return rows.read(
            entry,
            np.arange(0, of, of // count),
            schema=files.schema,
            spec=UNPARTITIONED_PARTITION_SPEC,
        )
    finally:
        rows.close()


@pytest.mark.parametrize("codec", ["zstd", "uncompressed"])
def test_every_chunk_has_the_checksum_of_its_bytes(codec: str) -> None:
    bloom = "write.parquet.bloom-filter-enabled.column.name"
    _, _, data = written(**{"write.parquet.compression-codec": codec, bloom: "true"})
    footer = footer_of(data)
    assert footer.num_row_groups == 3
    expected = [f"{zlib.crc32(data[start:end]):08x}" for start, end in chunks_of(footer)]
    assert footer.metadata[CHUNK_CHECKSUMS_KEY.encode()].decode() == "".join(expected)


def test_other_readers_are_not_disturbed(tmp_path: Any) -> None:
    files, file, data = written()
    path = tmp_path / "f.parquet"
    path.write_bytes(data)
    by_duckdb = duckdb.sql(f"SELECT * FROM '{path}' ORDER BY id").to_arrow_table()
    assert by_duckdb.to_pylist() == files.read(file).to_pylist() == TABLE.to_pylist()


def changed_headers(data: bytes) -> dict[str, bytes]:
    """The file with one field of its first data page's header changed, and nothing else."""
    chunk = footer_of(data).row_group(0).column(0)
    start = chunk.data_page_offset
    header, end = decode_struct(data, start)
    changes: dict[str, Any] = {
        "more values": (_PAGE_V1, _PAGE_VALUES, 4),
        "fewer values": (_PAGE_V1, _PAGE_VALUES, -4),
    }
    found = {}
    for name, (field, inner, by) in changes.items():
        kind, detail = header[field]
        changed = {**header, field: (kind, {**detail, inner: (I32, detail[inner][1] + by)})}
        found[name] = encode_struct(changed)
    for name, field in {"gigabytes": _PAGE_SIZE, "gigabytes stored": _PAGE_STORED}.items():
        found[name] = encode_struct({**header, field: (I32, 0x7FFFFFF0)})
    # A longer header would move everything behind it; the bytes of the next page are as good.
    return {
        name: data[:start] + text + data[start + len(text) :]
        for name, text in found.items()
        if len(text) >= end - start
    }


@pytest.mark.parametrize("name", ["more values", "fewer values", "gigabytes", "gigabytes stored"])
def test_changed_page_header_is_noticed_before_it_is_believed(name: str) -> None:
    files, file, data = written(**{"write.parquet.compression-codec": "uncompressed"})
    broken = files.replace(file, changed_headers(data)[name])
    before = pa.default_memory_pool().max_memory()
    for read in (lambda: files.read(broken), lambda: read_some(files, broken, COUNT // 2)):
        with pytest.raises(CorruptDataError, match="does not match its checksum") as caught:
            read()
        assert caught.value.context["location"] == file.file_path
        assert caught.value.context["column"] == "id"
        assert caught.value.context["row_group"] == "0"
    assert pa.default_memory_pool().max_memory() - before < 64 << 20


def test_only_chunks_that_are_read_are_checked() -> None:
    files, file, data = written()
    _, end = chunks_of(footer_of(data))[1]  # the column `name` of the first row group
    broken = files.replace(file, data[: end - 1] + bytes([data[end - 1] ^ 1]) + data[end:])
    wanted = files.schema.select("id", "price")
    assert files.read(broken, schema=wanted).num_rows == COUNT
    late = np.arange(3_500, COUNT)
    assert files.read(broken, wanted=late).to_pylist() == TABLE.slice(3_500).to_pylist()
    with pytest.raises(CorruptDataError, match=r"checksum.*column=name"):
        files.read(broken)


def test_file_without_checksums_is_read() -> None:
    files, file, data = written()
    older = files.replace(file, without_checksums(data))
    assert files.read(older).to_pylist() == TABLE.to_pylist()
    assert read_some(files, older, 100).num_rows == 100


@pytest.mark.parametrize("change", ["a digit", "too few"])
def test_wrong_checksums_in_the_footer_are_an_error(change: str) -> None:
    files, file, data = written()
    text = footer_text(data)
    stored = footer_of(data).metadata[CHUNK_CHECKSUMS_KEY.encode()]
    other = stored[:-8] if change == "too few" else bytes([stored[0] ^ 1]) + stored[1:]
    sizes = [bytes([len(each) & 127 | 128, len(each) >> 7]) for each in (stored, other)]
    text = text.replace(sizes[0] + stored, sizes[1] + other)
    message = "do not fit the file" if change == "too few" else "does not match its checksum"
    with pytest.raises(CorruptDataError, match=message):
        files.read(files.replace(file, with_footer(data, signed(text))))


def test_statistics_that_look_like_the_place_of_the_checksums_are_left_alone() -> None:
    table = pa.table(
        {
            "text": [CHUNK_CHECKSUMS_KEY + "\x18\x10" + "0" * 16],
            "own": [FOOTER_CHECKSUM_KEY + "\x18\x08" + "0" * 8],
        }
    )
    files = DataFiles(iceberg_schema(table.schema))
    file = files.write_one(table)
    assert files.read(file).to_pylist() == table.to_pylist()
    data = files.store.get(file.file_path)
    found = footer_of(data).metadata[CHUNK_CHECKSUMS_KEY.encode()]
    assert found == b"".join(
        b"%08x" % zlib.crc32(data[start:end]) for start, end in chunks_of(footer_of(data))
    )


def test_chunk_that_is_read_in_pieces_is_checked_as_a_whole() -> None:
    _, _, data = written()
    footer = footer_of(data)
    start, end = chunks_of(footer)[0]

    def checked(content: bytes) -> TappedSource:
        source = pa.BufferReader(content)
        return TappedSource(source, ChunkChecksums(source, footer, [0], [0]))

    source = checked(data)
    source.seek(start)
    assert source.read(10) == data[start : start + 10]
    assert source.tell() == start + 10
    broken = checked(data[: end - 1] + bytes([data[end - 1] ^ 1]) + data[end:])
    broken.seek(start)
    with pytest.raises(CorruptDataError, match="checksum"), broken.errors():
        broken.read(10)


def test_large_chunk_is_read_by_several_requests() -> None:
    table = pa.table({"id": np.random.default_rng(5).integers(0, 1 << 62, 2_500_000)})
    properties = {"write.parquet.row-group-limit": "4000000"}
    files = DataFiles(iceberg_schema(table.schema), properties=properties)
    file = files.write_one(table)
    assert file.file_size_in_bytes > 2 * PART_BYTES
    assert files.read(file).column("id").equals(table.column("id"))
    data = bytearray(files.store.get(file.file_path))
    data[9 << 20] ^= 4
    with pytest.raises(CorruptDataError, match="checksum"):
        files.read(files.replace(file, bytes(data)))


def test_footer_has_the_checksum_of_its_bytes() -> None:
    _, _, data = written()
    assert signed(footer_text(data)) == footer_text(data)


def test_footer_of_more_than_one_read_is_checked() -> None:
    # Arrow reads 64 KiB at the end of a file first.
    table = pa.table({f"c{at}_{'x' * 80}": [at] for at in range(300)})
    files = DataFiles(iceberg_schema(table.schema))
    file = files.write_one(table)
    data = files.store.get(file.file_path)
    text = footer_text(data)
    assert len(text) > 64 << 10
    assert signed(text) == text
    assert files.read(file).to_pylist() == table.to_pylist()
    with pytest.raises(CorruptDataError, match="footer does not match its checksum"):
        files.read(files.replace(file, with_footer(data, text.replace(b"c7_x", b"d7_x", 1))))


def test_changed_statistics_do_not_hide_rows_from_a_filter() -> None:
    table = pa.table({"id": pa.array([1_000, 2_000, 3_000], pa.int64())})
    files = DataFiles(iceberg_schema(table.schema))
    file = files.write_one(table)
    data = files.store.get(file.file_path)
    text = footer_text(data)
    largest, wrong = (value.to_bytes(8, "little") for value in (3_000, 1_500))
    assert text.count(largest) >= 1
    with pytest.raises(CorruptDataError, match="footer does not match its checksum"):
        files.read(files.replace(file, with_footer(data, text.replace(largest, wrong))))


@pytest.mark.parametrize("name", [FOOTER_CHECKSUM_KEY, "all of them"])
def test_lost_checksum_of_the_footer_is_noticed(name: str) -> None:
    files, file, data = written()
    if name == FOOTER_CHECKSUM_KEY:
        other = data.replace(name.encode(), name.upper().encode())
    else:  # the field that holds all of them is another one
        struct, _ = decode_struct(footer_text(data))
        struct[_UNKNOWN_FIELD] = struct.pop(_FILE_KEY_VALUES)
        other = with_footer(data, encode_struct(struct))
        assert footer_of(other).metadata is None
    with pytest.raises(CorruptDataError, match="lost its checksum"):
        files.read(files.replace(file, other))


@pytest.mark.parametrize("count", [20, COUNT])
def test_file_that_another_tool_made_of_ours_is_read(count: int) -> None:
    """pyarrow takes the metadata of a file over into the next."""
    files, file, data = written()
    taken_over = pq.read_table(io.BytesIO(data)).slice(0, count)
    assert FOOTER_CHECKSUM_KEY.encode() in taken_over.schema.metadata
    other = files.foreign(taken_over, options={"row_group_size": 15})
    assert other.file_path != file.file_path
    assert files.read(other, row_group_filter=lambda _: True).to_pylist() == (
        TABLE.slice(0, count).to_pylist()
    )
    assert read_some(files, other, 10, count).num_rows == 10
