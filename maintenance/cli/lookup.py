"""`icefold lookup`: the rows of a key."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import click
import pyarrow as pa
from pyiceberg import types as iceberg

from maintenance.cli.context import (
    CliContext,
    parse_columns,
    pass_context,
    print_json,
    table_argument,
)
from maintenance.cli.row_output import format_option, print_rows
from resolver.number_text import plural
from tableformat import Table
from tableformat.errors import InvalidInputError
from tableformat.lookup.result import LookupSource
from tableformat.spec.types import arrow_type

SHOWN_ROWS = 100
# Python's own take 1_000, blanks around, other scripts' digits and NaN.
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MOMENTS = (iceberg.TimeType, iceberg.TimestampType, iceberg.TimestamptzType)
_PARTS_OF_MICROSECONDS = re.compile(r"[.,][0-9]{7}")  # which Python's own leave out
_HOW = {
    LookupSource.INDEX: "the index",
    LookupSource.FOLLOWED: "the index and what was committed since",
    LookupSource.SCAN: "a scan",
}


def _microseconds(text: str) -> str:
    if _PARTS_OF_MICROSECONDS.search(text):
        raise ValueError("more than microseconds")
    return text


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _whole_number(text: str) -> int:
    if _WHOLE_NUMBER.fullmatch(text) is None:
        raise ValueError("not a whole number")
    return int(text)


def _number(text: str) -> Decimal:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError("not a number")
    return Decimal(text)


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_PARSERS: dict[type[iceberg.IcebergType], Callable[[str], Any]] = {
    iceberg.BooleanType: _flag,
    iceberg.IntegerType: _whole_number,
    iceberg.LongType: _whole_number,
    iceberg.DecimalType: _number,
    iceberg.DateType: date.fromisoformat,
    iceberg.TimeType: time.fromisoformat,
    iceberg.TimestampType: datetime.fromisoformat,
    iceberg.TimestamptzType: _instant,
    iceberg.UUIDType: UUID,
    iceberg.BinaryType: bytes.fromhex,
    iceberg.FixedType: bytes.fromhex,
}


@click.command("lookup")
@table_argument
@click.argument("key", nargs=-1, metavar="[COLUMN=VALUE]...")
@click.option("--null", "nulls", multiple=True, metavar="COLUMN", help="A key column that is NULL.")
@click.option("--index", help="Look up through a secondary index.")
@click.option("--columns", help="Columns wanted, comma separated.  [all]")
@click.option("--branch", help="Read a branch; 'staging' has unresolved deletes applied.")
@click.option("--tag", help="Read a tag.")
@click.option("--snapshot-id", type=int, help="Read a snapshot.")
@format_option
@pass_context
def lookup(
    context: CliContext,
    table_name: str,
    key: tuple[str, ...],
    nulls: tuple[str, ...],
    index: str | None,
    columns: str | None,
    branch: str | None,
    tag: str | None,
    snapshot_id: int | None,
    output: str | None,
) -> None:
    """Show the rows of a key: one COLUMN=VALUE per column of the key, e.g. id=5.

    Naming a column several times asks for several keys. Binary values are hexadecimal digits.
    """
    table = context.table(table_name)
    found = table.lookup(
        parse_key(table, key, nulls),
        parse_columns(columns),
        index=index,
        branch=branch,
        tag=tag,
        snapshot_id=snapshot_id,
    )
    if output == "json":
        facts = {"source": found.source, "reason": found.reason, "snapshot_id": found.snapshot_id}
        print_json({**facts, "missing": found.missing.tolist(), "rows": found.to_pylist()})
        return
    names, batches = found.rows.column_names, iter(found.rows.to_batches())
    print_rows(context, names, batches, output, preview_rows=SHOWN_ROWS, empty=None)
    why = f" ({found.reason})" if found.reason else ""
    click.echo(f"{plural(len(found), 'row')}, found by {_HOW[found.source]}{why}", err=True)


def parse_key(table: Table, words: tuple[str, ...], nulls: tuple[str, ...]) -> dict[str, list[Any]]:
    """`COLUMN=VALUE` words as values of the columns' types.

    Raises:
        InvalidInputError: Not such a word, an unknown column, or a value of another type.
    """
    values: dict[str, list[Any]] = {name: [None] for name in nulls}
    for word in words:
        name, separator, text = word.partition("=")
        if not separator:
            raise InvalidInputError("not COLUMN=VALUE", argument=repr(word))
        values.setdefault(name, []).append(_value(table, name, text))
    if not values:
        raise InvalidInputError("no key was given", action="write COLUMN=VALUE, e.g. id=5")
    return values


def _value(table: Table, name: str, text: str) -> Any:
    try:
        kind = table.schema().find_field(name).field_type
    except ValueError as error:
        raise InvalidInputError(
            f"there is no column {name!r}", columns=", ".join(table.schema().column_names)
        ) from error
    try:
        if isinstance(kind, iceberg.TimestampNanoType | iceberg.TimestamptzNanoType):
            return pa.scalar(text).cast(arrow_type(kind))
        if isinstance(kind, _MOMENTS):
            text = _microseconds(text)
        return _PARSERS.get(type(kind), str)(text)
    except (ValueError, KeyError, InvalidOperation, pa.ArrowException) as error:
        raise InvalidInputError(
            "a key value does not fit its column", column=name, value=repr(text), type=kind
        ) from error
