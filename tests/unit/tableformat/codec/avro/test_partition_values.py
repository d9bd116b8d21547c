import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from tableformat.codec.avro.partition_values import (
    partition_normalizer,
    partition_type,
    schema_for_spec,
)
from tableformat.errors import InvalidInputError

OLD = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", StringType()), schema_id=0)
MIDDLE = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", StringType()), schema_id=1)
CURRENT = Schema(NestedField(2, "b", StringType()), schema_id=2)


def spec(*sources):
    return PartitionSpec(
        *(PartitionField(s, 1000 + s, IdentityTransform(), f"p{s}") for s in sources), spec_id=1
    )


def test_current_schema_types_the_spec_while_it_has_the_columns():
    assert schema_for_spec(spec(2), CURRENT, [OLD, MIDDLE, CURRENT]) is CURRENT


def test_newest_schema_that_has_the_columns_types_the_spec_of_a_dropped_one():
    assert schema_for_spec(spec(1, 2), CURRENT, [OLD, CURRENT, MIDDLE]) is MIDDLE


def test_current_schema_remains_when_no_schema_has_the_columns():
    assert schema_for_spec(spec(9), CURRENT, [OLD, MIDDLE, CURRENT]) is CURRENT


def test_partition_fields_are_optional_even_from_required_columns():
    schema = Schema(NestedField(1, "t", TimestampType(), required=True))
    by_day = PartitionSpec(PartitionField(1, 1000, DayTransform(), "t_day"), spec_id=1)

    (field,) = partition_type(by_day, schema).fields

    assert not field.required
    assert (field.field_id, field.name) == (1000, "t_day")


def normalize(field_type, value):
    return partition_normalizer(StructType(NestedField(1000, "p", field_type)))((value,))[0]


def test_float_is_what_four_bytes_hold():
    assert normalize(FloatType(), 0.1) == 0.10000000149011612


def test_numpy_integers_become_integers():
    np = pytest.importorskip("numpy")

    value = normalize(IntegerType(), np.int32(5))

    assert type(value) is int


def test_error_names_field_type_and_value():
    with pytest.raises(InvalidInputError) as caught:
        normalize(IntegerType(), "x")

    assert caught.value.context == {"field": "p", "type": "int", "value": "'x'"}
