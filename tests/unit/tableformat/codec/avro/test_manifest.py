import io
import json
import uuid
from dataclasses import replace
from decimal import Decimal

import fastavro
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.manifest import DataFileContent as IcebergContent
from pyiceberg.manifest import FileFormat as IcebergFormat
from pyiceberg.manifest import ManifestContent as IcebergManifestContent
from pyiceberg.manifest import ManifestEntry as IcebergEntry
from pyiceberg.manifest import (
    ManifestEntryStatus,
    write_manifest,
)
from pyiceberg.manifest import ManifestFile as IcebergManifest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tableformat.codec.avro.manifest import describe_manifest, encode_manifest
from tableformat.codec.avro.manifest_entries import decode_manifest
from tableformat.errors import InternalError, InvalidInputError, UnsupportedError
from tableformat.spec.data_file import EntryStatus, FileContent
from tableformat.spec.manifest_file import ManifestContent, ManifestFile, PartitionFieldSummary
from tests.support.manifests import (
    LOCATION,
    SCHEMA,
    SNAPSHOT_ID,
    SPEC,
    added,
    data_file,
    deleted,
    deletion_vector,
    equality_delete,
    existing,
    full_data_file,
    written_manifest,
)

DELETES = ManifestContent.DELETES


def avro_records(data: bytes) -> list[dict]:
    return list(fastavro.reader(io.BytesIO(data)))


@pytest.mark.parametrize("codec", ["gzip", "zstd", "uncompressed"])
def test_manifest_of_every_field_round_trips(codec):
    file = full_data_file(first_row_id=800)
    entries = [existing(file), deleted(full_data_file(first_row_id=None, record_count=7))]

    data, manifest = written_manifest(entries, codec=codec)

    assert decode_manifest(data, manifest) == entries


def test_rewriting_a_decoded_manifest_loses_nothing():
    deletes = [
        added(deletion_vector("a")),
        existing(deletion_vector("b", content_offset=48)),
        added(equality_delete()),
        added(data_file("pos", content=FileContent.POSITION_DELETES)),
    ]
    data, manifest = written_manifest(deletes, content=DELETES)
    first = decode_manifest(data, manifest)
    again = [replace(entry, status=EntryStatus.EXISTING) for entry in first]

    rewritten, described = written_manifest(again, content=DELETES)

    assert decode_manifest(rewritten, described) == again


def test_equal_entries_give_equal_bytes():
    entries = [added(full_data_file())]

    assert written_manifest(entries)[0] == written_manifest(entries)[0]


def test_manifest_header_has_the_keys_the_spec_demands():
    data, _ = written_manifest([added(deletion_vector())], content=DELETES)

    metadata = fastavro.reader(io.BytesIO(data)).metadata

    assert json.loads(metadata["schema"])["fields"][0]["name"] == "id"
    assert metadata["schema-id"] == "4"
    assert json.loads(metadata["partition-spec"]) == [
        {"source-id": 1, "field-id": 1000, "transform": "bucket[16]", "name": "id_bucket"}
    ]
    assert metadata["partition-spec-id"] == "3"
    assert metadata["format-version"] == "3"
    assert metadata["content"] == "deletes"


def test_manifest_schema_has_v3_fields_in_order_and_equality_ids_as_ints():
    data, _ = written_manifest([added(data_file())])

    schema = json.loads(fastavro.reader(io.BytesIO(data)).metadata["avro.schema"])

    assert [each["field-id"] for each in schema["fields"]] == [0, 1, 3, 4, 2]
    fields = schema["fields"][4]["type"]["fields"]
    ids = [134, 100, 101, 102, 103, 104, 108, 109, 110, 137, 125, 128, 131, 132, 135, 140]
    assert [each["field-id"] for each in fields] == [*ids, 142, 143, 144, 145]
    equality_ids = next(each for each in fields if each["field-id"] == 135)
    assert equality_ids["type"] == ["null", {"type": "array", "element-id": 136, "items": "int"}]


def test_all_entries_stand_in_one_block():
    data, _ = written_manifest([added(data_file(str(i))) for i in range(50)])

    blocks = list(fastavro.block_reader(io.BytesIO(data)))

    assert [block.num_records for block in blocks] == [50]


