"""What events declare becomes a table."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tableformat.cdc.many.engine_choice import LOCAL_LAG_MAX, Engine, choose_engine
from tableformat.cdc.many.table_making import make_table, plan_table
from tableformat.cdc.many.table_options import TableOptions
from tableformat.errors import InvalidInputError
from tableformat.spec.metadata_json import COMPRESSION_CODEC
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import ROW, engine_of, message

WIDE = [
    {"field": "id", "type": "int32", "optional": False, "doc": "the key"},
    {"field": "note", "type": "string", "optional": True, "doc": "it's"},
    {"field": "price", "type": "bytes", "optional": True,
     "name": "org.apache.kafka.connect.data.Decimal",
     "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
    {"field": "at", "type": "int64", "optional": False,
     "name": "io.debezium.time.MicroTimestamp"},
    {"field": "tags", "type": "array", "items": {"type": "string"}, "optional": True},
]  # fmt: skip
EXACT = {"field": "exact", "type": "struct", "optional": True,
         "name": "io.debezium.data.VariableScaleDecimal", "fields": []}  # fmt: skip
LINEAGE = [WIDE[0], {"field": "_row_id", "type": "int64", "optional": True}]
TAGS = {"field": "tags", "type": "map", "optional": True}  # hstore.handling.mode=map
MANGLED = [WIDE[0], {"field": "\uffc3\uffa9", "type": "int64", "optional": True}]
ROW_OF_WIDE = {"id": 1, "note": None, "price": None, "at": 0, "tags": None}


def events(*messages):
    keys = [None if key is None else key.encode() for key, _ in messages]
    values = [None if value is None else value.encode() for _, value in messages]
    return pa.table({"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())})


def plan(*messages, **options):
    given = {name.replace("_", "-"): text for name, text in options.items()}
    return plan_table("shop.orders", events(*messages), TableOptions.of(given))


def test_table_has_columns_types_key_nullability_and_comments_of_the_first_event_with_a_schema():
    made = plan((None, None), message("c", ROW_OF_WIDE, fields=WIDE),
                partition_by="day(at), bucket(4, id)")  # fmt: skip
    assert made.ddl() == (
        "CREATE TABLE shop.orders (\n"
        "  id INT NOT NULL COMMENT 'the key',\n"
        "  note STRING COMMENT 'it\\'s',\n"
        "  price DECIMAL(10, 2),\n"
        "  at TIMESTAMP_NTZ NOT NULL,\n"
        "  tags ARRAY<STRING>\n"
        ") USING iceberg\n"
        "PARTITIONED BY (days(at), bucket(4, id))\n"
        "TBLPROPERTIES ('format-version' = '3', 'icefold.expire.max-snapshots-to-keep' = '1000', "
        "'write.metadata.delete-after-commit.enabled' = 'true', "
        "'write.metadata.compression-codec' = 'gzip');\n"
        "ALTER TABLE shop.orders SET IDENTIFIER FIELDS id;"
    )


@pytest.mark.parametrize("source", ["BYTEA", "VARBINARY", "LONGBLOB", "bytea"])
def test_binary_that_comes_as_text_is_one_where_the_events_tell_the_sources_type(source):
    """`binary.handling.mode=hex` with `column.propagate.source.type`."""

    def kind_of(**more):
        text = {"field": "raw", "type": "string", "optional": True, **more}
        return str(plan(message("c", {"id": 1, "raw": None}, fields=[WIDE[0], text]))
                   .schema.find_type("raw"))  # fmt: skip

    assert kind_of(parameters={"__debezium.source.column.type": source}) == "binary"
    assert kind_of(parameters={"__debezium.source.column.type": "TEXT"}) == "string"
    assert kind_of() == "string"


def test_truncates_before_the_first_row_do_not_hide_the_key():
    truncate = json.loads(message("c", {"id": 1})[1])
    truncate["payload"] |= {"op": "t", "after": None}
    made = plan((None, json.dumps(truncate)), message("c", {"id": 1}))
    assert made.key == ("id",)


def test_options_give_key_types_and_properties():
    made = plan(
        (None, message("c", ROW_OF_WIDE, fields=[*WIDE, EXACT])[1]),
        key="id,at",
        columns=json.dumps({"exact": "decimal(20,4)"}),
        properties=json.dumps({"a": "x,y", COMPRESSION_CODEC: "none"}),
        nullability="nullable",
    )
    kinds = {f.name: (str(f.field_type), f.required) for f in made.schema.fields}
    assert kinds["exact"] == ("decimal(20, 4)", False)
    assert kinds["at"] == ("timestamp", True)
    assert made.key == ("id", "at")
    assert made.properties == {"a": "x,y", COMPRESSION_CODEC: "none"}


def test_type_of_a_list_may_be_given_by_name():
    open_scale = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": []}
    sums = {"field": "sums", "type": "array", "optional": True, "items": open_scale}
    event = message("c", {"id": 1, "note": "", "sums": None}, fields=[*ROW, sums])
    made = plan(event, columns=json.dumps({"sums": "list<decimal(38,9)>"}))
    assert str(made.schema.find_type("sums")) == "list<decimal(38, 9)>"


@pytest.mark.parametrize(
    ("messages", "options", "line"),
    [
        ([message("c", {"id": 1}, bare=True)], {}, "its events carry no schema"),
        ([(None, message("c", {"id": 1, "note": ""})[1])], {}, "name no key"),
        ([message("c", ROW_OF_WIDE, fields=[*WIDE, EXACT])], {}, "column 'exact' has a type that"),
        ([message("c", {"id": 1}, fields=[*ROW, TAGS])], {}, r"'tags' has .*exclude\.list"),
        ([message("c", {"id": 1}, fields=ROW)], {"columns": '{"x": "long"}'}, "do not have: 'x'"),
        ([message("c", {"id": 1}, fields=ROW)], {"columns": '{"note": "lon"}'}, "not an Iceberg"),
        ([message("c", {"id": 1}, fields=LINEAGE)], {}, "row lineage"),
        ([message("c", {"id": 1}, fields=MANGLED)], {}, "tells column 'é' by another name"),
        ([message("c", {"id": 1}, fields=ROW)], {"partition-by": "day(x)"}, "unknown column"),
    ],
)
def test_what_no_table_can_be_made_of_is_told(messages, options, line):
    with pytest.raises(InvalidInputError, match=line):
        plan(*messages, **options)


def test_columns_whose_nulls_may_come_as_defaults_are_named_in_the_log(caplog):
    """No event says whether Connect's converter was told `replace.null.with.default=false`."""
    fields = [
        *ROW,
        {"field": "n", "type": "int32", "optional": True, "default": 5},
        {"field": "s", "type": "string", "optional": True, "default": ""},
        {"field": "x", "type": "int32", "optional": False, "default": 5},
        {"field": "y", "type": "int32", "optional": True, "default": None},
    ]
    row = {"id": 1, "note": None, "n": 5, "s": "", "x": 5, "y": None}
    made = plan(message("c", row, fields=fields))
    make_table(memory_catalog().environment, made)
    (warning,) = [each.getMessage() for each in caplog.records]
    assert "shop.orders: 'n', 's' may be null, with a default" in warning
    assert "replace.null.with.default=false" in warning


