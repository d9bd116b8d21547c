"""Debezium's placeholder for a large value that an update did not touch (PostgreSQL's TOAST).

The database's log does not have the value, so the event cannot either. It is never stored as if it
were data: it is taken from `before`, else the event is a bad record, or the row keeps what it has.

Every form is made from the bytes of `unavailable.value.placeholder`:

| column of the source | form |
|---|---|
| text, json, xml, enum, numeric as text, bytea as base64 or hex | the text |
| bytea | its bytes, in JSON as base64; for connectors that write hex, hex |
| hstore | `{"<text>":"<text>"}` |
| text[], varchar[], char[], json[], jsonb[] | `["<text>"]` |
| bytea[] | `["<base64>"]` |
| uuid[] | `["<UUID of version 3 of the bytes>"]` |
| int[], bigint[], date[] | every byte as a signed number |

Source: Debezium's `UnchangedToastedPlaceholder`, `UnchangedToastedReplicationMessageColumn` and
`PostgresValueConverter`. For the arrays of other types (smallint[], numeric[], enums, ...), for
bits and for numeric as `precise` Debezium has no form: it writes null.

`before` has the value with the identity FULL only. With another one it has the columns of the
identity, and in NOT NULL columns what Debezium puts there for the rest: '', {}, []. No large value
is that short, so it is none.

A placeholder that could be a value as well is neither stored nor replaced, but a bad record: one
that is short, and one in an insert or a snapshot read, which have all values.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.array_types import Bools, Int64s
from tableformat.errors import InvalidInputError

OPTION = "unavailable-value"
HEX_PREFIX = "hex:"
DISTINCT_BYTES_MIN = 12  # shorter texts ("N/A", "unavailable") occur as values
NOT_A_BYTE = -129.0
_EMPTY_TEXTS = ("", "{}")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """All forms of one placeholder.

    Attributes:
        texts: What a text may be.
        items: What the only text of a list may be.
        numbers: What the numbers of a list are.
        is_distinct: It is too long to be taken for a value.
    """

    texts: pa.StringArray
    items: pa.StringArray
    numbers: npt.NDArray[np.float64]
    is_distinct: bool

    @classmethod
    def of(cls, option: str) -> Placeholder:
        """The placeholder of the option `unavailable-value`.

        Raises:
            InvalidInputError: It is empty, or its `hex:` form is not hexadecimal.
        """
        raw = _bytes_of(option)
        text = raw.decode(errors="replace")  # as Java's `new String(bytes)`
        hstore = json.dumps({text: text}, ensure_ascii=False, separators=(",", ":"))
        encoded = base64.b64encode(raw).decode()
        texts = [text, encoded, encoded.replace("+", "-").replace("/", "_"), raw.hex(), hstore]
        # java.util.UUID.nameUUIDFromBytes: MD5 without a name space
        digest = hashlib.md5(raw, usedforsecurity=False).digest()
        return cls(
            texts=pa.array(texts, pa.string()),
            items=pa.array([*texts, str(uuid.UUID(bytes=digest, version=3))], pa.string()),
            numbers=np.frombuffer(raw, np.int8).astype(np.float64),
            is_distinct=len(raw) >= DISTINCT_BYTES_MIN,
        )

    def found(self, values: pa.Array) -> pa.BooleanArray | None:
        """Which wire values are the placeholder; None where the type cannot hold it. Never null."""
        kind = values.type
        if pa.types.is_string(kind):
            return pc.is_in(values, self.texts)
        if not pa.types.is_list(kind):
            return None
        if pa.types.is_string(kind.value_type):
            single = pc.fill_null(pc.equal(pc.list_value_length(values), 1), False)
            first = pc.list_element(pc.if_else(single, values, pa.scalar([None], kind)), 0)
            return pc.is_in(first, self.items)
        number = kind.value_type
        if pa.types.is_integer(number) or pa.types.is_floating(number):
            return self._found_numbers(values)
        return None

    def _found_numbers(self, lists: pa.ListArray) -> pa.BooleanArray:
        count = len(self.numbers)
        fitting = pc.fill_null(pc.equal(pc.list_value_length(lists), count), False)
        found = fitting.to_numpy(zero_copy_only=False).copy()
        if found.any():
            flat = lists.filter(fitting).flatten().cast(pa.float64(), safe=False)
            rows = pc.fill_null(flat, NOT_A_BYTE).to_numpy(zero_copy_only=False)
            found[found] = np.all(rows.reshape(-1, count) == self.numbers, axis=1)
        return pa.array(found)


def _bytes_of(option: str) -> bytes:
    raw = option.encode()
    if option.startswith(HEX_PREFIX):
        try:
            raw = bytes.fromhex(option.removeprefix(HEX_PREFIX))
        except ValueError:
            raise InvalidInputError(
                f"option '{OPTION}' does not hold hexadecimal digits after '{HEX_PREFIX}'",
                value=repr(option),
                action="write it as the connector's unavailable.value.placeholder",
            ) from None
    if not raw:
        raise InvalidInputError(
            f"option '{OPTION}' is empty: every empty text would be unavailable",
            action="give the connector an unavailable.value.placeholder, and the same here",
        )
    return raw


def fill_placeholders(
    after: Mapping[str, pa.Array],
    before: Mapping[str, pa.Array],
    *,
    placeholder: Placeholder,
    keep_null: bool,
    have_all: Bools,
    rows: Int64s,
    bad: dict[int, str],
    keeps: Bools | None = None,
) -> tuple[dict[str, pa.Array], dict[str, Bools]]:
    """Replace placeholders in wire columns.

    Args:
        after: Wire columns of the new rows, each of shape `(len(rows),)`.
        before: The same of the old rows, null where there is none.
        placeholder: The connector's `unavailable.value.placeholder`.
        keep_null: Put null where `before` has no value either, instead of reporting the event.
        have_all: Rows of events that have all values, so that the placeholder may be one.
        rows: The event of each row.
        bad: Receives events whose value is nowhere, or may be the placeholder itself.
        keeps: Rows that replace another one and keep its value where theirs is nowhere.

    Returns:
        The columns, null where the value is nowhere; and by column, where rows keep one.
    """
    filled, kept = dict(after), {}
    keeps = np.zeros(len(rows), np.bool_) if keeps is None else keeps
    for name, values in after.items():
        stands = placeholder.found(values)
        if stands is None or not pc.any(stands, min_count=0).as_py():
            continue
        old = before[name]
        usable = pc.and_(old.is_valid(), pc.invert(_is_empty(old)))
        old_stands = placeholder.found(old)
        if old_stands is not None:
            usable = pc.and_(usable, pc.invert(old_stands))
        absent = pa.nulls(len(values), values.type)
        if old.type == values.type:
            replacement = pc.if_else(usable, old, absent)
        else:
            replacement, usable = absent, pa.array(np.zeros(len(values), np.bool_))
        filled[name] = pc.if_else(stands, replacement, values)
        here = stands.to_numpy(zero_copy_only=False)
        doubtful = here & (have_all | (not placeholder.is_distinct))
        lost = here & ~doubtful & ~usable.to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(doubtful).tolist():
            bad.setdefault(int(rows[place]), _doubtful(name, placeholder))
        if (lost & keeps).any():
            kept[name] = lost & keeps
        if not keep_null:
            for place in np.flatnonzero(lost & ~keeps).tolist():
                bad.setdefault(int(rows[place]), _lost(name))
    return filled, kept


def _is_empty(values: pa.Array) -> pa.BooleanArray:
    """Where an old row has what stands for a value that it lacks. Never null."""
    if pa.types.is_string(values.type):
        return pc.is_in(values, pa.array(_EMPTY_TEXTS, pa.string()))
    return pc.fill_null(pc.equal(pc.list_value_length(values), 0), False)


def _lost(column: str) -> str:
    return (
        f"column '{column}' is unavailable: it did not change, so the source did not send it; "
        "ALTER TABLE ... REPLICA IDENTITY FULL in PostgreSQL sends it from then on, or set "
        "on-unavailable-value=keep to keep the row's value (of updates that leave the key alone)"
    )


def _doubtful(column: str, placeholder: Placeholder) -> str:
    if placeholder.is_distinct:
        return (
            f"column '{column}' of a new row is the placeholder of an unavailable value or the "
            "value itself: an update that changes the key is sent as a delete and an insert, and "
            "REPLICA IDENTITY FULL in PostgreSQL sends such values from then on; where it is the "
            f"value, give the connector another placeholder, and the same as {OPTION} here"
        )
    return (
        f"column '{column}' is the placeholder of an unavailable value or the value itself: "
        f"it is shorter than {DISTINCT_BYTES_MIN} bytes; "
        f"give the connector another unavailable.value.placeholder, and the same as {OPTION} here"
    )