def test_deletion_vector_as_an_independent_reader_sees_it():
    data, _ = written_manifest([added(deletion_vector())], content=DELETES)

    (record,) = avro_records(data)

    assert (record["status"], record["snapshot_id"]) == (1, None)
    assert (record["sequence_number"], record["file_sequence_number"]) == (None, None)
    path = "memory://warehouse/t/data/a.parquet"
    bound = [{"key": 2147483546, "value": path.encode()}]
    assert record["data_file"] == {
        "content": 1,
        "file_path": "memory://warehouse/t/data/dvs.puffin",
        "file_format": "PUFFIN",
        "partition": {"id_bucket": 5},
        "record_count": 3,
        "file_size_in_bytes": 400,
        "column_sizes": None,
        "value_counts": None,
        "null_value_counts": None,
        "nan_value_counts": None,
        "lower_bounds": bound,
        "upper_bounds": bound,
        "key_metadata": None,
        "split_offsets": None,
        "equality_ids": None,
        "sort_order_id": None,
        "first_row_id": None,
        "referenced_data_file": path,
        "content_offset": 4,
        "content_size_in_bytes": 44,
    }


def test_pyiceberg_reads_our_manifest(tmp_path):
    entries = [added(full_data_file()), existing(data_file("b"))]
    data, manifest = written_manifest(entries)
    path = tmp_path / "m.avro"
    path.write_bytes(data)
    listed = IcebergManifest.from_args(
        manifest_path=str(path),
        manifest_length=len(data),
        partition_spec_id=3,
        content=IcebergManifestContent.DATA,
        sequence_number=manifest.sequence_number,
        min_sequence_number=manifest.min_sequence_number,
        added_snapshot_id=SNAPSHOT_ID,
    )

    one, two = listed.fetch_manifest_entry(PyArrowFileIO())

    assert (one.status, one.snapshot_id, one.sequence_number) == (
        ManifestEntryStatus.ADDED,
        SNAPSHOT_ID,
        9,
    )
    assert one.data_file.partition[0] == 5
    assert one.data_file.lower_bounds == {1: b"\x01" * 8, 2: b""}
    assert one.data_file.split_offsets == [4, 70_000]
    assert (two.status, two.sequence_number) == (ManifestEntryStatus.EXISTING, 2)


# Inheritance -----------------------------------------------------------------------------------


def test_added_entry_inherits_snapshot_and_sequence_numbers():
    data, manifest = written_manifest([added(data_file())], sequence_number=9)

    (entry,) = decode_manifest(data, manifest)

    assert (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number) == (
        SNAPSHOT_ID,
        9,
        9,
    )


def test_added_entry_of_a_rewrite_keeps_its_data_sequence_number():
    data, manifest = written_manifest([added(data_file(), sequence_number=4)], sequence_number=9)

    (entry,) = decode_manifest(data, manifest)

    assert (entry.sequence_number, entry.file_sequence_number) == (4, 9)
    assert manifest.min_sequence_number == 4


def test_existing_entry_may_lack_a_file_sequence_number():
    data, manifest = written_manifest([existing(data_file(), file_sequence_number=None)])

    (entry,) = decode_manifest(data, manifest)

    assert (entry.sequence_number, entry.file_sequence_number) == (2, None)


def test_row_ids_of_the_spec_example_are_inherited():
    # Spec, "First Row ID Assignment": added1 holds data1 (existing, id 800), data2 and data3.
    entries = [
        existing(data_file("data1", record_count=25, first_row_id=800)),
        added(data_file("data2", record_count=50)),
        added(data_file("data3", record_count=50)),
    ]
    data, manifest = written_manifest(entries, first_row_id=1000)

    decoded = decode_manifest(data, manifest)

    assert [entry.data_file.first_row_id for entry in decoded] == [800, 1000, 1050]


def test_deleted_entries_take_no_row_ids():
    entries = [
        deleted(data_file("gone", record_count=70)),
        existing(data_file("old", record_count=30)),
        added(data_file("new", record_count=10)),
    ]
    data, manifest = written_manifest(entries, first_row_id=500)

    decoded = decode_manifest(data, manifest)

    assert [entry.data_file.first_row_id for entry in decoded] == [None, 500, 530]


def test_added_file_with_old_row_ids_is_written_without_them():
    data, manifest = written_manifest([added(data_file(first_row_id=12))], first_row_id=500)

    assert avro_records(data)[0]["data_file"]["first_row_id"] is None
    assert decode_manifest(data, manifest)[0].data_file.first_row_id == 500


