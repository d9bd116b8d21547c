"""Texts that people write: SQL, filters, options, names, durations, keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

import click
import pyarrow as pa

from lock.errors import InvalidLockError
from lock.lock_names import check_lock_name, lock_name, storage_key
from maintenance.cli.lookup import parse_key
from maintenance.cli.option_types import size
from maintenance.settings import find_setting, parse_duration_ms
from tableformat import Table
from tableformat.cdc.formats import BUILT_IN, choose_format
from tableformat.cdc.many.stream_file import parse_stream_bytes
from tableformat.cdc.sink import SinkOptions
from tableformat.errors import InvalidInputError, NotFoundError, UnsupportedError
from tableformat.rowlevel.planning import plan_statement
from tableformat.spec.column_types import parse_column
from tableformat.sql.statement import parse_statement
from tableformat.table_definition import define_partition_spec, define_schema, parse_table_name
from tests.fuzz.mutate_bytes import BYTE_MUTATORS
from tests.fuzz.mutate_text import TEXT_MUTATORS
from tests.fuzz.target import Accepted, Target
from tests.fuzz.targets.events import ROWS
from tests.support.memory_tables import memory_catalog

_REFUSED = (InvalidInputError, NotFoundError, UnsupportedError)
_MUTATORS = (*TEXT_MUTATORS, *TEXT_MUTATORS, *BYTE_MUTATORS)
_SCHEMA = define_schema(ROWS, ["id"])


def _text(data: bytes) -> str:
    """As Python has it from the command line: bytes that are not UTF-8 are lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


@lru_cache
def _table() -> Table:
    catalog = memory_catalog()
    table = catalog.create_table("shop.orders", ROWS, primary_key=["id"])
    rows = [{"id": number, "name": f"n{number}", "price": None} for number in range(10)]
    table.append(pa.Table.from_pylist(rows, schema=ROWS))
    catalog.create_table("shop.other", ROWS, primary_key=["id"])
    return table


def _parse_sql(data: bytes) -> None:
    statement = parse_statement(_text(data))
    plan_statement(_table().environment, statement)


def _parse_filter(data: bytes) -> None:
    _table().scan(filter=_text(data)).to_arrow()


def _options(text: str) -> None:
    name, *pairs = text.split("\n")
    given = dict(pair.partition("=")[::2] for pair in pairs)
    choice = choose_format(name, given, SinkOptions)
    choice.build(_SCHEMA)


def _key(text: str) -> None:
    parse_key(_table(), tuple(text.split("\n")), ())


def _lock(text: str) -> None:
    name = lock_name(*text.split("\n"))
    check_lock_name(name)
    storage_key(name)


def _setting(text: str) -> None:
    name, _, value = text.partition("=")
    find_setting(name).parse(value)


def _size(text: str) -> None:
    try:
        size(text)
    except click.UsageError as error:
        raise InvalidInputError(error.format_message()) from error


_PARSERS: Mapping[str, Callable[[str], object]] = {
    "options": _options,
    "key": _key,
    "lock": _lock,
    "setting": _setting,
    "size": _size,
    "duration": parse_duration_ms,
    "name": parse_table_name,
    "column": parse_column,
    "partition": lambda text: define_partition_spec(_SCHEMA, text.split("\n")),
}


def _parse_argument(data: bytes) -> None:
    """The first line says what the rest is."""
    kind, _, text = _text(data).partition("\n")
    _PARSERS.get(kind, parse_duration_ms)(text)


def _parse_stream_file(data: bytes) -> None:
    """An error says in which line of which file."""
    try:
        parse_stream_bytes(data, "stream.yaml")
    except InvalidInputError as error:
        if re.match(r"stream\.yaml:[1-9]\d*: ", str(error)) is None:
            raise Accepted(f"no file and line: {error}") from error
        raise


def _ready() -> None:
    _table()
    assert set(BUILT_IN) >= {"debezium-json", "changelog-json"}


SQL = Target(name="sql", parse=_parse_sql, mutators=_MUTATORS, errors=_REFUSED, setup=_ready,
             inputs=1_500)  # fmt: skip
FILTER = Target(name="filter", parse=_parse_filter, mutators=_MUTATORS, errors=_REFUSED,
                setup=_ready, inputs=2_000)  # fmt: skip
STREAM_FILE = Target(name="stream_file", parse=_parse_stream_file, mutators=_MUTATORS,
                     errors=(InvalidInputError,), setup=_ready, inputs=2_000)  # fmt: skip
ARGUMENTS = Target(name="arguments", parse=_parse_argument, mutators=_MUTATORS,
                   errors=(*_REFUSED, InvalidLockError), setup=_ready, inputs=10_000)  # fmt: skip
