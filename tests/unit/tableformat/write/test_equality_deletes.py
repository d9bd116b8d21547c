"""Writing equality deletes: what may be a key, what is stored, where it reaches."""

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, VoidTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from tableformat.errors import InvalidInputError
from tableformat.spec.data_file import FileContent
from tests.support.data_files import DataFiles

PLACE = StructType(
    NestedField(11, "city", StringType(), required=False),
    NestedField(12, "zip", LongType(), required=True),
    NestedField(13, "height", DoubleType(), required=False),
)
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "weight", FloatType(), required=False),
    NestedField(4, "place", PLACE, required=False),
    NestedField(5, "tags", ListType(6, StringType(), False), required=False),
    NestedField(7, "props", MapType(8, StringType(), 9, LongType(), False), required=False),
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=3)


def test_keys_are_stored_with_their_ids_and_nothing_else() -> None:
    files = DataFiles(SCHEMA)
    keys = pa.table({"region": ["x", None], "id": [7, 8], "weight": pa.nulls(2)})
    (file,) = files.write_deletes(keys, [2, 1])  # a column that is no key may come along
    assert file.content == FileContent.EQUALITY_DELETES
    assert file.equality_ids == (2, 1)
    assert (file.spec_id, file.partition, file.record_count) == (0, (), 2)
    assert (file.sort_order_id, file.first_row_id, file.referenced_data_file) == (0, None, None)
    assert (file.null_value_counts, file.value_counts) == ({1: 0, 2: 1}, {1: 2, 2: 2})
    parquet = files.parquet(file)
    assert "required int64 field_id=1 id" in str(parquet.schema)
    assert parquet.schema_arrow.names == ["id", "region"]
    assert files.read(file, schema=SCHEMA.select("id", "region")).to_pylist() == [
        {"id": 7, "region": "x"},
        {"id": 8, "region": None},
    ]


def test_partitioned_deletes_are_split_by_the_keys_own_values() -> None:
    files = DataFiles(SCHEMA, spec=BY_REGION)
    keys = pa.table({"id": [1, 2, 3, 4], "region": ["a", "b", "a", None]})
    written = files.write_deletes(keys, [1])
    assert {file.partition: file.record_count for file in written} == {
        ("a",): 2,
        ("b",): 1,
        (None,): 1,
    }
    for file in written:
        assert file.spec_id == 3
        assert files.parquet(file).schema_arrow.names == ["id"]
        assert file.equality_ids == (1,)


def test_partition_source_that_is_missing_is_refused() -> None:
    files = DataFiles(SCHEMA, spec=BY_REGION)
    required = Schema(
        SCHEMA.find_field("id"), NestedField(2, "region", StringType(), required=True)
    )
    with pytest.raises(InvalidInputError, match="column=region"):
        DataFiles(required, spec=BY_REGION).write_deletes(pa.table({"id": [1]}), [1])
    # An optional one would silently mean the null partition, and the delete would reach nothing.
    with pytest.raises(InvalidInputError, match="column=region"):
        files.write_deletes(pa.table({"id": [1]}), [1])
    assert next(files.numbers) == 0


def test_key_column_that_is_missing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="column=region"):
        DataFiles(SCHEMA).write_deletes(pa.table({"id": [1]}), [1, 2])


def test_void_partition_fields_need_no_source() -> None:
    spec = PartitionSpec(
        PartitionField(2, 1000, VoidTransform(), "gone"),
        PartitionField(1, 1001, BucketTransform(2), "id_bucket"),
        spec_id=5,
    )
    files = DataFiles(SCHEMA, spec=spec)
    written = files.write_deletes(pa.table({"id": range(10)}), [1])
    assert {file.partition for file in written} == {(None, 0), (None, 1)}


def test_nested_key_is_stored_inside_its_struct() -> None:
    by_zip = PartitionSpec(PartitionField(12, 1000, IdentityTransform(), "zip"), spec_id=2)
    places = [{"city": "x", "zip": 1}, {"city": None, "zip": 2}]
    for spec in (PartitionSpec(), by_zip):
        files = DataFiles(SCHEMA, spec=spec)
        written = files.write_deletes(pa.table({"place": places}), [11])
        rows = files.read(*written, schema=SCHEMA.select("place.city")).to_pylist()
        assert rows == [{"place": {"city": "x"}}, {"place": {"city": None}}]
        assert all(files.parquet(file).metadata.num_columns == 1 for file in written)
    files = DataFiles(SCHEMA)
    (file,) = files.write_deletes(
        pa.table({"place": pa.array([None], pa.struct([("city", pa.string())]))}), [11]
    )
    assert file.null_value_counts == {11: 1}


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3], "weight"),
        ([13], r"place\.height"),
        ([4], "place"),
        ([5], "tags"),
        ([6], "field_id=6"),
        ([8], "field_id=8"),
        ([99], "field_id=99"),
        ([], "at least one"),
        ([1, 1], "distinct"),
    ],
)
def test_what_cannot_be_a_key_is_refused(ids: list[int], message: str) -> None:
    files = DataFiles(SCHEMA)
    with pytest.raises(InvalidInputError, match=message):
        files.write_deletes(pa.table({"id": [1]}), ids)
    assert next(files.numbers) == 0


@pytest.mark.parametrize(
    "keys",
    [
        {"id": [1], "color": ["x"]},
        {"id": ["a"]},
        {"id": [None]},
        {"id": pa.array([1 << 63], pa.uint64())},
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any]) -> None:
    files = DataFiles(SCHEMA)
    with pytest.raises(InvalidInputError):
        files.write_deletes(pa.table(keys), [1, 11] if "place" in keys else [1])
    assert next(files.numbers) == 0


def test_key_may_be_another_one_than_the_tables_identifier() -> None:
    schema = Schema(*SCHEMA.fields, identifier_field_ids=[1])
    (file,) = DataFiles(schema).write_deletes(pa.table({"region": ["x"]}), [2])
    assert file.equality_ids == (2,)


def test_no_keys_make_no_file() -> None:
    files = DataFiles(SCHEMA)
    assert files.write_deletes(pa.table({"id": pa.array([], pa.int64())}), [1]) == []


def test_delete_properties_override_those_of_data_files() -> None:
    properties = {
        "write.parquet.compression-codec": "gzip",
        "write.delete.parquet.compression-codec": "snappy",
        "write.target-file-size-bytes": "1",
        "write.delete.target-file-size-bytes": "1000000",
    }
    files = DataFiles(SCHEMA, properties=properties)
    (file,) = files.write_deletes(pa.table({"id": range(5_000)}), [1])
    assert files.parquet(file).metadata.row_group(0).column(0).compression == "SNAPPY"