def test_row_ids_count_for_nothing_while_the_manifest_has_none():
    data, manifest = written_manifest([existing(data_file(first_row_id=12))])

    (entry,) = decode_manifest(data, replace(manifest, first_row_id=None))

    assert entry.data_file.first_row_id is None


def test_delete_files_never_have_row_ids():
    data, manifest = written_manifest([existing(deletion_vector())], content=DELETES)

    assert manifest.first_row_id is None
    listed_with_one = replace(manifest, first_row_id=5)
    assert decode_manifest(data, listed_with_one)[0].data_file.first_row_id is None


# Partition values ------------------------------------------------------------------------------

UUID_VALUE = uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
PARTITIONS = [
    (BooleanType(), IdentityTransform(), True),
    (IntegerType(), IdentityTransform(), -(2**31)),
    (LongType(), IdentityTransform(), 2**63 - 1),
    (FloatType(), IdentityTransform(), 0.5),
    (DoubleType(), IdentityTransform(), -0.0),
    (DoubleType(), IdentityTransform(), float("inf")),
    (DecimalType(9, 2), IdentityTransform(), Decimal("-1.50")),
    (DecimalType(38, 0), IdentityTransform(), Decimal(10**38 - 1)),
    (DateType(), IdentityTransform(), -1),
    (TimeType(), IdentityTransform(), 86_399_999_999),
    (TimestampType(), IdentityTransform(), 1_700_000_000_000_000),
    (TimestamptzType(), IdentityTransform(), -5),
    (TimestampNanoType(), IdentityTransform(), 1_700_000_000_000_000_001),
    (TimestamptzNanoType(), IdentityTransform(), 1),
    (StringType(), IdentityTransform(), "Zürich 🤯"),
    (StringType(), TruncateTransform(3), ""),
    (UUIDType(), IdentityTransform(), UUID_VALUE),
    (FixedType(3), IdentityTransform(), b"abc"),
    (BinaryType(), IdentityTransform(), b"\x00\xff"),
    (UUIDType(), BucketTransform(8), 7),
    (TimestampType(), YearTransform(), 53),
    (TimestampType(), MonthTransform(), -1),
    (DateType(), DayTransform(), 19_000),
    (TimestamptzType(), HourTransform(), 470_000),
    (StringType(), VoidTransform(), None),
]


@pytest.mark.parametrize(("source", "transform", "value"), PARTITIONS)
def test_partition_value_of_every_result_type_round_trips(source, transform, value):
    schema = Schema(NestedField(1, "c", source))
    spec = PartitionSpec(PartitionField(1, 1000, transform, "c_part"), spec_id=3)
    entries = [existing(data_file(partition=(value,))), existing(data_file(partition=(None,)))]

    data, manifest = written_manifest(entries, schema=schema, spec=spec)

    first, second = decode_manifest(data, manifest)
    assert repr(first.data_file.partition) == repr((value,))  # repr: -0.0 is not 0.0
    assert second.data_file.partition == (None,)
    assert len(avro_records(data)) == 2


def test_two_partition_fields_of_one_named_type_are_valid_avro():
    schema = Schema(
        NestedField(1, "a", UUIDType()), NestedField(2, "b", UUIDType()),
        NestedField(3, "c", DecimalType(9, 2)), NestedField(4, "d", DecimalType(9, 2)),
        NestedField(5, "e", FixedType(2)), NestedField(6, "f", FixedType(2)),
    )  # fmt: skip
    spec = PartitionSpec(
        *(PartitionField(i, 999 + i, IdentityTransform(), f"p{i}") for i in range(1, 7)), spec_id=3
    )
    values = (UUID_VALUE, None, Decimal("1.25"), Decimal("0.00"), b"ab", b"cd")

    data, manifest = written_manifest(
        [existing(data_file(partition=values))], schema=schema, spec=spec
    )

    assert decode_manifest(data, manifest)[0].data_file.partition == values
    assert avro_records(data)[0]["data_file"]["partition"]["p4"] == Decimal("0.00")


def test_partition_field_name_that_avro_forbids_is_read_back():
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(16), "1 id/§"), spec_id=3)

    data, manifest = written_manifest([existing(data_file())], spec=spec)

    assert decode_manifest(data, manifest)[0].data_file.partition == (5,)


