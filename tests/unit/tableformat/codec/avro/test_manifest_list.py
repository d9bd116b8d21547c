import io
import json
from dataclasses import replace

import fastavro
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile as IcebergManifest
from pyiceberg.manifest import read_manifest_list, write_manifest_list

from tableformat.codec.avro.container import AvroBlock
from tableformat.codec.avro.manifest_list import decode_manifest_list, encode_manifest_list
from tableformat.errors import CorruptDataError, InternalError, UnsupportedError
from tableformat.spec.manifest_file import (
    UNKNOWN_COUNT,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
)

SNAPSHOT_ID = 42
LOCATION = "memory://warehouse/t/metadata/snap.avro"


def manifest(name="m", **changes):
    values = {
        "manifest_path": f"memory://warehouse/t/metadata/{name}.avro",
        "manifest_length": 5000,
        "partition_spec_id": 1,
        "content": ManifestContent.DATA,
        "sequence_number": None,
        "min_sequence_number": None,
        "added_snapshot_id": SNAPSHOT_ID,
        "added_files_count": 1,
        "existing_files_count": 0,
        "deleted_files_count": 0,
        "added_rows_count": 10,
        "existing_rows_count": 0,
        "deleted_rows_count": 0,
        "partitions": (
            PartitionFieldSummary(contains_null=True, contains_nan=False, lower_bound=b"\x01"),
            PartitionFieldSummary(contains_null=False),
        ),
    }
    return ManifestFile(**(values | changes))


def encode(manifests, **changes):
    values = {
        "snapshot_id": SNAPSHOT_ID,
        "parent_snapshot_id": 41,
        "sequence_number": 7,
        "first_row_id": 1000,
    }
    return encode_manifest_list(manifests, **(values | changes))


@pytest.mark.parametrize("codec", ["gzip", "zstd", "uncompressed"])
def test_manifest_list_round_trips(codec):
    manifests = [
        manifest("a", key_metadata=b"k", deleted_rows_count=2**40),
        manifest("b", content=ManifestContent.DELETES, partitions=None),
        manifest("c", sequence_number=3, min_sequence_number=1, first_row_id=5, partitions=()),
    ]

    encoded = encode(manifests, codec=codec)

    assert decode_manifest_list(encoded.data, location=LOCATION) == list(encoded.manifests)


def test_each_block_is_decompressed_once(monkeypatch):
    data = encode([manifest(f"m{number}") for number in range(300)]).data
    calls = []
    original = AvroBlock.decompressed
    monkeypatch.setattr(
        AvroBlock, "decompressed", lambda block: calls.append(block) or original(block)
    )
    assert len(decode_manifest_list(data, location=LOCATION)) == 300
    assert [block.record_count for block in calls] == [256, 44]


def test_new_manifest_gets_the_commits_sequence_number_and_an_old_one_keeps_its_own():
    encoded = encode(
        [
            manifest("new"),
            manifest("rewrite", min_sequence_number=2),
            manifest("old", sequence_number=3, min_sequence_number=1, added_snapshot_id=9),
        ]
    )

    numbers = [(each.sequence_number, each.min_sequence_number) for each in encoded.manifests]
    assert numbers == [(7, 7), (7, 2), (3, 1)]


def test_row_ids_of_the_spec_example_are_assigned():
    # Spec, "First Row ID Assignment"; next-row-id as Java computes it.
    encoded = encode(
        [
            manifest("existing", first_row_id=925, sequence_number=1, min_sequence_number=1),
            manifest("added1", added_rows_count=100, existing_rows_count=25),
            manifest("added2", added_rows_count=0, existing_rows_count=100),
            manifest("added3", added_rows_count=125, existing_rows_count=25),
        ],
        first_row_id=1000,
    )

    assert [each.first_row_id for each in encoded.manifests] == [925, 1000, 1125, 1225]
    assert encoded.next_row_id == 1375
    assert encoded.next_row_id - 1000 == 375  # the snapshot's added-rows


def test_delete_manifests_consume_no_row_ids():
    encoded = encode([manifest("d", content=ManifestContent.DELETES, added_rows_count=50)])

    assert encoded.manifests[0].first_row_id is None
    assert encoded.next_row_id == 1000