def test_geometries_are_structs_and_other_named_structs_make_no_column():
    point = {"field": "at", "type": "struct", "optional": True,
             "name": "io.debezium.data.geometry.Point",
             "fields": [{"field": "x", "type": "double"}, {"field": "y", "type": "double"},
                        {"field": "wkb", "type": "bytes", "optional": True},
                        {"field": "srid", "type": "int32", "optional": True}]}  # fmt: skip
    made = plan(message("c", {"id": 1, "note": None, "at": None}, fields=[*ROW, point]))
    assert str(made.schema.find_field("at").field_type) == (
        "struct<4: x: optional double, 5: y: optional double, 6: wkb: optional binary, "
        "7: srid: optional int>"
    )


@pytest.mark.parametrize(
    ("given", "engine", "why"),
    [
        ({}, Engine.LOCAL, "messages wait, no more than"),
        ({"has_session": True}, Engine.SPARK, "a Spark session is active"),
        ({"lag": LOCAL_LAG_MAX + 1}, Engine.SPARK, "more than"),
        ({"lag": LOCAL_LAG_MAX + 1, "no_spark": "no jar"}, Engine.LOCAL, "no Spark for them"),
        ({"has_session": True, "ends_with_transactions": True}, Engine.LOCAL, "transactions"),
    ],
)
def test_engine_is_chosen_for_a_reason(given, engine, why):
    usual = {"lag": 5, "has_session": False, "ends_with_transactions": False, "no_spark": None}
    chosen, reason = choose_engine(**(usual | given))
    assert chosen is engine
    assert why in reason


def test_a_key_that_the_user_names_may_be_smaller_than_the_message_key() -> None:
    assert TableOptions.of({"key": "id"}).choice.values.on_wider_key == "ignore"
    said = TableOptions.of({"key": "id", "on-wider-key": "fail"})
    assert said.choice.values.on_wider_key == "fail"
    assert TableOptions.of({}).choice.values.on_wider_key == "fail"
    assert TableOptions.of({"key": "id", "format": "changelog-json"}).making.key == ("id",)


def with_default(*defaults):
    """A row before the column x, and one for each default that x is declared with; None: none."""
    key = {"field": "id", "type": "int64", "optional": False}
    found = [message("c", {"id": 0}, fields=[key])]
    for number, default in enumerate(defaults, 1):
        more = {} if default is None else {"default": default}
        column = {"field": "x", "type": "int32", "optional": True, **more}
        found.append(message("c", {"id": number, "x": number}, fields=[key, column]))
    return found


def streamed(parts, **pace):
    """The rows of a table that a stream makes of messages by partition, or why it stands aside."""
    catalog, cluster = memory_catalog(), FakeCluster()
    for number, messages in enumerate(parts):
        cluster.send("pg.public.t", *messages, partition=number)
    engine = engine_of(catalog, cluster, defaults={"schema-evolution": "add-columns"}, **pace)
    engine.run(follow=False)
    if engine.aside:
        return engine.aside["shop.t"]
    rows = catalog.load_table("shop.t").scan(branch="staging").to_arrow().to_pylist()
    return {row["id"]: row["x"] for row in rows}


@pytest.mark.parametrize(
    ("defaults", "before"), [((5, 6), 5), ((None, 6), None), ((5, None), 5), ((6, 5), 6)]
)
def test_default_that_changes_in_the_first_batch_counts_as_in_many_batches(defaults, before):
    """`ADD COLUMN ... DEFAULT` fills older rows; a default that is set later changes none."""
    messages = with_default(*defaults)
    expected = {0: before, 1: 1, 2: 2}
    assert streamed([messages]) == expected
    assert streamed([messages], chunk=1, batch_events=1) == expected


def test_defaults_of_several_partitions_are_in_no_order():
    first, *rest = with_default(5, 6)
    assert "disagree about the default of a new column" in streamed([[first, rest[0]], rest[1:]])