def test_partition_of_an_unpartitioned_table_is_empty():
    spec = PartitionSpec(spec_id=3)

    data, manifest = written_manifest([existing(data_file(partition=()))], spec=spec)

    assert manifest.partitions == ()
    assert decode_manifest(data, manifest)[0].data_file.partition == ()


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (IntegerType(), 2**31),
        (IntegerType(), "5"),
        (IntegerType(), True),
        (DateType(), 1.5),
        (LongType(), -(2**63) - 1),
        (DecimalType(9, 2), Decimal("1.555")),
        (DecimalType(9, 2), Decimal("12345678.00")),
        (DecimalType(9, 2), Decimal("NaN")),
        (DecimalType(9, 2), Decimal("1e999999")),
        (DecimalType(9, 2), 1.5),
        (FixedType(3), b"ab"),
        (StringType(), b"ab"),
        (StringType(), "\ud800"),
        (BinaryType(), "ab"),
        (BooleanType(), 1),
        (FloatType(), 1e300),
        (DoubleType(), "1"),
        (UUIDType(), b"short"),
    ],
)
def test_partition_value_that_does_not_fit_its_type_is_refused(source, value):
    schema = Schema(NestedField(1, "c", source))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "c"), spec_id=3)

    with pytest.raises(InvalidInputError, match="partition value does not fit"):
        written_manifest([existing(data_file(partition=(value,)))], schema=schema, spec=spec)


@pytest.mark.parametrize(
    ("value", "written"),
    [("1.5", "1.50"), ("2", "2.00"), ("1E+2", "100.00"), ("-0.10", "-0.10"), ("3.1000", "3.10")],
)
def test_decimal_partition_is_written_at_the_scale_of_its_type(value, written):
    schema = Schema(NestedField(1, "c", DecimalType(9, 2)))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "c"), spec_id=3)
    entries = [existing(data_file(partition=(Decimal(value),)))]

    data, _ = written_manifest(entries, schema=schema, spec=spec)

    assert str(avro_records(data)[0]["data_file"]["partition"]["c"]) == written


def test_partition_tuple_of_the_wrong_length_is_refused():
    with pytest.raises(InvalidInputError, match="wrong number of values"):
        written_manifest([added(data_file(partition=(1, 2)))])


def test_values_of_a_dropped_source_column_are_read_by_the_manifests_own_types():
    data, manifest = written_manifest([existing(data_file(partition=(5,)))])

    # Nothing of the table's schema is given to the reader.
    assert decode_manifest(data, manifest)[0].data_file.partition == (5,)


def test_values_of_a_dropped_source_column_are_not_written_without_their_type():
    dropped = Schema(NestedField(2, "name", StringType()), schema_id=5)

    with pytest.raises(InvalidInputError, match="source column is not in the schema"):
        written_manifest([existing(data_file(partition=(5,)))], schema=dropped)


def test_null_of_a_dropped_source_column_is_written():
    dropped = Schema(NestedField(2, "name", StringType()), schema_id=5)

    data, manifest = written_manifest([existing(data_file(partition=(None,)))], schema=dropped)

    assert decode_manifest(data, manifest)[0].data_file.partition == (None,)
    assert avro_records(data)[0]["data_file"]["partition"] == {"id_bucket": None}
    schema = json.loads(fastavro.reader(io.BytesIO(data)).metadata["avro.schema"])
    partition = schema["fields"][4]["type"]["fields"][3]["type"]
    assert partition["fields"][0]["type"] == "null"  # Avro has no union of null and null


def test_unknown_transform_is_not_written():
    spec = PartitionSpec(PartitionField(1, 1000, UnknownTransform("new[3]"), "p"), spec_id=3)

    with pytest.raises(UnsupportedError, match="transform"):
        written_manifest([added(data_file())], spec=spec)


def test_partition_values_come_in_the_order_of_the_manifests_spec():
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", StringType()))
    fields = [
        PartitionField(1, 1000, IdentityTransform(), "a"),
        PartitionField(2, 1001, IdentityTransform(), "b"),
    ]
    spec = PartitionSpec(*fields, spec_id=3)
    data, manifest = written_manifest(
        [existing(data_file(partition=(8, "x")))], schema=schema, spec=spec
    )
    reader = fastavro.reader(io.BytesIO(data))
    records = list(reader)
    metadata = dict(reader.metadata)
    metadata["partition-spec"] = json.dumps([each.model_dump() for each in reversed(fields)])
    out = io.BytesIO()
    fastavro.writer(out, reader.writer_schema, records, metadata=metadata)

    (entry,) = decode_manifest(out.getvalue(), manifest)

    assert entry.data_file.partition == ("x", 8)


