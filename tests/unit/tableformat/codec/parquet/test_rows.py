"""Rows by position against the whole column, whatever the layout of the file."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from tableformat.codec.parquet.chunk_reader import ChunkReader
from tableformat.codec.parquet.rows import ParquetRows
from tableformat.codec.parquet.thrift_compact import decode_struct, encode_struct
from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import DataFile, EntryStatus, FileContent, ManifestEntry
from tableformat.spec.types import arrow_schema, iceberg_schema
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations
from tests.support.data_files import DataFiles
from tests.support.memory_store import MemoryObjectStore

ROWS = 5000
LOCATION = "memory://warehouse/rows.parquet"


def content() -> pa.Table:
    number = np.arange(ROWS)
    words = [None if i % 7 == 0 else f"word {i % 50}" for i in range(ROWS)]
    lists = [None if i % 5 == 0 else list(range(i % 4)) for i in range(ROWS)]
    columns = {
        "id": pa.array(number),
        "word": pa.array(words),
        "long": pa.array([f"{i:0>200}" for i in range(ROWS)]),
        "list": pa.array(lists, pa.list_(pa.int32())),
        "struct": pa.array([{"a": i, "b": str(i)} if i % 3 else None for i in range(ROWS)]),
        "map": pa.array([[(str(i), i)] for i in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        "flag": pa.array([None if i % 11 == 0 else i % 2 == 0 for i in range(ROWS)]),
        "none": pa.nulls(ROWS, pa.int64()),
        "price": pa.array(number).cast(pa.decimal128(21, 2)),
    }
    schema = iceberg_schema(pa.table(columns).schema)
    return pa.table(columns).cast(arrow_schema(schema))


CONTENT = content()
LAYOUTS = {
    "pages": {"write_page_index": True, "data_page_size": 2000, "max_rows_per_page": 100},
    "pages v2": {
        "write_page_index": True,
        "data_page_size": 1000,
        "max_rows_per_page": 64,
        "data_page_version": "2.0",
        "compression": "zstd",
    },
    "no dictionary": {"write_page_index": True, "use_dictionary": False, "max_rows_per_page": 333},
    "dictionary given up": {
        "write_page_index": True,
        "dictionary_pagesize_limit": 500,
        "max_rows_per_page": 100,
    },
    "row groups": {"write_page_index": True, "row_group_size": 700, "max_rows_per_page": 90},
    "no index": {"row_group_size": 1500},
}


def stored(layout: dict[str, object]) -> tuple[MemoryObjectStore, ManifestEntry]:
    sink = pa.BufferOutputStream()
    pq.write_table(CONTENT, sink, write_page_checksum=True, store_schema=False, **layout)
    data = sink.getvalue().to_pybytes()
    store = MemoryObjectStore()
    store.put(LOCATION, data)
    return store, entry(len(data))


def entry(size: int) -> ManifestEntry:
    file = DataFile(
        content=FileContent.DATA,
        file_path=LOCATION,
        file_format="PARQUET",
        spec_id=0,
        partition=(),
        record_count=ROWS,
        file_size_in_bytes=size,
        first_row_id=1000,
    )
    return ManifestEntry(
        status=EntryStatus.ADDED,
        snapshot_id=1,
        sequence_number=1,
        file_sequence_number=1,
        data_file=file,
    )


def read(rows: ParquetRows, entry: ManifestEntry, positions: np.ndarray) -> pa.Table:
    batch = rows.read(
        entry,
        positions,
        schema=iceberg_schema(CONTENT.schema),
        spec=UNPARTITIONED_PARTITION_SPEC,
        with_positions=True,
    )
    return pa.table(batch)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cache_bytes", [1 << 26, 0])
def test_rows_at_any_positions_are_those_of_the_file(layout, cache_bytes) -> None:
    store, file = stored(LAYOUTS[layout])
    rows = ParquetRows(store, cache_bytes=cache_bytes)
    random = np.random.default_rng(5)
    for count in (1, 1, 2, 10, 300, 4000, 1):
        positions = np.sort(random.integers(0, ROWS, count))
        found = read(rows, file, positions)
        assert found["_pos"].to_pylist() == positions.tolist()
        assert found.drop(["_pos"]).to_pylist() == CONTENT.take(pa.array(positions)).to_pylist()
    assert rows._values.used <= cache_bytes
    if layout.startswith("pages"):
        assert rows.statistics.pages
    for edge in ([0], [ROWS - 1], [0, 0, ROWS - 1]):
        assert read(rows, file, np.array(edge))["id"].to_pylist() == edge
    rows.close()


def test_one_row_reads_one_page_of_each_simple_column_and_then_none() -> None:
    store, file = stored(LAYOUTS["pages"])
    rows = ParquetRows(store)
    read(rows, file, np.array([1234]))
    first = (rows.statistics.pages, rows.statistics.chunks)
    assert first == (7, 2)  # struct and map have several stored columns
    read(rows, file, np.array([1235]))
    assert (rows.statistics.pages, rows.statistics.chunks) == first


@pytest.mark.parametrize("layout", ["row groups", "pages", "no index"])
def test_noted_rows_come_out_of_what_is_decoded_for_others(layout) -> None:
    store, file = stored(LAYOUTS[layout])
    rows = ParquetRows(store, cache_bytes=0)
    noted = np.array([0, 5, 699, 700, 2500, ROWS - 1])
    rows.note({LOCATION: noted})
    read(rows, file, np.arange(1, ROWS, 3))
    first = (rows.statistics.pages, rows.statistics.chunks)
    for wanted in (noted, noted[1:4], np.repeat(noted, 2)):
        expected = CONTENT.take(pa.array(wanted)).to_pylist()
        assert read(rows, file, wanted).drop(["_pos"]).to_pylist() == expected
    assert (rows.statistics.pages, rows.statistics.chunks) == first
    other = np.array([0, 6, 4998])  # one of them noted
    assert read(rows, file, other)["id"].to_pylist() == other.tolist()
    assert (rows.statistics.pages, rows.statistics.chunks) > first
    rows.note({})
    before = (rows.statistics.pages, rows.statistics.chunks)
    read(rows, file, noted)
    assert (rows.statistics.pages, rows.statistics.chunks) > before


def test_a_position_behind_the_end_is_an_error_of_the_file() -> None:
    store, file = stored(LAYOUTS["pages"])
    with pytest.raises(CorruptDataError, match="location="):
        read(ParquetRows(store), file, np.array([ROWS]))


@pytest.mark.slow
def test_flipped_bytes_are_an_error_or_change_nothing() -> None:
    """Page checksums cover pages; index, headers and footer must be checked by what they say."""
    store, file = stored(LAYOUTS["pages"])
    data = store.get(LOCATION)
    positions = np.array([17, 1234, 4999])
    expected = CONTENT.take(pa.array(positions)).select(["id", "word", "flag"]).to_pylist()
    schema = iceberg_schema(CONTENT.schema).select("id", "word", "flag")
    random, wrong = np.random.default_rng(9), 0
    tail = len(data) - 30_000
    for at in random.integers(max(tail, 0), len(data), 400).tolist():
        damaged = MemoryObjectStore()
        damaged.put(LOCATION, data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            found = ParquetRows(damaged).read(
                file, positions, schema=schema, spec=UNPARTITIONED_PARTITION_SPEC
            )
        except CorruptDataError:
            continue
        wrong += pa.table(found).to_pylist() != expected
    # Without icefold's checksums of the footer (this file is Arrow's) a name or an id can change.
    assert wrong <= 8


def test_changed_value_in_an_uncompressed_page_is_noticed_by_its_checksum() -> None:
    store, file = stored(LAYOUTS["no dictionary"] | {"compression": "none"})
    data = store.get(LOCATION)
    at = data.index(struct.pack("<q", 4321))  # pages stand first
    damaged = MemoryObjectStore()
    damaged.put(LOCATION, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(CorruptDataError):
        read(ParquetRows(damaged), file, np.array([4321]))


def test_thrift_structs_survive_a_round_trip() -> None:
    _, file = stored(LAYOUTS["pages"])
    store, _ = stored(LAYOUTS["pages"])
    data = store.get(LOCATION)
    length = int.from_bytes(data[-8:-4], "little")
    footer, end = decode_struct(data, len(data) - 8 - length)
    assert end == len(data) - 8
    assert decode_struct(encode_struct(footer))[0] == footer
    for cut in range(0, length, 97):
        with pytest.raises(CorruptDataError):
            decode_struct(data[-8 - length : -8 - length + cut])
    assert file.data_file.file_size_in_bytes == len(data)


@pytest.mark.slow
def test_column_chunks_are_read_by_several_threads(tmp_path) -> None:
    data = stored(LAYOUTS["row groups"])[0].get(LOCATION)
    location = (tmp_path / "rows.parquet").as_uri()
    store = ArrowObjectStore({}, AllowedLocations([tmp_path.as_uri()]))
    store.put(location, data)
    plain = entry(len(data))
    file = replace(plain, data_file=replace(plain.data_file, file_path=location))
    for _ in range(30):
        rows = ParquetRows(store, cache_bytes=0)
        assert read(rows, file, np.arange(ROWS))["id"].to_pylist() == list(range(ROWS))
        rows.close()


def test_text_is_codes_where_a_row_group_has_a_dictionary_of_it() -> None:
    """Few texts in the first row group, every one another in the second, none in the third."""
    number = np.arange(1500)
    texts = [f"{i % 9} or" if i < 500 else f"{i:0>40}" if i < 1000 else None for i in number]
    rows = pa.table(
        {
            "text": texts,
            "bytes": pa.array(texts).cast(pa.binary()),
            "a.b": texts,
            "struct": [{"a": text} for text in texts],
            "list": [[text, text] for text in texts],
        }
    )
    limits = {"row-group-limit": "500", "page-row-limit": "50", "dict-size-bytes": "2000"}
    files = DataFiles(
        iceberg_schema(rows.schema),
        properties={f"write.parquet.{name}": value for name, value in limits.items()},
    )
    written = files.write_one(rows)
    with files.store.open_input(written.file_path) as source:
        footer = pq.read_metadata(source)
        for leaf in (0, 1):
            kinds = [
                pa.types.is_dictionary(
                    ChunkReader(source, footer, [leaf], [group], keep_codes=True)
                    .table()
                    .column(0)
                    .type
                )
                for group in range(3)
            ]
            assert kinds[:2] == [True, False]
    file = replace(entry(0), data_file=written)
    spec = UNPARTITIONED_PARTITION_SPEC
    for positions in (number[::2], number[:500:3], number[400:600], number[[0, 700, 1400]]):
        expected = rows.take(pa.array(positions)).to_pylist()
        for cache_bytes in (0, 1 << 26):
            reader = ParquetRows(files.store, cache_bytes=cache_bytes)
            for _ in range(2):
                found = reader.read(file, positions, schema=files.schema, spec=spec)
                assert found.schema.equals(arrow_schema(files.schema))
                assert found.to_pylist() == expected
            reader.close()
        assert files.read(written, wanted=positions).to_pylist() == expected
        assert files.read(written, wanted=positions, batch_rows=64).to_pylist() == expected


def test_views_of_a_file_become_values_that_can_be_taken() -> None:
    """pyarrow and polars write them; Arrow takes none."""
    views = {
        "a": pa.array(["x", None], pa.string_view()),
        "b": pa.array([b"", b"y"], pa.binary_view()),
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(views), sink)
    source = pa.BufferReader(sink.getvalue())
    reader = ChunkReader(source, pq.read_metadata(source), [0, 1], [0])
    for rows in (reader.table(), next(reader.batches(9))):
        assert rows.take(pa.array([1, 0])).to_pylist() == [
            {"a": None, "b": b"y"},
            {"a": "x", "b": b""},
        ]
