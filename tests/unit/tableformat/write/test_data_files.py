"""Writing data files: what is refused, how rows are cut, what the entry says, what fails whole."""

import datetime as dt
import struct
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UnknownType,
)

from tableformat.errors import (
    AlreadyExistsError,
    InvalidInputError,
    StoreUnavailableError,
    UnsupportedError,
)
from tableformat.spec.data_file import FileContent
from tableformat.spec.types import arrow_schema
from tableformat.store import locations
from tests.support.data_files import PREFIX, DataFiles
from tests.support.memory_store import MemoryObjectStore

ID = NestedField(1, "id", LongType(), required=True)
NAME = NestedField(2, "name", StringType(), required=False)
PRICE = NestedField(3, "price", DoubleType(), required=False)
SCHEMA = Schema(ID, NAME, PRICE)
BY_NAME = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"), spec_id=4)


def _rows(count: int, names: int = 3) -> pa.Table:
    return pa.table(
        {
            "id": np.arange(count),
            "name": pa.array([f"n{i % names}" for i in range(count)]),
            "price": np.arange(count) / 4,
        }
    )


def _objects(files: DataFiles) -> list[str]:
    return [found.location for found in files.store.list_prefix(PREFIX)]


@pytest.mark.parametrize(
    ("rows", "message", "column"),
    [
        ({"id": [1], "nam": ["x"]}, "unknown column", "nam"),
        ({"name": ["x"]}, "required column is missing", "id"),
        ({"id": [1, None]}, "required column holds nulls", "id"),
        ({"id": pa.nulls(1)}, "required column holds nulls", "id"),
        ({"id": pa.DictionaryArray.from_arrays([0], pa.array([None], pa.int64()))}, "null", "id"),
        ({"id": ["1"]}, "does not fit", "id"),
        ({"id": [1], "price": ["1"]}, "does not fit", "price"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_rows_that_do_not_fit_are_refused_before_anything_is_written(
    rows: dict[str, Any], message: str, column: str, stream: bool
) -> None:
    files = DataFiles(SCHEMA)
    table = pa.table(rows)
    with pytest.raises(InvalidInputError, match=message) as caught:
        files.write(iter(table.to_batches()) if stream else table)
    assert caught.value.context["column"] == column
    assert _objects(files) == []
    assert next(files.numbers) == 0  # no location was even asked for


def test_column_given_twice_is_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(InvalidInputError, match=r"twice.*column=id"):
        DataFiles(SCHEMA).write(twice)


def test_bad_value_late_in_a_table_is_found_before_anything_is_written() -> None:
    files = DataFiles(Schema(NestedField(1, "id", IntegerType(), required=True)))
    late = pa.chunked_array([np.arange(1000), np.array([1 << 40])])
    with pytest.raises(InvalidInputError, match="column=id"):
        files.write(pa.table({"id": late}))
    assert next(files.numbers) == 0


def test_bad_batch_late_in_a_stream_leaves_no_object_behind() -> None:
    files = DataFiles(SCHEMA, properties={"write.target-file-size-bytes": "1000"})
    good = _rows(5000).to_batches()[0]
    bad = pa.record_batch({"id": pa.array([None], pa.int64())})
    with pytest.raises(InvalidInputError, match="column=id"):
        files.write(iter([good, *[good] * 40, bad]))
    assert _objects(files) == []


def test_columns_are_matched_by_name_and_missing_ones_filled() -> None:
    schema = Schema(
        ID,
        NAME,
        NestedField(4, "day", DateType(), required=True, write_default=dt.date(2024, 1, 2)),
        NestedField(5, "note", StringType(), required=False, write_default="none"),
    )
    files = DataFiles(schema)
    file = files.write_one(pa.table({"name": ["a", None], "id": pa.array([2, 1], pa.int8())}))
    day = dt.date(2024, 1, 2)
    assert files.read(file).to_pylist() == [
        {"id": 2, "name": "a", "day": day, "note": "none"},
        {"id": 1, "name": None, "day": day, "note": "none"},
    ]


@pytest.mark.parametrize("rows", [_rows(0), [], _rows(0).to_batches(), iter(())])
def test_no_rows_make_no_file(rows: Any) -> None:
    assert DataFiles(SCHEMA).write(rows) == []


def test_entry_describes_the_file_exactly() -> None:
    files = DataFiles(SCHEMA, spec=BY_NAME)
    first, second = files.write(_rows(4, names=2))
    assert (first.file_path, second.file_path) == (
        f"{PREFIX}name=n0/0.parquet",
        f"{PREFIX}name=n1/1.parquet",
    )
    data = files.store.get(first.file_path)
    footer = files.parquet(first).metadata
    chunks = [footer.row_group(0).column(index) for index in range(3)]
    assert first.content == FileContent.DATA
    assert (first.file_format, first.spec_id, first.partition) == ("PARQUET", 4, ("n0",))
    assert (first.record_count, first.file_size_in_bytes) == (2, len(data))
    assert first.column_sizes == {
        field_id: chunk.total_compressed_size
        for field_id, chunk in zip((1, 2, 3), chunks, strict=True)
    }
    assert first.value_counts == {1: 2, 2: 2, 3: 2}
    assert first.null_value_counts == {1: 0, 2: 0, 3: 0}
    assert first.nan_value_counts == {3: 0}
    assert first.lower_bounds == {1: struct.pack("<q", 0), 2: b"n0", 3: struct.pack("<d", 0.0 * -1)}
    assert first.upper_bounds == {1: struct.pack("<q", 2), 2: b"n0", 3: struct.pack("<d", 0.5)}
    assert first.split_offsets == (4,)
    assert first.sort_order_id == 0
    unset = (first.first_row_id, first.equality_ids, first.key_metadata, first.content_offset)
    assert unset == (None, None, None, None)


def test_files_carry_field_ids_and_no_arrow_schema_and_page_checksums() -> None:
    nested = Schema(
        ID,
        NestedField(
            7,
            "tags",
            MapType(8, StringType(), 9, ListType(10, StructType(PRICE), False), False),
            required=False,
        ),
    )
    files = DataFiles(nested)
    file = files.write_one(pa.table({"id": [1], "tags": pa.nulls(1)}))
    parquet = files.parquet(file)
    assert (parquet.metadata.metadata or {}).get(b"ARROW:schema") is None
    text = str(parquet.schema)
    for part in ("field_id=1 id", "field_id=7 tags", "field_id=8 key", "field_id=9 value"):
        assert part in text
    for part in ("field_id=10 element", "field_id=3 price"):
        assert part in text
    assert parquet.metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(
    ("codec", "stored"),
    [
        ("snappy", "SNAPPY"),
        ("gzip", "GZIP"),
        ("lz4", "LZ4"),
        ("brotli", "BROTLI"),
        ("uncompressed", "UNCOMPRESSED"),
        ("ZSTD", "ZSTD"),
    ],
)
def test_codec_property_is_honoured(codec: str, stored: str) -> None:
    properties = {
        "write.parquet.compression-codec": codec,
        "write.parquet.compression-level": "3",
    }
    files = DataFiles(SCHEMA, properties=properties)
    file = files.write_one(_rows(10))
    assert files.parquet(file).metadata.row_group(0).column(0).compression == stored
    assert files.read(file).equals(_rows(10).cast(arrow_schema(SCHEMA)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.parquet.compression-codec", "lzma"),
        ("write.parquet.compression-level", "fast"),
        ("write.parquet.compression-level", "99"),
        ("write.target-file-size-bytes", "0"),
        ("write.parquet.row-group-size-bytes", "big"),
        ("write.metadata.metrics.default", "some"),
        ("write.metadata.metrics.column.name", "truncate(0)"),
    ],
)
def test_property_without_meaning_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        DataFiles(SCHEMA, properties={name: value}).write(_rows(1))
    assert caught.value.context["property"] == name


def test_other_file_format_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="orc"):
        DataFiles(SCHEMA, properties={"write.format.default": "orc"}).write(_rows(1))


def test_row_groups_and_pages_follow_their_properties() -> None:
    properties = {"write.parquet.row-group-limit": "300", "write.parquet.page-row-limit": "100"}
    files = DataFiles(SCHEMA, properties=properties)
    file = files.write_one(_rows(1000))
    footer = files.parquet(file).metadata
    sizes = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
    assert sizes == [300, 300, 300, 100]
    assert len(file.split_offsets or ()) == 4
    assert sorted(file.split_offsets or ()) == list(file.split_offsets or ())
    assert files.read(file).column("id").to_pylist() == list(range(1000))


def test_row_groups_follow_the_byte_limit() -> None:
    files = DataFiles(SCHEMA, properties={"write.parquet.row-group-size-bytes": "20000"})
    noise = np.random.default_rng(3).random(20_000)
    file = files.write_one(pa.table({"id": np.arange(20_000), "price": noise}))
    footer = files.parquet(file).metadata
    sizes = [footer.row_group(i).total_byte_size for i in range(footer.num_row_groups)]
    assert len(sizes) > 5
    assert max(sizes) < 40_000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("spec", [PartitionSpec(), BY_NAME])
def test_files_are_cut_at_the_target_size(stream: bool, spec: PartitionSpec) -> None:
    files = DataFiles(SCHEMA, spec=spec, properties={"write.target-file-size-bytes": "50000"})
    noise = np.random.default_rng(3).random(60_000)
    table = _rows(60_000).set_column(2, "price", pa.array(noise))
    written = files.write(iter(table.to_batches(5_000)) if stream else table)
    sizes = [file.file_size_in_bytes for file in written]
    assert max(sizes) < 75_000
    assert len([size for size in sizes if size < 35_000]) <= 3  # only the last of a partition
    assert files.read(*written).sort_by("id").equals(table.cast(arrow_schema(SCHEMA)))


def test_stream_of_tiny_batches_makes_large_row_groups() -> None:
    files = DataFiles(SCHEMA)
    written = files.write(batch for batch in _rows(3_000).to_batches(10))
    assert [file.record_count for file in written] == [3_000]
    assert files.parquet(written[0]).metadata.num_row_groups == 1


def test_stream_may_change_its_layout_but_not_its_columns() -> None:
    files = DataFiles(SCHEMA)
    first = pa.record_batch({"id": [1], "name": ["a"]})
    second = pa.record_batch({"name": pa.array(["b"]).dictionary_encode(), "id": [2]})
    assert files.read(*files.write([first, second])).column("name").to_pylist() == ["a", "b"]
    with pytest.raises(InvalidInputError, match="column=other"):
        files.write([first, pa.record_batch({"id": [1], "other": [1]})])


def test_many_partitions_are_written_with_few_open_files(monkeypatch: Any) -> None:
    monkeypatch.setattr("tableformat.write.file_set._OPEN_FILES_MAX", 3)
    monkeypatch.setattr("tableformat.write.file_set._BUFFERED_BYTES_MAX", 20_000)
    open_now: set[str] = set()
    most = 0

    class Counting(MemoryObjectStore):
        def open_output(self, location: str) -> Any:
            nonlocal most
            sink = super().open_output(location)
            open_now.add(location)
            most = max(most, len(open_now))
            close = sink.close

            def counted() -> None:
                open_now.discard(location)
                close()

            sink.close = counted
            return sink

    files = DataFiles(SCHEMA, spec=BY_NAME, store=Counting())
    table = _rows(20_000, names=40)
    written = files.write(iter(table.to_batches(1_000)))
    assert most <= 3
    assert {file.partition[0] for file in written} == {f"n{i}" for i in range(40)}
    for file in written:
        names = set(files.read(file).column("name").to_pylist())
        assert names == {file.partition[0]}
    assert files.read(*written).sort_by("id").equals(table.cast(arrow_schema(SCHEMA)))


class _Failing(MemoryObjectStore):
    """Fails on the nth object: when it is opened, written or closed."""

    def __init__(self, step: str, nth: int) -> None:
        super().__init__()
        self.step = step
        self.left = nth

    def open_output(self, location: str) -> Any:
        self.left -= 1
        sink = super().open_output(location)
        if self.left:
            return sink

        def fail(*_: Any) -> None:
            raise StoreUnavailableError("injected", location=location)

        if self.step == "open":
            fail()
        elif self.step == "write":
            sink.write = fail
        else:
            sink.close = fail
        return sink


@pytest.fixture(params=[False, True], ids=["disk", "bucket"])
def is_in_bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a bucket several files are put at a time."""
    monkeypatch.setattr(locations, "is_in_bucket", lambda _: request.param)


@pytest.mark.usefixtures("is_in_bucket")
@pytest.mark.parametrize("step", ["open", "write", "close"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_failing_store_leaves_no_object_and_no_result(step: str, nth: int) -> None:
    files = DataFiles(SCHEMA, spec=BY_NAME, store=_Failing(step, nth))
    with pytest.raises(StoreUnavailableError, match="injected"):
        files.write(_rows(100))
    assert _objects(files) == []


@pytest.mark.usefixtures("is_in_bucket")
def test_files_are_in_the_order_of_their_partitions_whichever_is_put_first() -> None:
    class Slow(MemoryObjectStore):
        def open_output(self, location: str) -> Any:
            sink = super().open_output(location)
            close = sink.close

            def close_late() -> None:
                time.sleep(0.05 if location.endswith("/0.parquet") else 0)
                close()

            sink.close = close_late
            return sink

    written = DataFiles(SCHEMA, spec=BY_NAME, store=Slow()).write(_rows(100, names=5))
    assert [file.partition for file in written] == [(f"n{number}",) for number in range(5)]


def test_disk_error_of_a_foreign_sink_is_typed() -> None:
    class NoSpace(MemoryObjectStore):
        def open_output(self, location: str) -> Any:
            sink = super().open_output(location)

            def fail(_: Any) -> None:
                raise OSError(28, "No space left on device")

            sink.write = fail
            return sink

    with pytest.raises(StoreUnavailableError, match=f"No space.*{PREFIX}"):
        DataFiles(SCHEMA, store=NoSpace()).write(_rows(1))


def test_taken_location_fails_and_keeps_the_object_there() -> None:
    files = DataFiles(SCHEMA)
    files.store.put(f"{PREFIX}0.parquet", b"theirs")
    with pytest.raises(AlreadyExistsError):
        files.write(_rows(1))
    assert files.store.get(f"{PREFIX}0.parquet") == b"theirs"


def test_row_lineage_is_stored_under_its_reserved_ids_without_statistics() -> None:
    files = DataFiles(SCHEMA)
    rows = pa.table(
        {"id": [1, 2], "_row_id": [70, None], "_last_updated_sequence_number": pa.array([3, None])}
    )
    file = files.write_one(rows)
    text = str(files.parquet(file).schema)
    assert "optional int64 field_id=2147483540 _row_id" in text
    assert "optional int64 field_id=2147483539 _last_updated_sequence_number" in text
    assert set(file.value_counts or ()) == {1, 2, 3}
    assert set(file.lower_bounds or ()) == {1}
    with pytest.raises(InvalidInputError, match="column=_row_id"):
        files.write(pa.table({"id": [1], "_row_id": ["a"]}))


def test_nested_rows_of_every_shape_survive() -> None:
    point = StructType(
        NestedField(11, "x", IntegerType(), required=True),
        NestedField(12, "none", UnknownType(), required=False),
        NestedField(13, "y", StringType(), required=False),
    )
    schema = Schema(
        ID,
        NestedField(4, "at", point, required=False),
        NestedField(5, "path", ListType(14, point, element_required=True), required=False),
        NestedField(
            6,
            "names",
            MapType(15, StringType(), 16, ListType(17, LongType(), False), value_required=False),
            required=False,
        ),
        NestedField(7, "void", UnknownType(), required=False),
    )
    place = {"x": 1, "none": None, "y": "é"}
    base = {"void": None}
    rows = [
        base | {"id": 1, "at": place, "path": [place, place], "names": [("a", [1, None])]},
        base | {"id": 2, "at": None, "path": None, "names": None},
        base | {"id": 3, "at": {"x": 2, "none": None, "y": None}, "path": [], "names": []},
        base | {"id": 4, "at": None, "path": [place], "names": [("b", None), ("c", [])]},
    ]
    files = DataFiles(schema)
    table = pa.Table.from_pylist(rows, schema=arrow_schema(schema))
    for part in (table, table.slice(1), table.slice(2, 1)):
        file = files.write_one(part)
        assert files.read(file).to_pylist() == part.to_pylist()
        assert 12 not in (file.column_sizes or {})
    file = files.write_one(table)
    assert file.null_value_counts == {1: 0, 11: 2, 13: 3}  # nothing below a list or map


def test_required_field_of_a_null_struct_is_no_null() -> None:
    inner = StructType(NestedField(11, "x", IntegerType(), required=True))
    files = DataFiles(Schema(ID, NestedField(4, "at", inner, required=False)))
    kind = pa.struct([("x", pa.int32())])
    fine = pa.table({"id": [1, 2], "at": pa.array([{"x": 1}, None], kind)})
    assert files.read(files.write_one(fine)).column("at").to_pylist() == [{"x": 1}, None]
    wrong = pa.table({"id": [1, 2], "at": pa.array([{"x": None}, None], kind)})
    with pytest.raises(InvalidInputError, match=r"column=at\.x"):
        files.write(wrong)
    with pytest.raises(InvalidInputError, match=r"unknown column.*column=at\.z"):
        files.write(pa.table({"id": [1], "at": [{"x": 1, "z": 1}]}))


def test_required_fields_at_every_depth_survive() -> None:
    point = StructType(NestedField(11, "x", IntegerType(), required=True))
    deep = StructType(
        NestedField(12, "p", point, required=True),
        NestedField(13, "l", ListType(14, point, element_required=True), required=True),
        NestedField(15, "m", MapType(16, StringType(), 17, point, True), required=True),
    )
    outer = StructType(NestedField(18, "deep", deep, required=False))
    files = DataFiles(
        Schema(ID, NestedField(4, "s", deep, required=False), NestedField(5, "t", outer))
    )
    at = {"x": 1}
    full = {"p": at, "l": [at, at], "m": [("k", at)]}
    bare = {"p": at, "l": [], "m": []}
    rows = [
        {"id": 1, "s": full, "t": {"deep": None}},
        {"id": 2, "s": None, "t": None},
        {"id": 3, "s": bare, "t": {"deep": full}},
        {"id": 4, "s": None, "t": {"deep": bare}},
    ]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(files.schema))
    for part in (table, table.slice(1, 1), table.slice(2)):
        assert files.read(files.write_one(part)).to_pylist() == part.to_pylist()


def test_nulls_hidden_under_null_lists_are_no_nulls() -> None:
    files = DataFiles(
        Schema(
            NestedField(4, "l", ListType(5, LongType(), element_required=True), required=False),
            NestedField(6, "m", MapType(7, "string", 8, "long", True), required=False),
        )
    )
    mask = pa.array([False, True, False])
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), pa.array([1, None, 3]), mask=mask
    )
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), ["a", "b", "c"], pa.array([1, None, 3]), mask=mask
    )
    file = files.write_one(pa.table({"l": lists, "m": maps}))
    assert files.read(file).to_pylist() == [
        {"l": [1], "m": [("a", 1)]},
        {"l": None, "m": None},
        {"l": [3], "m": [("c", 3)]},
    ]
    with pytest.raises(InvalidInputError, match=r"column=l\.element"):
        files.write(pa.table({"l": pa.array([[None]], pa.list_(pa.int64()))}))


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (ListType(9, UnknownType(), False), "c.element"),
        (MapType(8, StringType(), 9, UnknownType(), False), "c.value"),
        (StructType(NestedField(9, "u", UnknownType(), required=False)), "c"),
    ],
)
def test_type_unknown_where_it_cannot_be_stored_is_refused(kind: Any, column: str) -> None:
    files = DataFiles(Schema(ID, NestedField(4, "c", kind, required=False)))
    with pytest.raises(UnsupportedError) as caught:
        files.write(pa.table({"id": [1]}))
    assert caught.value.context["column"] == column


def test_short_slice_of_a_long_text_column_is_taken() -> None:
    # Offsets beyond 32 bits are what breaks a cast; a huge first offset stands in for 2 GB of text.
    text = pa.array(["x" * 100, "é", None], pa.large_string())
    files = DataFiles(Schema(NAME))
    file = files.write_one(pa.table({"name": text[1:]}))
    assert files.read(file).column("name").to_pylist() == ["é", None]


def test_bloom_filter_property_is_honoured() -> None:
    name = "write.parquet.bloom-filter-enabled.column.name"
    with_filter = DataFiles(SCHEMA, properties={name: "true"})
    without = DataFiles(SCHEMA, properties={name: "false"})
    sizes = [each.write_one(_rows(10)).file_size_in_bytes for each in (with_filter, without)]
    assert sizes[0] > sizes[1]


def test_bucketed_rows_keep_their_order_inside_a_file() -> None:
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(16), "id_bucket"), spec_id=2)
    files = DataFiles(SCHEMA, spec=spec)
    written = files.write(_rows(5_000))
    assert len(written) == 16
    for file in written:
        ids = files.read(file).column("id").to_pylist()
        assert ids == sorted(ids)
    assert sum(file.record_count for file in written) == 5_000


def test_file_is_readable_by_plain_parquet_readers() -> None:
    files = DataFiles(SCHEMA)
    file = files.write_one(_rows(100))
    source = files.store.open_input(file.file_path)
    assert pq.read_table(source, page_checksum_verification=True).num_rows == 100