def test_deleted_rows_consume_no_row_ids():
    encoded = encode([manifest(deleted_rows_count=50, added_rows_count=3)])

    assert encoded.next_row_id == 1003


def test_first_snapshot_after_an_upgrade_gives_every_data_manifest_row_ids():
    old = [
        manifest(
            str(i),
            sequence_number=i,
            min_sequence_number=i,
            added_snapshot_id=i,
            existing_rows_count=i,
        )
        for i in range(1, 4)
    ]

    encoded = encode(old, first_row_id=0)

    assert [each.first_row_id for each in encoded.manifests] == [0, 11, 23]
    assert encoded.next_row_id == 36


def test_encoding_again_after_a_lost_race_assigns_anew():
    manifests = [manifest()]

    first = encode(manifests, sequence_number=7, first_row_id=1000)
    second = encode(manifests, sequence_number=8, first_row_id=2000)

    assert (first.manifests[0].sequence_number, first.manifests[0].first_row_id) == (7, 1000)
    assert (second.manifests[0].sequence_number, second.manifests[0].first_row_id) == (8, 2000)


def test_header_is_what_java_writes():
    def metadata(**changes):
        return fastavro.reader(io.BytesIO(encode([manifest()], **changes).data)).metadata

    first = metadata(parent_snapshot_id=None)
    second = metadata()

    keys = ["snapshot-id", "parent-snapshot-id", "sequence-number", "first-row-id"]
    assert [first[key] for key in keys] == ["42", "null", "7", "1000"]
    assert second["parent-snapshot-id"] == "41"
    assert second["format-version"] == "3"


def test_manifest_list_as_an_independent_reader_sees_it():
    (record,) = fastavro.reader(io.BytesIO(encode([manifest()]).data))

    assert record == {
        "manifest_path": "memory://warehouse/t/metadata/m.avro",
        "manifest_length": 5000,
        "partition_spec_id": 1,
        "content": 0,
        "sequence_number": 7,
        "min_sequence_number": 7,
        "added_snapshot_id": 42,
        "added_files_count": 1,
        "existing_files_count": 0,
        "deleted_files_count": 0,
        "added_rows_count": 10,
        "existing_rows_count": 0,
        "deleted_rows_count": 0,
        "partitions": [
            {
                "contains_null": True,
                "contains_nan": False,
                "lower_bound": b"\x01",
                "upper_bound": None,
            },
            {
                "contains_null": False,
                "contains_nan": None,
                "lower_bound": None,
                "upper_bound": None,
            },
        ],
        "key_metadata": None,
        "first_row_id": 1000,
    }


def test_schema_has_the_specs_field_ids():
    reader = fastavro.reader(io.BytesIO(encode([manifest()]).data))

    fields = json.loads(reader.metadata["avro.schema"])["fields"]

    assert [each["field-id"] for each in fields] == [
        500, 501, 502, 517, 515, 516, 503, 504, 505, 506, 512, 513, 514, 507, 519, 520,
    ]  # fmt: skip
    optional = [each["field-id"] for each in fields if isinstance(each["type"], list)]
    assert optional == [507, 519, 520]


def test_pyiceberg_reads_our_list(tmp_path):
    path = tmp_path / "snap.avro"
    path.write_bytes(encode([manifest("a"), manifest("b", partitions=None)]).data)

    one, two = read_manifest_list(PyArrowFileIO().new_input(str(path)))

    assert (one.manifest_path, one.sequence_number) == (manifest("a").manifest_path, 7)
    assert one.partitions[0].contains_null is True
    assert two.partitions is None


def pyiceberg_list(tmp_path, version):
    path = tmp_path / "snap.avro"
    output = PyArrowFileIO().new_output(str(path))
    record = IcebergManifest.from_args(
        manifest_path="s3://b/m.avro",
        manifest_length=77,
        partition_spec_id=1,
        content=0,
        sequence_number=7,
        min_sequence_number=2,
        added_snapshot_id=SNAPSHOT_ID,
        added_files_count=1,
        existing_files_count=2,
        deleted_files_count=3,
        added_rows_count=4,
        existing_rows_count=5,
        deleted_rows_count=6,
        partitions=None,
        key_metadata=None,
    )
    with write_manifest_list(version, output, SNAPSHOT_ID, None, 7, "deflate") as writer:
        writer.add_manifests([record])
    return path.read_bytes()