# describe_manifest -----------------------------------------------------------------------------


def test_description_counts_files_and_rows_by_status():
    entries = [
        added(data_file("a", record_count=1)),
        added(data_file("b", record_count=2)),
        existing(data_file("c", record_count=4)),
        deleted(data_file("d", record_count=8)),
    ]

    described = describe_manifest(
        entries,
        location=LOCATION,
        length=123,
        schema=SCHEMA,
        spec=SPEC,
        content=ManifestContent.DATA,
        snapshot_id=SNAPSHOT_ID,
    )

    assert described == ManifestFile(
        manifest_path=LOCATION,
        manifest_length=123,
        partition_spec_id=3,
        content=ManifestContent.DATA,
        sequence_number=None,
        min_sequence_number=2,
        added_snapshot_id=SNAPSHOT_ID,
        added_files_count=2,
        existing_files_count=1,
        deleted_files_count=1,
        added_rows_count=3,
        existing_rows_count=4,
        deleted_rows_count=8,
        partitions=(
            PartitionFieldSummary(
                contains_null=False,
                contains_nan=False,
                lower_bound=b"\x05\x00\x00\x00",
                upper_bound=b"\x05\x00\x00\x00",
            ),
        ),
    )


def test_lowest_sequence_number_ignores_deleted_entries():
    _, manifest = written_manifest(
        [deleted(data_file("a"), sequence_number=1), existing(data_file("b"), sequence_number=5)]
    )

    assert manifest.min_sequence_number == 5


def summaries_of(source, values):
    schema = Schema(NestedField(1, "c", source))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "c"), spec_id=3)
    entries = [added(data_file(str(i), partition=(v,))) for i, v in enumerate(values)]
    _, manifest = written_manifest(entries, schema=schema, spec=spec)
    return manifest.partitions[0]


def test_summary_tells_nulls_and_nans_apart_from_bounds():
    summary = summaries_of(DoubleType(), [None, float("nan"), 2.5, -1.0])

    assert (summary.contains_null, summary.contains_nan) == (True, True)
    assert summary.lower_bound == bytes.fromhex("000000000000f0bf")
    assert summary.upper_bound == bytes.fromhex("0000000000000440")


def test_summary_of_nulls_only_has_no_bounds():
    summary = summaries_of(StringType(), [None, None])

    assert summary == PartitionFieldSummary(contains_null=True, contains_nan=False)


def test_summary_orders_the_two_zeros():
    summary = summaries_of(DoubleType(), [0.0, -0.0])

    assert summary.lower_bound == bytes.fromhex("0000000000000080")
    assert summary.upper_bound == bytes(8)


def test_summary_of_decimals_is_by_value_not_by_text():
    summary = summaries_of(DecimalType(9, 2), [Decimal("9.5"), Decimal("10")])

    assert (summary.lower_bound, summary.upper_bound) == (b"\x03\xb6", b"\x03\xe8")


# What encode_manifest refuses ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "content", "problem"),
    [
        (added(data_file(spec_id=1)), ManifestContent.DATA, "spec 1 in a manifest of spec 3"),
        (added(data_file()), DELETES, "DATA in a manifest of deletes"),
        (added(equality_delete()), ManifestContent.DATA, "EQUALITY_DELETES in a manifest of data"),
        (existing(data_file(), sequence_number=None), ManifestContent.DATA, "sequence number"),
        (deleted(data_file(), sequence_number=None), ManifestContent.DATA, "sequence number"),
        (existing(data_file(), snapshot_id=None), ManifestContent.DATA, "snapshot id"),
        (added(data_file(), file_sequence_number=9), ManifestContent.DATA, "file sequence number"),
        (added(deletion_vector(content_offset=None)), DELETES, "offset"),
        (added(deletion_vector(referenced_data_file=None)), DELETES, "referenced_data_file"),
        (added(equality_delete(equality_ids=None)), DELETES, "equality_ids"),
        (added(data_file(record_count=-1)), ManifestContent.DATA, "negative"),
        (added(data_file(file_path="")), ManifestContent.DATA, "path"),
    ],
)
def test_entry_that_does_not_belong_is_not_written(entry, content, problem):
    with pytest.raises(InternalError, match=problem):
        encode_manifest([entry], schema=SCHEMA, spec=SPEC, content=content)


