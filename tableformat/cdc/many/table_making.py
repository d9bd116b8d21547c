"""Tables that make themselves: what a topic's first events declare becomes a table.

`declared_row` reads what an event says of its row (Kafka Connect's schema), `new_table` makes the
definition of a table of it and of its options. Both are pure; `make_table` creates it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tableformat.catalog.base import TableState
from tableformat.cdc import wrong_format
from tableformat.cdc.connect_schema import declared_schema, row_fields
from tableformat.cdc.debezium_options import FLATTENED, DebeziumOptions
from tableformat.cdc.debezium_rows import RESOLVED_MESSAGE
from tableformat.cdc.events import KEY, VALUE, Decoder, EventBatch
from tableformat.cdc.formats import FormatChoice
from tableformat.cdc.mangled_names import check_names
from tableformat.cdc.many.table_options import MakingOptions, TableOptions
from tableformat.cdc.schema_changes import connect_type
from tableformat.cdc.schema_evolution import log_replaced_nulls
from tableformat.commit.creation import KEPT_HISTORY, create_table
from tableformat.environment import Environment
from tableformat.errors import AlreadyExistsError, InvalidInputError
from tableformat.spec.column_types import parse_type
from tableformat.spec.metadata_json import COMPRESSION_CODEC
from tableformat.spec.types import check_new_column_names
from tableformat.table_definition import define_partition_spec, define_schema, parse_table_name

TRUNCATE_OP = "t"
COMMENT = "comment"  # the table property that engines show
EVENTS_LOOKED_AT_MAX = 1_000  # heartbeats and tombstones declare nothing
# Each commit writes megabytes of which kilobytes are new: see `spec.gzip_parts`.
STREAMED = {COMPRESSION_CODEC: "gzip"}
METADATA_PREFIX = "__"  # columns that ExtractNewRecordState adds beside the row
_SQL_TYPES: Mapping[type[iceberg.IcebergType], str] = {
    iceberg.BooleanType: "BOOLEAN",
    iceberg.IntegerType: "INT",
    iceberg.LongType: "BIGINT",
    iceberg.FloatType: "FLOAT",
    iceberg.DoubleType: "DOUBLE",
    iceberg.DateType: "DATE",
    iceberg.TimestampType: "TIMESTAMP_NTZ",
    iceberg.TimestamptzType: "TIMESTAMP",
    iceberg.StringType: "STRING",
    iceberg.BinaryType: "BINARY",
}
_SQL_TRANSFORMS = {"year": "years", "month": "months", "day": "days", "hour": "hours"}


class NoRowYetError(InvalidInputError):
    """A table that cannot be made yet, and lacks nothing: no event has had a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRow:
    """What events say of the rows of their table.

    Attributes:
        fields: The row's fields by name, as Kafka Connect's schemas declare them.
        key: Names of the key's columns; empty: the events do not say.
        comment: Of the table, if they say one.
    """

    fields: Mapping[str, Mapping[str, Any]]
    key: tuple[str, ...] = ()
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """A table that does not exist.

    `fields`: what its events say of its columns.
    """

    name: str
    schema: Schema
    key: tuple[str, ...]
    partition_by: tuple[str, ...]
    spec: PartitionSpec
    properties: Mapping[str, str]
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def ddl(self) -> str:
        """The statement that Spark would make it with; types that Spark lacks by Iceberg's name."""
        columns = [f"  {_column(field)}" for field in self.schema.fields]
        text = f"CREATE TABLE {self.name} (\n" + ",\n".join(columns) + "\n) USING iceberg"
        if self.spec.fields:
            parts = ", ".join(
                _transform(str(field.transform), self.schema.find_column_name(field.source_id))
                for field in self.spec.fields
            )
            text += f"\nPARTITIONED BY ({parts})"
        pairs = {"format-version": "3"} | KEPT_HISTORY | dict(self.properties)
        shown = ", ".join(f"{_quoted(key)} = {_quoted(text)}" for key, text in pairs.items())
        key = ", ".join(map(_name, self.key))
        text += f"\nTBLPROPERTIES ({shown});"
        return f"{text}\nALTER TABLE {self.name} SET IDENTIFIER FIELDS {key};"


def declared_row(events: EventBatch, choice: FormatChoice) -> DeclaredRow | None:
    """What the first event with a schema says of its row; None: none of them carries one.

    Truncates have no message key: the first event that has one counts before those without.
    """
    path = () if getattr(choice.values, "layout", None) == FLATTENED else ("after",)
    has_keys = events.optional(KEY) is not None
    without_key: DeclaredRow | None = None
    for place in range(min(len(events), EVENTS_LOOKED_AT_MAX)):
        schema = _schema_of(events, VALUE, place)
        fields = row_fields(schema, *path)
        fields = {name: each for name, each in fields.items() if not _is_metadata(name, path)}
        if schema is None or not fields:
            continue
        key = _key_columns(events, place) if has_keys else ()
        row = schema if not path else row_schema(schema, *path)
        doc = row.get("doc")
        comment = doc if isinstance(doc, str) else None
        declared = DeclaredRow(fields=fields, key=key, comment=comment)
        if key or not has_keys:
            return declared
        without_key = without_key or declared
    return without_key


