"""Options of each table of a stream: how it is made, and those of its format and of the sink."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tableformat.cdc.formats import FormatChoice, choose_format, find_format
from tableformat.cdc.sink import SinkOptions
from tableformat.commit.property_check import check_properties
from tableformat.errors import InvalidInputError, TableError
from tableformat.spec.column_types import parse_type
from tableformat.spec.options import GivenOptions, Names, OptionError, Options

FORMAT = "format"
_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


def _transforms(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in _OUTSIDE_PARENTHESES.split(text))
    if not all(parts):
        raise ValueError("an empty transform")
    return parts


def _mapping(text: str) -> dict[str, str]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a mapping")  # noqa: TRY004 - what pydantic takes for a wrong value
    return {str(name): str(each) for name, each in value.items()}


Transforms = Annotated[tuple[str, ...], BeforeValidator(_transforms)]
MAPPING = BeforeValidator(_mapping)
"""Makes a `dict` of a JSON object: its values may hold commas."""


class MakingOptions(Options):
    """Of the table that a topic makes."""

    owner = "a table that is made"
    key: Names = Field((), description="key columns. Default: those of the message key's schema")
    partition_by: Transforms = Field(
        (), description="columns and transforms: region, month(at), bucket(16, id)"
    )
    columns: Annotated[dict[str, str], MAPPING] = Field(
        {}, description="Iceberg types of single columns, whatever the events' schema says of them"
    )
    properties: Annotated[dict[str, str], MAPPING] = Field({}, description="table properties")
    nullability: Literal["source", "nullable"] = Field(
        "source",
        description="source: columns that the events' schema does not call optional are required; "
        "nullable: only those of the key are",
    )


@contextmanager
def _refusing(option: str) -> Iterator[None]:
    """Say of which option an error is."""
    try:
        yield
    except TableError as error:
        raise OptionError(error.message, action=error.action, **error.context).of(option) from error


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What was given for one table, checked: the format, and how the table is made.

    `sink` are the options of format and sink as `plan_sink` takes them.
    """

    choice: FormatChoice
    making: MakingOptions
    sink: GivenOptions

    @classmethod
    def of(cls, given: Mapping[str, str]) -> TableOptions:
        """Check the options of a table.

        Raises:
            OptionError: See `Options.parse`.
            InvalidInputError: There is no such format, or it reads typed columns.
        """
        rest = dict(given)
        name = rest.pop(FORMAT, "debezium-json")
        try:
            factory = find_format(name)
        except InvalidInputError as error:
            raise OptionError(error.message, action=error.action, **error.context).of(
                FORMAT
            ) from error
        if factory.is_typed:
            raise OptionError(f"format '{name}' reads typed columns, a message has none").of(FORMAT)
        if "key" in rest and "on-wider-key" in factory.options.names():
            rest.setdefault("on-wider-key", "ignore")  # the user has said what tells rows apart
        choice = choose_format(name, rest, SinkOptions, MakingOptions)
        beside = (factory.options, SinkOptions, MakingOptions)
        for owner in beside[1:]:
            owner.parse(rest, *(each for each in beside if each is not owner))
        making = MakingOptions.parse(rest, *beside[:2])
        with _refusing("properties"):
            check_properties(making.properties)
        with _refusing("columns"):
            for text in making.columns.values():
                parse_type(text)
        own = MakingOptions.names()
        return cls(choice, making, {key: text for key, text in rest.items() if key not in own})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of all tables: the defaults, then for patterns of names, of which the later win.

    Attributes:
        namespace: Of patterns without a dot.
        defaults: Of every table.
        tables: Pattern and options, in order.
    """

    namespace: str
    defaults: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[tuple[str, Mapping[str, str]]] = ()

    def given_for(self, table: str) -> dict[str, str]:
        """What was given for a table."""
        given = dict(self.defaults)
        for pattern, options in self.tables:
            full = pattern if "." in pattern else f"{self.namespace}.{pattern}"
            if fnmatchcase(table, full):
                given |= options
        return given

    def of(self, table: str) -> TableOptions:
        """The options of a table.

        Raises:
            InvalidInputError: Defaults and table together cannot be right.
        """
        return TableOptions.of(self.given_for(table))
