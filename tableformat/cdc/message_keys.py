"""Kafka message keys of change events: the key of a delete without `before`, and a cross-check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.array_types import Bools, Int64s
from tableformat.cdc.connect_schema import split_payloads
from tableformat.cdc.events import KEY, EventBatch
from tableformat.cdc.json_objects import JsonLayout, parse_json_objects, utf8_rows
from tableformat.cdc.row_codec import RowCodec


@dataclass(frozen=True, slots=True)
class MessageKeys:
    """Key columns as the message keys give them, one row per event, null where they do not.

    Attributes:
        columns: All key columns of the table, each of shape (events,), or (0,) without any key.
        others: Names of what else is in a message key.
        added: Those of them that stand beside all key columns.
    """

    columns: Mapping[str, pa.Array]
    others: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()

    @classmethod
    def parse(
        cls,
        events: EventBatch,
        codec: RowCodec,
        codec_for: Callable[[Mapping[str, Any] | None], RowCodec],
        bad: dict[int, str],
    ) -> Self:
        """Read message keys: JSON objects, with or without Connect's envelope.

        Args:
            events: The events; their message keys are read.
            codec: The table's columns.
            codec_for: The same as a Connect schema of keys encodes them.
            bad: Receives the events whose key cannot be read.

        Keys that are no objects (a plain text or number) say nothing about columns: they are taken
        as absent. Keys that are broken JSON are bad records.
        """
        keys = events.optional(KEY)
        targets = {name: codec.decoders[name].target for name in codec.key}
        if keys is None or keys.null_count == len(keys):
            count = 0 if keys is None else len(keys)
            return cls({name: pa.nulls(count, kind) for name, kind in targets.items()})
        texts = utf8_rows(keys, bad)
        is_object = pc.match_substring_regex(texts, r"^\s*\{")
        texts = pc.if_else(pc.fill_null(is_object, False), texts, pa.scalar(None, pa.string()))
        columns = {name: pa.nulls(len(keys), kind) for name, kind in targets.items()}
        others: set[str] = set()
        for group in split_payloads(texts, bad, events.schemas(KEY)):
            codec = codec_for(group.schema)
            layout = JsonLayout(
                schema=pa.schema(list(codec.struct(codec.key))),
                alternatives={
                    path: wires
                    for path, wires in codec.alternatives(()).items()
                    if path[0] in targets
                },
                closed=((),),
            )
            parsed = parse_json_objects(group.payloads, layout)
            others |= {path[0] for path in parsed.undeclared}
            for row, reason in parsed.bad.items():
                bad.setdefault(int(group.rows[row]), f"message key: {reason}")
            for rows, table in parsed.pieces:
                wires = {name: table.column(name).combine_chunks() for name in targets}
                at = group.rows[rows]
                decoded = codec.decode(wires, rows=at, bad=bad, check_required=())
                columns = {name: _put(columns[name], at, decoded[name]) for name in targets}
        return cls(columns, frozenset(others), frozenset(_added(others, columns, texts)))

    def take(self, rows: Int64s) -> dict[str, pa.Array]:
        """Key columns of some events."""
        return {name: self._of(name, rows) for name in self.columns}

    def coalesce(self, decoded: dict[str, pa.Array], rows: Int64s) -> dict[str, pa.Array]:
        """Fill nulls in decoded key columns from the message keys."""
        return {
            name: _coalesce(values, self._of(name, rows)) if name in self.columns else values
            for name, values in decoded.items()
        }

    def check(
        self,
        decoded: Mapping[str, pa.Array],
        *,
        rows: Int64s,
        mask: Bools,
        bad: dict[int, str],
    ) -> None:
        """Report events whose message key and row disagree on the key."""
        for name in self.columns:
            given = self._of(name, rows)
            if given.null_count == len(given):
                continue
            differs = pc.fill_null(pc.not_equal(storage(given), storage(decoded[name])), False)
            for place in np.flatnonzero(differs.to_numpy(zero_copy_only=False) & mask).tolist():
                reason = f"the message key differs from the row in column '{name}'"
                bad.setdefault(int(rows[place]), reason)

    def _of(self, name: str, rows: Int64s) -> pa.Array:
        values = self.columns[name]
        return values.take(pa.array(rows)) if len(values) else pa.nulls(len(rows), values.type)


def _added(
    names: Iterable[str], columns: Mapping[str, pa.Array], texts: pa.StringArray
) -> Iterator[str]:
    """Which of the names are in a key that has all key columns."""
    whole = np.logical_and.reduce(
        [values.is_valid().to_numpy(zero_copy_only=False) for values in columns.values()]
    )
    with_all = texts.filter(pa.array(whole))
    for name in names:
        if pc.any(pc.match_substring(with_all, f'"{name}"'), min_count=0).as_py():
            yield name


def storage(values: pa.Array) -> pa.Array:
    """The values without an extension type (uuid): Arrow's kernels do not take those."""
    return values.storage if isinstance(values.type, pa.BaseExtensionType) else values


def _coalesce(values: pa.Array, others: pa.Array) -> pa.Array:
    if not values.null_count:
        return values
    filled = pc.coalesce(storage(values), storage(others))
    is_plain = not isinstance(values.type, pa.BaseExtensionType)
    return filled if is_plain else pa.ExtensionArray.from_storage(values.type, filled)


def _put(values: pa.Array, rows: Int64s, new: pa.Array) -> pa.Array:
    """`values` with those at `rows` (ascending) replaced."""
    if len(rows) == len(values):
        return new
    joined = pa.concat_arrays([values, new])
    places = np.arange(len(values), dtype=np.int64)
    places[rows] = len(values) + np.arange(len(rows))
    return joined.take(pa.array(places))