def test_v2_list_of_pyiceberg_is_read(tmp_path):
    (read,) = decode_manifest_list(pyiceberg_list(tmp_path, 2), location=LOCATION)

    assert (read.sequence_number, read.min_sequence_number) == (7, 2)
    assert (read.added_files_count, read.deleted_rows_count) == (1, 6)
    assert read.first_row_id is None


def test_v1_list_is_data_at_sequence_number_zero(tmp_path):
    (read,) = decode_manifest_list(pyiceberg_list(tmp_path, 1), location=LOCATION)

    assert (read.sequence_number, read.min_sequence_number) == (0, 0)
    assert read.content == ManifestContent.DATA
    assert read.existing_files_count == 2


def rewritten(data, edit):
    """The list with each record changed by `edit`, written by fastavro; schema kept."""
    reader = fastavro.reader(io.BytesIO(data))
    records = list(reader)
    for record in records:
        edit(record)
    schema = reader.writer_schema
    metadata = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    out = io.BytesIO()
    fastavro.writer(out, schema, records, metadata=metadata)
    return out.getvalue()


def test_counts_that_a_v1_list_leaves_out_are_unknown(tmp_path):
    def forget(record):
        record["added_files_count"] = record["existing_rows_count"] = None

    (read,) = decode_manifest_list(
        rewritten(pyiceberg_list(tmp_path, 1), forget), location=LOCATION
    )

    assert (read.added_files_count, read.existing_rows_count) == (UNKNOWN_COUNT, UNKNOWN_COUNT)
    assert read.has_live_files


def test_negative_row_id_is_none():
    """Transactions of DuckDB 1.5 write such."""
    data = rewritten(encode([manifest()]).data, lambda record: record.update(first_row_id=-1))
    (read,) = decode_manifest_list(data, location=LOCATION)
    assert read.first_row_id is None


def test_unknown_counts_are_never_written():
    with pytest.raises(InternalError, match="row counts are unknown"):
        encode([manifest(existing_rows_count=UNKNOWN_COUNT)])


def test_manifest_of_another_snapshot_needs_its_sequence_number():
    with pytest.raises(InternalError, match="another snapshot"):
        encode([manifest(added_snapshot_id=3)])


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("content", 2, "content 2"),
        ("manifest_length", -1, "negative length"),
        ("manifest_path", "", "no path"),
        ("added_files_count", -5, "negative count"),
        ("deleted_rows_count", -1, "negative count"),
        ("sequence_number", -1, "negative sequence"),
    ],
)
def test_impossible_value_in_a_list_is_refused(field, value, problem):
    data = rewritten(encode([manifest()]).data, lambda record: record.update({field: value}))

    with pytest.raises(CorruptDataError, match=problem) as caught:
        decode_manifest_list(data, location=LOCATION)

    assert caught.value.context["location"] == LOCATION


def test_manifest_that_is_listed_twice_is_refused():
    data = rewritten(
        encode([manifest("a"), manifest("b")]).data,
        lambda record: record.update({"manifest_path": "same"}),
    )

    with pytest.raises(CorruptDataError, match="listed twice"):
        decode_manifest_list(data, location=LOCATION)


def test_later_format_version_is_refused():
    reader = fastavro.reader(io.BytesIO(encode([manifest()]).data))
    out = io.BytesIO()
    records = list(reader)
    fastavro.writer(out, reader.writer_schema, records, metadata={"format-version": "4"})

    with pytest.raises(UnsupportedError, match="format version"):
        decode_manifest_list(out.getvalue(), location=LOCATION)


def test_empty_list_round_trips():
    encoded = encode([])

    assert decode_manifest_list(encoded.data, location=LOCATION) == []
    assert list(fastavro.reader(io.BytesIO(encoded.data))) == []


def test_assignment_leaves_the_given_manifests_alone():
    given = manifest()

    encode([given])

    assert given == replace(manifest())
    assert given.sequence_number is None
