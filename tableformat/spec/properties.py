"""Table properties, Iceberg's and icefold's own: numbers, flags and choices, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal, cast, get_args

from pyiceberg.table.snapshots import IsolationLevel

from tableformat.errors import InvalidInputError
from tableformat.spec.names import (
    DV_PLACEMENT,
    DV_PLACEMENT_DEFAULT,
    ON_MISSING_ROW,
    ON_MISSING_ROW_DEFAULT,
    PUBLISH,
    PUBLISH_DEFAULT,
)

Placement = Literal["packed", "per-file"]
Publishing = Literal["link", "rewrite"]
Granularity = Literal["partition", "file"]
MissingRow = Literal["fail", "null", "dead-letter"]


class WriteMode(StrEnum):
    """`write.{delete,update,merge}.mode`."""

    MERGE_ON_READ = "merge-on-read"
    COPY_ON_WRITE = "copy-on-write"


def property_int(
    properties: Mapping[str, str], name: str, default: int, *, minimum: int = 0
) -> int:
    """A count, a size or a duration.

    Raises:
        InvalidInputError: It is not an integer of at least `minimum`.
    """
    text = properties.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = minimum - 1
    if value < minimum:
        raise InvalidInputError(
            f"table property is not an integer of at least {minimum}", property=name, value=text
        )
    return value


def property_bool(properties: Mapping[str, str], name: str, *, default: bool) -> bool:
    """`true` or `false`, in any case.

    Raises:
        InvalidInputError: It is something else.
    """
    text = properties.get(name, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise InvalidInputError(
            "table property is neither true nor false", property=name, value=repr(text)
        )
    return text == "true"


def property_choice(text: str, name: str, choices: Sequence[str]) -> str:
    """One of some words, in any case.

    Raises:
        InvalidInputError: It is something else.
    """
    word = text.strip().lower()
    if word not in choices:
        raise InvalidInputError(
            "table property has no such value",
            property=name,
            value=repr(text),
            action=f"use {' or '.join(choices)}",
        )
    return word


def dv_placement(properties: Mapping[str, str]) -> Placement:
    """How deletion vectors are laid out: many per Puffin file (default), or one in each."""
    text = properties.get(DV_PLACEMENT, DV_PLACEMENT_DEFAULT)
    return cast("Placement", property_choice(text, DV_PLACEMENT, get_args(Placement)))


def delete_granularity(properties: Mapping[str, str]) -> Granularity:
    """What a position delete file of v2 is for: a partition (default), or one data file."""
    name = "write.delete.granularity"
    text = properties.get(name, "partition")
    return cast("Granularity", property_choice(text, name, get_args(Granularity)))


def publishing(properties: Mapping[str, str]) -> Publishing:
    """How staged rows get to the target: in the files they were staged in, or written once more."""
    text = properties.get(PUBLISH, PUBLISH_DEFAULT)
    return cast("Publishing", property_choice(text, PUBLISH, get_args(Publishing)))


def on_missing_row(properties: Mapping[str, str]) -> MissingRow:
    """What becomes of a staged row whose missing columns no older row has."""
    text = properties.get(ON_MISSING_ROW, ON_MISSING_ROW_DEFAULT)
    return cast("MissingRow", property_choice(text, ON_MISSING_ROW, get_args(MissingRow)))


def isolation_of(properties: Mapping[str, str], operation: str) -> IsolationLevel:
    """`write.<operation>.isolation-level`; default `serializable`, as in Iceberg.

    Raises:
        InvalidInputError: It is something else.
    """
    name = f"write.{operation}.isolation-level"
    text = properties.get(name, IsolationLevel.SERIALIZABLE.value)
    return IsolationLevel(property_choice(text, name, [each.value for each in IsolationLevel]))


def mode_of(properties: Mapping[str, str], operation: str, given: str | None = None) -> WriteMode:
    """`write.<operation>.mode`; default `merge-on-read`, since every reader of v3 knows DVs.

    Raises:
        InvalidInputError: It is something else.
    """
    name = f"write.{operation}.mode"
    text = given if given is not None else properties.get(name, WriteMode.MERGE_ON_READ.value)
    return WriteMode(property_choice(text, name, [each.value for each in WriteMode]))