def row_schema(schema: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The schema of a row inside a payload's; empty without it."""
    for name in path:
        found = (each for each in schema.get("fields", ()) if each.get("field") == name)
        schema = next(found, {})
    return schema


def new_table(name: str, declared: DeclaredRow | None, options: MakingOptions) -> NewTable:
    """The definition of a table.

    Args:
        name: `namespace.table`.
        declared: What its events say; None: nothing.
        options: What its user says.

    Raises:
        InvalidInputError: The events do not say its columns or key, a column has a type that no
            column can be made of, or an option does not fit.
    """
    if declared is None:
        raise InvalidInputError(
            "the table does not exist, and its events carry no schema of a row to make it from",
            action="create it, or send the schema with the events "
            "(value.converter.schemas.enable=true), or leave out the topic (heartbeats, DDL)",
            table=name,
        )
    _check_columns(name, declared, options)
    check_new_column_names(declared.fields)
    check_names(declared.fields)
    key = options.key or declared.key
    if not key:
        raise InvalidInputError(
            "the table does not exist, and its events name no key: they have no message key",
            action="name it with the option 'key'",
            table=name,
        )
    _check_key(name, declared, options)
    keeps = options.nullability == "source"
    fields = [
        iceberg.NestedField(
            place,
            column,
            _column_type(column, each, options),
            required=keeps and each.get("optional") is not True,
            doc=each.get("doc") if isinstance(each.get("doc"), str) else None,
        )
        for place, (column, each) in enumerate(declared.fields.items(), 1)
    ]
    schema = define_schema(Schema(*fields), key)
    properties = STREAMED | dict(options.properties)
    if declared.comment:
        properties.setdefault(COMMENT, declared.comment)
    spec = define_partition_spec(schema, options.partition_by)
    return NewTable(
        name=name,
        schema=schema,
        key=tuple(key),
        partition_by=options.partition_by,
        spec=spec,
        properties=properties,
        fields=declared.fields,
    )


def plan_table(
    name: str, events: pa.Table, options: TableOptions, decoder: Decoder | None = None
) -> NewTable:
    """`new_table` of a topic's first events.

    Raises:
        NoRowYetError: There are no others than truncates that do not stop the stream, tombstones,
            which tell no key, and CockroachDB's `resolved` messages.
        InvalidInputError: See `new_table`.
    """
    # However many have come before the first row: a changefeed sends them to quiet tables, too.
    resolved = pc.match_substring_regex(events.column(VALUE), RESOLVED_MESSAGE)
    events = events.filter(pc.invert(pc.fill_null(resolved, False)))
    first = events.slice(0, EVENTS_LOOKED_AT_MAX).combine_chunks()
    (batch,) = EventBatch.split(first, EVENTS_LOOKED_AT_MAX)
    if decoder is not None:
        batch = decoder.decode(batch)
    declared = declared_row(batch, options.choice)
    if declared is None:
        _check_readable(name, batch)
        _check_format(batch, options)
    if len(events) < EVENTS_LOOKED_AT_MAX:
        _check_has_row(name, batch, declared, options)
    return new_table(name, declared, options.making)


def make_table(environment: Environment, table: NewTable) -> TableState:
    """Create a table and its namespace; one that is there by now is taken as it is.

    Effects: one metadata commit; a warning in the log where the events cannot tell nulls.
    """
    try:
        made = create_table(
            environment,
            table.name,
            table.schema,
            primary_key=table.key,
            partition_by=table.partition_by,
            properties=table.properties,
        )
    except AlreadyExistsError:
        return environment.catalog.load_table(parse_table_name(table.name))
    log_replaced_nulls(table.name, table.fields)
    return made


def _check_columns(name: str, declared: DeclaredRow, options: MakingOptions) -> None:
    unknown = [column for column in options.columns if column not in declared.fields]
    if unknown:
        raise InvalidInputError(
            f"the option 'columns' names a column that the events do not have: '{unknown[0]}'",
            table=name,
            columns=list(declared.fields),
        )
    for column, each in declared.fields.items():
        if column not in options.columns and connect_type(each) is None:
            is_map = each.get("type") == "map"
            raise InvalidInputError(
                f"column '{column}' has a type that no column can be made of",
                action="have it sent as text (hstore.handling.mode=json), or not at all "
                "(column.exclude.list)"
                if is_map
                else "name its type with the option 'columns'",
                table=name,
                type=each.get("name") or each.get("type"),
            )


def _check_key(name: str, declared: DeclaredRow, options: MakingOptions) -> None:
    """Refuse keys of fields that are in no row, as Debezium's topic routing adds one."""
    more = [column for column in declared.key if column not in declared.fields]
    if more and not options.key:
        raise InvalidInputError(
            "the table does not exist, and its message keys have a field that rows do not have",
            action="name the key with the option 'key': columns that tell apart the rows of all "
            "source tables that go there",
            table=name,
            field=more[0],
        )


def _column_type(
    column: str, declared: Mapping[str, Any], options: MakingOptions
) -> iceberg.IcebergType:
    if column in options.columns:
        return parse_type(options.columns[column])
    kind = connect_type(declared)
    assert kind is not None
    return kind


def _check_has_row(
    name: str, events: EventBatch, declared: DeclaredRow | None, options: TableOptions
) -> None:
    texts = [text for text in map(_text, events.required(VALUE)) if text]
    is_unkeyed = declared is not None and not (declared.key or options.making.key)
    if texts and not (is_unkeyed and all(_op(text) == TRUNCATE_OP for text in texts)):
        return
    _check_readable(name, events)
    if texts and options.choice.stops_at_truncates:
        raise InvalidInputError(
            "a truncate event: all rows of the table were removed",
            action="set on-truncate=apply or ignore",
            table=name,
        )
    raise NoRowYetError(
        "the table does not exist, and no event has had a row so far: there are truncates, "
        "tombstones and resolved messages only",
        action="nothing to do: its first row makes it",
        table=name,
    )


def _check_readable(name: str, events: EventBatch) -> None:
    """Refuse messages that would say what the table is, were they read."""
    bad = {} if events.decoded is None else events.decoded.bad
    if bad:
        raise InvalidInputError(
            f"the table does not exist, and its messages cannot be read: {bad[min(bad)]}",
            action="mend what the registry has of them, or create the table: then they are bad "
            "records",
            table=name,
        )


def _check_format(events: EventBatch, options: TableOptions) -> None:
    """Say of events of another format what they are."""
    given = options.choice.values
    if isinstance(given, DebeziumOptions):
        values = (_text(value) for value in events.required(VALUE))
        flattened = given.layout == FLATTENED
        read_as = wrong_format.FLATTENED if flattened else wrong_format.DEBEZIUM
        wrong_format.check_format(values, read_as=read_as, key=options.making.key)


def _op(text: str) -> object:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    value = value.get("payload", value) if isinstance(value, dict) else None
    return value.get("op") if isinstance(value, dict) else None


def _text(scalar: pa.Scalar) -> str:
    value = scalar.as_py()
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _is_metadata(name: str, path: tuple[str, ...]) -> bool:
    return not path and name.startswith(METADATA_PREFIX)


def _schema_of(events: EventBatch, name: str, row: int) -> Mapping[str, Any] | None:
    schemas = events.schemas(name)
    beside = None if schemas is None else schemas.of(row)
    return declared_schema(_text(events.required(name)[row])) if beside is None else beside


def _key_columns(events: EventBatch, row: int) -> tuple[str, ...]:
    """The columns of a message key: of its schema, else the names of a plain object."""
    fields = row_fields(_schema_of(events, KEY, row))
    if fields:
        return tuple(fields)
    text = _text(events.required(KEY)[row])
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    is_plain = isinstance(value, dict) and "payload" not in value
    return tuple(value) if is_plain else ()


def _column(field: iceberg.NestedField) -> str:
    required = " NOT NULL" if field.required else ""
    comment = f" COMMENT {_quoted(field.doc)}" if field.doc else ""
    return f"{_name(field.name)} {_sql_type(field.field_type)}{required}{comment}"


def _sql_type(kind: iceberg.IcebergType) -> str:
    match kind:
        case iceberg.ListType():
            return f"ARRAY<{_sql_type(kind.element_type)}>"
        case iceberg.StructType():
            parts = (f"{_name(each.name)}: {_sql_type(each.field_type)}" for each in kind.fields)
            return f"STRUCT<{', '.join(parts)}>"
        case iceberg.DecimalType():
            return f"DECIMAL({kind.precision}, {kind.scale})"
    return _SQL_TYPES.get(type(kind), str(kind).upper())


def _transform(text: str, column: str | None) -> str:
    name, _, width = text.rstrip("]").partition("[")
    shown = _name(column or "")
    if name == "identity":
        return shown
    return f"{_SQL_TRANSFORMS.get(name, name)}({f'{width}, ' if width else ''}{shown})"


def _name(text: str) -> str:
    return text if text.isidentifier() else "`" + text.replace("`", "``") + "`"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
