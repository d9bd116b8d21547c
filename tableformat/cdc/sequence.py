"""The explicit order of changes: fields of the events that rise with every change of a row.

`source.lsn` reads an integer at that path, `source.file:text` a text. Digits in a text (Oracle's
`source.scn`) are an integer: as texts 99 would come after 123. Several fields are compared
one after the other. Time stamps of events are no order: they are equal or go back (R08).

MySQL and MariaDB: `source.file:text,source.pos,source.row`, for as long as the numbers of their log
files keep their digits and the log is not reset. A position alone begins again in each file, and
GTIDs do not sort as texts: both are refused (`check_binlog_order`).
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
            column.name: _typed(_at(events, path), column.type, path)
            for column, path in zip(self.order, self.paths, strict=True)
        }

    def add_to(
        self,
        fields: dict[str, pa.DataType],
        alternatives: dict[Path, tuple[pa.DataType, ...]],
    ) -> None:
        """Declare the sequence fields in a JSON object's fields, and what else they may be.

        Raises:
            InvalidInputError: A field that a path leads through holds no others.
        """
        for path, kind in zip(self.paths, self.types, strict=True):
            if _declare(fields, path, kind) and pa.types.is_integer(kind):
                alternatives[path] = (kind, pa.string())


def check_binlog_order(texts: Sequence[str]) -> None:
    """Refuse what looks like an order of MySQL's or MariaDB's changes and is none.

    Raises:
        InvalidInputError: The fields are a position without its file, or GTIDs.
    """
    names = [
        text.partition(":")[0].removeprefix("source.").removeprefix("__source_") for text in texts
    ]
    if "gtid" in names:
        why = "GTIDs do not sort: 0-1-10 is before 0-1-9 as a text"
    elif "pos" in names and "file" not in names[: names.index("pos")]:
        why = "positions begin again in each file of MySQL's log"
    else:
        return
    raise InvalidInputError(
        f"the sequence gives no order: {why}",
        sequence=list(texts),
        action="write sequence=source.file:text,source.pos,source.row, or leave it out where all "
        "changes of a key are in one partition",
    )


def check_sequenced(
    columns: Mapping[str, pa.Array], rows: npt.NDArray[np.int64], bad: dict[int, str]
) -> None:
    """Report events without a sequence: nothing says whether they are newer."""
    for column in columns.values():
        if column.null_count:
            for place in pc.indices_nonzero(column.is_null()).to_pylist():
                bad.setdefault(int(rows[place]), "the event lacks its sequence field")


def _declare(fields: dict[str, pa.DataType], path: Path, kind: pa.DataType) -> bool:
    """Add a field unless it is there; whether it was added."""
    name, rest = path[0], path[1:]
    known = fields.get(name)
    if not rest:
        fields.setdefault(name, kind)
        return known is None
    if known is not None and not pa.types.is_struct(known):
        raise InvalidInputError(
            f"a sequence field is said to be inside of '{name}', which holds no fields",
            action="write path.to.field[:text]",
        )
    children = {} if known is None else {child.name: child.type for child in known}
    is_new = _declare(children, rest, kind)
    fields[name] = pa.struct(list(children.items()))
    return is_new


def _at(events: pa.Table | pa.StructArray, path: Path) -> pa.Array:
    value = events
    for name in path:
        value = value.column(name) if isinstance(value, pa.Table) else pc.struct_field(value, name)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def _typed(values: pa.Array, kind: pa.DataType, path: Path) -> pa.Array:
    """A sequence field as what orders; null where a text should be an integer and is none."""
    if values.type == kind:
        return values
    if pa.types.is_integer(kind):
        if pa.types.is_integer(values.type):
            return values.cast(kind)
        if pa.types.is_string(values.type):
            digits = pc.match_substring_regex(values, r"^-?[0-9]{1,18}$")
            return pc.if_else(digits, values, pa.scalar(None, pa.string())).cast(kind)
    raise InvalidInputError(
        f"a sequence field is {values.type} in the events, which gives no order as {kind}",
        field=".".join(path),
        action="name an integer, or a text as path.to.field:text",
    )
