"""The explicit order of changes: fields of the events that rise with every change of a row.

`source.lsn` reads an integer at that path, `source.file:text` a text. Several fields are compared
one after the other (MySQL: `source.file:text,source.pos,source.row`). Time stamps of events are no
order: they are equal or go back (R08).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.cdc.events import SEQUENCE_PREFIX
from tableformat.cdc.json_objects import Path
from tableformat.errors import InvalidInputError

WIRE_TYPES = {"long": pa.int64(), "text": pa.string()}


@dataclass(frozen=True, slots=True)
class SequenceFields:
    """Paths of the sequence fields and their types."""

    paths: tuple[Path, ...]
    types: tuple[pa.DataType, ...]

    @classmethod
    def of(cls, texts: Sequence[str]) -> SequenceFields:
        """Read the option's items.

        Raises:
            InvalidInputError: An item is not `a.b.c`, `a.b.c:long` or `a.b.c:text`.
        """
        paths, types = [], []
        for text in texts:
            path, _, kind = text.partition(":")
            names = tuple(path.split("."))
            if (kind or "long") not in WIRE_TYPES or not all(names):
                raise InvalidInputError(
                    "not a sequence field", field=text, action="write path.to.field[:text]"
                )
            paths.append(names)
            types.append(WIRE_TYPES[kind or "long"])
        return cls(tuple(paths), tuple(types))

    @property
    def order(self) -> list[pa.Field]:
        """The order columns they become."""
        return [
            pa.field(f"{SEQUENCE_PREFIX}{number}", kind) for number, kind in enumerate(self.types)
        ]

    def columns(self, events: pa.Table | pa.StructArray) -> dict[str, pa.Array]:
        """The order columns of parsed events (null where an event lacks the field)."""
        return {
            column.name: _at(events, path)
            for column, path in zip(self.order, self.paths, strict=True)
        }

    def add_to(self, fields: dict[str, pa.DataType]) -> None:
        """Declare the sequence fields in a JSON object's fields."""
        for path, kind in zip(self.paths, self.types, strict=True):
            _declare(fields, path, kind)


def check_sequenced(
    columns: Mapping[str, pa.Array], rows: npt.NDArray[np.int64], bad: dict[int, str]
) -> None:
    """Report events without a sequence: nothing says whether they are newer."""
    for column in columns.values():
        if column.null_count:
            for place in pc.indices_nonzero(column.is_null()).to_pylist():
                bad.setdefault(int(rows[place]), "the event lacks its sequence field")


def _declare(fields: dict[str, pa.DataType], path: Path, kind: pa.DataType) -> None:
    name, rest = path[0], path[1:]
    if not rest:
        fields.setdefault(name, kind)
        return
    known = fields.get(name)
    children = {} if known is None else {child.name: child.type for child in known}
    _declare(children, rest, kind)
    fields[name] = pa.struct(list(children.items()))


def _at(events: pa.Table | pa.StructArray, path: Path) -> pa.Array:
    value = events
    for name in path:
        value = value.column(name) if isinstance(value, pa.Table) else pc.struct_field(value, name)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value
