"""Which columns of a staged row its event left out: one more column of staged data files.

It has a field id of its own that is in no schema, so readers that do not know it never see it. Null
means that the row is whole; else it holds a text:

| text | the row's columns that are missing |
|---|---|
| `-3,7` | those with the field ids 3 and 7 |
| `+1,2` | all but 1 and 2, also those that the table gets later |
| `!-3,7`, `!+1,2` | the same, and the row is new: there is no older one to fill them from |

Ids are those of top-level columns. A missing column is stored as null, a required one as the zero
of its type. The resolver fills both before the row is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
from pyiceberg import types as iceberg

from tableformat.array_types import Bools, Int64s
from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import MISSING_COLUMNS_FIELD_ID
from tableformat.spec.types import arrow_type

MISSING_FIELD = iceberg.NestedField(
    MISSING_COLUMNS_FIELD_ID, "_icefold_missing_columns", iceberg.StringType(), required=False
)
MISSING = MISSING_FIELD.name
NEW, LISTED, CARRIED = "!", "-", "+"


def has_missing_columns(file: DataFile) -> bool:
    """Whether a data file says of its rows which columns are missing; from its entry alone."""
    return MISSING_COLUMNS_FIELD_ID in (file.column_sizes or ())


@dataclass(frozen=True, slots=True)
class _Mask:
    """One distinct text."""

    ids: frozenset[int] = frozenset()
    carries: bool = False
    is_new: bool = False

    @classmethod
    def parse(cls, text: str | None) -> _Mask:
        if text is None:
            return cls()
        is_new = text.startswith(NEW)
        sign, numbers = text[is_new : is_new + 1], text[is_new + 1 :]
        try:
            ids = frozenset(int(number) for number in numbers.split(",") if number)
        except ValueError:
            ids, sign = frozenset(), ""
        if sign not in {LISTED, CARRIED} or not (ids or sign == CARRIED):
            raise CorruptDataError(
                "a staged row does not say which of its columns are missing", text=repr(text[:80])
            )
        return cls(ids, sign == CARRIED, is_new)

    def lacks(self, field_id: int) -> bool:
        return (field_id in self.ids) != self.carries


@dataclass(frozen=True, slots=True)
class RowMasks:
    """What the rows of a table lack.

    Attributes:
        code: Shape `(rows,)`: which of `masks` each row has.
        masks: The distinct ones.
    """

    code: Int64s
    masks: tuple[_Mask, ...]

    @classmethod
    def parse(cls, texts: pa.Array | pa.ChunkedArray) -> RowMasks:
        """The masks of rows.

        Raises:
            CorruptDataError: A text is none.
        """
        if isinstance(texts, pa.ChunkedArray):
            texts = pa.concat_arrays(texts.chunks) if texts.num_chunks else pa.nulls(0, texts.type)
        encoded = texts.dictionary_encode(null_encoding="encode")
        code = np.asarray(encoded.indices).astype(np.int64)
        return cls(code, tuple(_Mask.parse(text) for text in encoded.dictionary.to_pylist()))

    def lacks(self, field_id: int) -> Bools:
        """Which rows lack a top-level column; shape `(rows,)`."""
        return self._each([mask.lacks(field_id) for mask in self.masks])

    @property
    def is_partial(self) -> Bools:
        """Which rows are not whole, or will not be once the table has more columns."""
        return self._each([bool(mask.ids) or mask.carries for mask in self.masks])

    @property
    def is_new(self) -> Bools:
        """Which rows have no older row."""
        return self._each([mask.is_new for mask in self.masks])

    @property
    def carries(self) -> Bools:
        """Which rows lack all columns that are not named."""
        return self._each([mask.carries for mask in self.masks])

    def _each(self, values: Sequence[bool]) -> Bools:
        return np.array(values, dtype=np.bool_)[self.code]


def mask_texts(
    lacks: Mapping[int, Bools],
    count: int,
    *,
    field_ids: Sequence[int] = (),
    carries: Bools | None = None,
    is_new: Bools | None = None,
) -> pa.StringArray:
    """The texts of rows; null for those that lack nothing.

    Args:
        lacks: Which rows lack a column, by field id; shapes `(count,)`.
        count: Rows.
        field_ids: All top-level columns of the table, for rows that name what they carry.
        carries: Which rows do; None: none.
        is_new: Which rows have no older row; None: not said of any.
    """
    none = np.zeros(count, dtype=np.bool_)
    ids = sorted(field_id for field_id, rows in lacks.items() if rows.any())
    partial = np.logical_or.reduce([lacks[i] for i in ids]) if ids else none
    flags = [none if carries is None else carries, none if is_new is None else is_new]
    bits = np.packbits(np.stack([*(lacks[i] for i in ids), *flags], axis=1), axis=1)
    distinct, first, code = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    texts: list[str | None] = []
    for row in first.tolist() if len(distinct) else ():
        absent = [i for i in ids if lacks[i][row]]
        named = sorted(set(field_ids).difference(absent)) if flags[0][row] else absent
        sign = CARRIED if flags[0][row] else LISTED
        text = f"{NEW if flags[1][row] else ''}{sign}{','.join(map(str, named))}"
        texts.append(text if partial[row] else None)
    found: pa.StringArray = pa.array(texts, pa.string()).take(pa.array(code.reshape(-1)))
    return found


def zero_array(field: iceberg.NestedField, count: int) -> pa.Array:
    """What is stored of a missing column: null, or the zero of its type where it is required."""
    target = arrow_type(field.field_type)
    if not field.required:
        return pa.nulls(count, target)
    kind = field.field_type
    if isinstance(kind, iceberg.StructType):
        children = [zero_array(each, count) for each in kind.fields]
        return pa.StructArray.from_arrays(children, fields=list(target))
    if isinstance(kind, iceberg.ListType | iceberg.MapType):
        return pa.array([[]] * count, target)
    if isinstance(kind, iceberg.UUIDType):
        storage = pa.array([bytes(16)] * count, pa.binary(16))
        return pa.ExtensionArray.from_storage(target, storage)
    if isinstance(kind, iceberg.FixedType):
        return pa.array([bytes(len(kind))] * count, target)
    if isinstance(kind, iceberg.StringType | iceberg.BinaryType):
        return pa.array([b""] * count, pa.binary()).cast(target)
    if isinstance(kind, iceberg.UnknownType):
        return pa.nulls(count)
    if pa.types.is_temporal(target):
        storage = pa.int32() if target.bit_width == 32 else pa.int64()
        return pa.repeat(pa.scalar(0, storage), count).view(target)
    zero = Decimal(0) if isinstance(kind, iceberg.DecimalType) else 0
    is_flag = isinstance(kind, iceberg.BooleanType)
    return pa.repeat(pa.scalar(False if is_flag else zero, target), count)


def replaced(values: pa.Array, others: pa.Array | pa.ChunkedArray, at: Int64s) -> pa.Array:
    """A column with some of its values replaced, of any type.

    Args:
        values: Shape `(n,)`.
        others: Of the same type.
        at: Shape `(n,)`: the ordinal in `others` that replaces each value; -1: it stays.
    """
    chunks = others.chunks if isinstance(others, pa.ChunkedArray) else [others]
    index = np.where(at < 0, np.arange(len(values)), len(values) + at)
    taken = pa.chunked_array([values, *chunks], values.type).take(pa.array(index))
    return taken.combine_chunks() if taken.num_chunks != 1 else taken.chunk(0)
