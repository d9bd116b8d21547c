"""Written files on their way from a task to the driver: `DataFile` as JSON and back.

Only the driver commits; tasks return what they wrote. Fragments cross a process boundary, so they
are plain JSON and never pickles. They live for one job and are not stored: both ends are one
version of this code.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import DataFile, FileContent

BOUNDS = ("lower_bounds", "upper_bounds")
COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
TUPLES = ("split_offsets", "equality_ids")


def encode_data_files(files: Sequence[DataFile]) -> str:
    """The files as one JSON text."""
    return json.dumps([_encode(file) for file in files], separators=(",", ":"))


def decode_data_files(text: str) -> list[DataFile]:
    """The files of `encode_data_files`.

    Raises:
        CorruptDataError: The text is not such a list.
    """
    try:
        return [_decode(record) for record in json.loads(text)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptDataError(f"a task's answer cannot be read: {error}") from error


def _encode(file: DataFile) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for field in dataclasses.fields(file):
        value = getattr(file, field.name)
        if value is None:
            continue
        if field.name == "partition":
            value = [_tag(item) for item in value]
        elif field.name in BOUNDS:
            value = {str(field_id): _base64(bound) for field_id, bound in value.items()}
        elif isinstance(value, Mapping):
            value = {str(field_id): count for field_id, count in value.items()}
        elif isinstance(value, bytes):
            value = _base64(value)
        record[field.name] = value
    return record


def _decode(record: dict[str, Any]) -> DataFile:
    values = dict(record)
    values["content"] = FileContent(values["content"])
    values["partition"] = tuple(_untag(item) for item in values["partition"])
    for name in BOUNDS:
        if name in values:
            values[name] = {int(i): base64.b64decode(text) for i, text in values[name].items()}
    for name in COUNTS:
        if name in values:
            values[name] = {int(i): count for i, count in values[name].items()}
    for name in TUPLES:
        if name in values:
            values[name] = tuple(values[name])
    if "key_metadata" in values:
        values["key_metadata"] = base64.b64decode(values["key_metadata"])
    return DataFile(**values)


def _tag(value: object) -> object:
    """A partition value; JSON has no bytes, decimals and UUIDs."""
    if isinstance(value, bytes):
        return {"bytes": _base64(value)}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, uuid.UUID):
        return {"uuid": str(value)}
    return value


def _untag(value: Any) -> object:
    match value:
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"decimal": text}:
            return Decimal(text)
        case {"uuid": text}:
            return uuid.UUID(text)
    return value


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
