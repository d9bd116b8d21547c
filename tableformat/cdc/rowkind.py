"""What a change row does to the table, and which kinds a format produces (Flink FLIP-95)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.errors import InvalidInputError


class RowKind(IntEnum):
    """The kind of one change row. The numbers are Flink's, and are shuffled: never change one."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short(self) -> str:
        """`+I`, `-U`, `+U` or `-D`."""
        return SHORT_NAMES[self]

    @property
    def adds(self) -> bool:
        """Whether the row is in the table afterwards; otherwise it has left it."""
        return self in (RowKind.INSERT, RowKind.UPDATE_AFTER)


SHORT_NAMES = {
    RowKind.INSERT: "+I",
    RowKind.UPDATE_BEFORE: "-U",
    RowKind.UPDATE_AFTER: "+U",
    RowKind.DELETE: "-D",
}
# Every text that stands for a kind in a change row, in lower case: Flink's own names, what SQL
# users write, and Debezium's letters.
KIND_NAMES = {
    **{short.lower(): kind for kind, short in SHORT_NAMES.items()},
    **{kind.name.lower(): kind for kind in RowKind},
    "i": RowKind.INSERT,
    "c": RowKind.INSERT,
    "r": RowKind.UPDATE_AFTER,
    "u": RowKind.UPDATE_AFTER,
    "update": RowKind.UPDATE_AFTER,
    "upsert": RowKind.UPDATE_AFTER,
    "d": RowKind.DELETE,
}


# Beside Flink's kinds: all rows of the table go. Such a change has no key.
TRUNCATE = 4


def adding(kinds: pa.Array) -> npt.NDArray[np.bool_]:
    """Which kinds (int8) say that the row is in the table afterwards; null is none."""
    wanted = pa.array([kind.value for kind in RowKind if kind.adds], pa.int8())
    mask: npt.NDArray[np.bool_] = pc.is_in(kinds, wanted).to_numpy(zero_copy_only=False)
    return mask


@dataclass(frozen=True, slots=True)
class ChangelogMode:
    """A non-empty set of row kinds: what a format produces, or what a sink takes."""

    kinds: frozenset[RowKind]

    def __post_init__(self) -> None:
        if not self.kinds:
            raise InvalidInputError("a changelog mode needs at least one row kind")

    @classmethod
    def of(cls, kinds: Iterable[RowKind]) -> Self:
        """The mode with exactly these kinds."""
        return cls(frozenset(kinds))

    def __contains__(self, kind: RowKind) -> bool:
        return kind in self.kinds

    def __str__(self) -> str:
        return "[" + ", ".join(kind.short for kind in sorted(self.kinds)) + "]"


INSERT_ONLY = ChangelogMode.of([RowKind.INSERT])
UPSERT = ChangelogMode.of([RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE])
ALL_KINDS = ChangelogMode.of(RowKind)


def check_sink_takes(produced: ChangelogMode, *, format_name: str, has_primary_key: bool) -> None:
    """Let the sink answer, before anything runs, whether it can take what a format produces.

    Raises:
        InvalidInputError: The table has no primary key, and the format may produce more than
            inserts: nothing says which row an update or a delete means.
    """
    taken = ALL_KINDS if has_primary_key else INSERT_ONLY
    refused = produced.kinds - taken.kinds
    if refused:
        raise InvalidInputError(
            "the table takes inserts only, because it has no primary key",
            action="name one (icefold adopt TABLE --key COLUMNS --apply key), or use the format "
            "'append'",
            format=format_name,
            produces=produced,
        )