# Other format versions -------------------------------------------------------------------------


def pyiceberg_manifest(tmp_path, version):
    """One ADDED and one EXISTING entry as PyIceberg writes them."""
    path = tmp_path / f"v{version}.avro"
    file = IcebergDataFile.from_args(
        content=IcebergContent.DATA,
        file_path="s3://b/one.parquet",
        file_format=IcebergFormat.PARQUET,
        partition=Record(5),
        record_count=10,
        file_size_in_bytes=99,
        column_sizes={1: 5},
        value_counts={1: 10},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds={1: b"\x00" * 8},
        upper_bounds={1: b"\x01" * 8},
        key_metadata=None,
        split_offsets=[4],
        sort_order_id=None,
    )
    output = PyArrowFileIO().new_output(str(path))
    with write_manifest(version, SPEC, SCHEMA, output, SNAPSHOT_ID, "deflate") as writer:
        entry = IcebergEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=SNAPSHOT_ID,
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )
        writer.add_entry(entry)
    return path.read_bytes()


def listed(data, **changes):
    values = {
        "manifest_path": LOCATION,
        "manifest_length": len(data),
        "partition_spec_id": 3,
        "content": ManifestContent.DATA,
        "sequence_number": 4,
        "min_sequence_number": 4,
        "added_snapshot_id": SNAPSHOT_ID,
        "added_files_count": 1,
        "existing_files_count": 0,
        "deleted_files_count": 0,
        "added_rows_count": 10,
        "existing_rows_count": 0,
        "deleted_rows_count": 0,
    }
    return ManifestFile(**(values | changes))


def test_v2_manifest_of_pyiceberg_is_read(tmp_path):
    data = pyiceberg_manifest(tmp_path, 2)

    (entry,) = decode_manifest(data, listed(data))

    assert entry == added(
        data_file(
            file_path="s3://b/one.parquet",
            record_count=10,
            file_size_in_bytes=99,
            column_sizes={1: 5},
            value_counts={1: 10},
            null_value_counts={1: 0},
            nan_value_counts={},
            lower_bounds={1: b"\x00" * 8},
            upper_bounds={1: b"\x01" * 8},
            split_offsets=(4,),
        ),
        snapshot_id=SNAPSHOT_ID,
        sequence_number=4,
        file_sequence_number=4,
    )


def test_v2_manifest_gets_row_ids_once_the_upgraded_table_assigned_them(tmp_path):
    data = pyiceberg_manifest(tmp_path, 2)

    (entry,) = decode_manifest(data, listed(data, first_row_id=77))

    assert entry.data_file.first_row_id == 77


def test_v1_manifest_is_data_at_sequence_number_zero(tmp_path):
    data = pyiceberg_manifest(tmp_path, 1)

    (entry,) = decode_manifest(data, listed(data, sequence_number=0, min_sequence_number=0))

    assert (entry.sequence_number, entry.file_sequence_number) == (0, 0)
    assert entry.data_file.content == FileContent.DATA
    assert entry.data_file.record_count == 10


def test_existing_entry_of_a_v1_manifest_is_at_sequence_number_zero(tmp_path):
    reader = fastavro.reader(io.BytesIO(pyiceberg_manifest(tmp_path, 1)))
    records = [record | {"status": 0} for record in reader]
    out = io.BytesIO()
    fastavro.writer(out, reader.writer_schema, records, metadata=reader.metadata)
    counts = {"added_files_count": 0, "existing_files_count": 1}

    (entry,) = decode_manifest(out.getvalue(), listed(out.getvalue(), sequence_number=0, **counts))

    assert (entry.sequence_number, entry.file_sequence_number) == (0, 0)


def test_file_format_is_compared_in_upper_case():
    data, manifest = written_manifest(
        [added(deletion_vector(file_format="puffin"))], content=DELETES
    )

    (entry,) = decode_manifest(data, manifest)

    assert entry.data_file.file_format == "PUFFIN"
    assert entry.data_file.is_dv
