"""Column types as people write them, held against Iceberg's own types."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
)

from tableformat.errors import InvalidInputError
from tableformat.spec.column_types import DEPTH_MAX, parse_columns_ddl, parse_type
from tableformat.table_definition import define_schema


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BIGINT", LongType()),
        (" smallint ", IntegerType()),
        ("decimal(10, 2)", DecimalType(10, 2)),
        ("decimal(10)", DecimalType(10, 0)),
        ("decimal", DecimalType(10, 0)),
        ("fixed[16]", FixedType(16)),
        ("fixed(16)", FixedType(16)),
        ("varchar(20)", StringType()),
        ("timestamp", TimestampType()),
        ("timestamp_ntz", TimestampType()),
        ("timestamp_ltz", TimestamptzType()),
        ("timestamp_ns", TimestampNanoType()),
        ("array<int>", ListType(1, IntegerType(), element_required=False)),
        ("list<int!>", ListType(1, IntegerType(), element_required=True)),
        (
            "map<string, long not null>",
            MapType(1, StringType(), 2, LongType(), value_required=True),
        ),
        (
            "struct<a: int, `b c` string NOT NULL>",
            StructType(
                NestedField(1, "a", IntegerType(), required=False),
                NestedField(2, "b c", StringType(), required=True),
            ),
        ),
        (
            "list<struct<k:map<int,list<long>>>>",
            ListType(
                1,
                StructType(
                    NestedField(
                        2,
                        "k",
                        MapType(
                            3,
                            IntegerType(),
                            4,
                            ListType(5, LongType(), element_required=False),
                            value_required=False,
                        ),
                        required=False,
                    )
                ),
                element_required=False,
            ),
        ),
    ],
)
def test_type_is_read_as_spark_and_iceberg_write_it(text, expected) -> None:
    assert parse_type(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "ends too early"),
        ("lost<int>", "'lost' is no type"),
        ("list<int", "ends too early"),
        ("list<int>>", "'>' was not expected"),
        ("list int", "'int' was not expected"),
        ("map<int>", "'>' was not expected"),
        ("struct<>", "ends too early"),
        ("struct<a int, A int>", "two fields"),
        ("decimal(39,1)", "1 to 38"),
        ("decimal(0)", "1 to 38"),
        ("decimal(3,4)", "1 to 38"),
        ("decimal(x)", "no number"),
        ("fixed", "ends too early"),
        ("int int", "not expected"),
        ("int;drop", "';' was not expected"),
        ("list<" * (DEPTH_MAX + 1) + "int" + ">" * (DEPTH_MAX + 1), "levels"),
        ("int!", "no '!'"),
    ],
)
def test_wrong_type_is_one_line_that_says_what_is_wrong(text, why) -> None:
    with pytest.raises(InvalidInputError, match=why) as caught:
        parse_type(text)
    assert "\n" not in str(caught.value)


def test_columns_make_a_schema_that_a_table_takes() -> None:
    words = ("id:long!", "s:struct<a:int,b:list<string>>", "m:map<string,int>", "t:time NOT NULL")
    schema = define_schema(parse_columns_ddl(words), ["id"])
    assert isinstance(schema, Schema)
    assert sorted(field_id for field_id in schema.field_ids) == list(range(1, 10))
    assert [(f.name, f.required) for f in schema.fields] == [
        ("id", True), ("s", False), ("m", False), ("t", True),
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["id", ":int", "id:", "id:int:int"])
def test_word_that_is_no_column_is_refused(word) -> None:
    with pytest.raises(InvalidInputError):
        parse_columns_ddl((word,))
