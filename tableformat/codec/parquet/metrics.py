"""Column statistics of a Parquet file as a manifest entry holds them (spec: Column Metrics).

A wrong statistic loses rows silently, a missing one only costs time. So everything here is exact
or absent:

- Counts and bounds are for columns that are not inside a list or map; those get sizes only (before
  version 26, Arrow counts their nulls wrong).
- Bounds come from the row groups' own minimum and maximum. A row group without them drops the
  column's bounds, unless it holds nothing but nulls and NaN. Arrow leaves them out for values
  above 4 KiB.
- Float bounds are never NaN; a zero minimum is -0.0 and a zero maximum 0.0 (Arrow does this).
- `truncate(n)` cuts text after n code points and bytes after n bytes and rounds the upper bound up;
  where rounding up is impossible there is no upper bound. All other types keep their exact width.
- Row lineage columns get none: their null means "inherited".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from tableformat.errors import InvalidInputError
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import USER_FIELD_ID_MAX

_DEFAULT_MODE = "truncate(16)"
_TRUNCATE = re.compile(r"truncate\((\d+)\)")
DEFAULT_MODE_PROPERTY = "write.metadata.metrics.default"
_INFERRED_MAX_PROPERTY = "write.metadata.metrics.max-inferred-column-defaults"
MODE_PREFIX = "write.metadata.metrics.column."
_SURROGATES = range(0xD800, 0xE000)
_CODE_POINT_MAX = 0x10FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsMode:
    """What is kept about a column. `truncate_length` None keeps whole bounds."""

    counts: bool
    bounds: bool
    truncate_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A stored column: one Parquet column chunk per row group, in Parquet's column order.

    `path` leads through structs by name; `repeated` means below a list or map.
    """

    field_id: int
    path: tuple[str, ...]
    kind: iceberg.PrimitiveType
    repeated: bool
    mode: MetricsMode

    @property
    def has_counts(self) -> bool:
        """Whether counts of this column are exact and wanted."""
        return self.mode.counts and not self.repeated and self.field_id <= USER_FIELD_ID_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetrics:
    """The statistics fields of `DataFile`, all by field id."""

    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_value_counts: dict[int, int] = field(default_factory=dict)
    nan_value_counts: dict[int, int] = field(default_factory=dict)
    lower_bounds: dict[int, bytes] = field(default_factory=dict)
    upper_bounds: dict[int, bytes] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()


def leaves_of(schema: Schema, properties: Mapping[str, str]) -> tuple[Leaf, ...]:
    """The stored columns of files with this schema, in Parquet's column order.

    Raises:
        InvalidInputError: A `write.metadata.metrics.*` property has an unknown mode.
    """
    return tuple(
        Leaf(
            field_id=field.field_id,
            path=path,
            kind=_primitive(field),
            repeated=repeated,
            mode=_mode_of(path, index, properties),
        )
        for index, (field, path, repeated) in enumerate(_walk(schema.fields, (), repeated=False))
    )


def _mode_of(path: tuple[str, ...], index: int, properties: Mapping[str, str]) -> MetricsMode:
    """The column's own mode, else the table's, else truncated bounds for the first columns."""
    for name in (MODE_PREFIX + ".".join(path), DEFAULT_MODE_PROPERTY):
        if name in properties:
            return parse_mode(properties[name], name)
    text = properties.get(_INFERRED_MAX_PROPERTY, "100")
    columns_max = parse_decimal(text)
    if columns_max is None:
        raise InvalidInputError(
            "property must be a number", property=_INFERRED_MAX_PROPERTY, value=text[:80]
        )
    return parse_mode(_DEFAULT_MODE if index < columns_max else "none", DEFAULT_MODE_PROPERTY)


def _primitive(field: iceberg.NestedField) -> iceberg.PrimitiveType:
    kind = field.field_type
    assert isinstance(kind, iceberg.PrimitiveType)
    return kind


def _walk(
    fields: Sequence[iceberg.NestedField], path: tuple[str, ...], *, repeated: bool
) -> Iterator[tuple[iceberg.NestedField, tuple[str, ...], bool]]:
    for each in fields:
        here = (*path, each.name)
        kind = each.field_type
        if isinstance(kind, iceberg.StructType):
            yield from _walk(kind.fields, here, repeated=repeated)
        elif isinstance(kind, iceberg.ListType):
            yield from _walk([kind.element_field], here, repeated=True)
        elif isinstance(kind, iceberg.MapType):
            yield from _walk([kind.key_field, kind.value_field], here, repeated=True)
        elif not isinstance(kind, iceberg.UnknownType):
            yield each, here, repeated


def parse_mode(text: str, name: str) -> MetricsMode:
    """A metrics mode by its property value: none, counts, truncate(n) or full."""
    mode = text.strip().lower()
    if mode == "none":
        return MetricsMode(counts=False, bounds=False)
    if mode == "counts":
        return MetricsMode(counts=True, bounds=False)
    if mode == "full":
        return MetricsMode(counts=True, bounds=True)
    found = _TRUNCATE.fullmatch(mode)
    if found is None or int(found[1]) < 1:
        raise InvalidInputError("unknown metrics mode", property=name, value=text)
    return MetricsMode(counts=True, bounds=True, truncate_length=int(found[1]))


def count_nans(table: pa.Table, leaves: Sequence[Leaf]) -> dict[int, int]:
    """NaN values per float column of rows that are about to be written."""
    counts: dict[int, int] = {}
    for leaf in leaves:
        if not (leaf.has_counts and isinstance(leaf.kind, iceberg.FloatType | iceberg.DoubleType)):
            continue
        column = table.column(leaf.path[0])
        for name in leaf.path[1:]:
            column = pc.struct_field(column, name)
        counts[leaf.field_id] = pc.sum(pc.is_nan(column)).as_py() or 0
    return counts


def file_metrics(
    footer: pq.FileMetaData,
    leaves: Sequence[Leaf],
    *,
    nan_counts: Mapping[int, int],
) -> FileMetrics:
    """The statistics of a finished file.

    Args:
        footer: Its Parquet footer.
        leaves: `leaves_of` its schema.
        nan_counts: Sums of `count_nans` over everything written to it.
    """
    metrics = FileMetrics(split_offsets=_split_offsets(footer), nan_value_counts=dict(nan_counts))
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    for index, leaf in enumerate(leaves):
        if leaf.field_id > USER_FIELD_ID_MAX:
            continue
        chunks = [group.column(index) for group in groups]
        metrics.column_sizes[leaf.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        statistics = [chunk.statistics for chunk in chunks]
        if not leaf.has_counts or not all(each and each.has_null_count for each in statistics):
            continue
        metrics.value_counts[leaf.field_id] = footer.num_rows
        metrics.null_value_counts[leaf.field_id] = sum(each.null_count for each in statistics)
        if leaf.mode.bounds:
            _add_bounds(metrics, leaf, chunks)
    return metrics


def row_group_metrics(
    footer: pq.FileMetaData, row_group: int, leaves: Sequence[tuple[int, Leaf]]
) -> FileMetrics:
    """Counts and bounds in one row group, for skipping it; NaN counts are not known.

    Args:
        footer: The file's footer.
        row_group: Its index.
        leaves: Parquet column index and column; stored types must equal the `kind`s.
    """
    metrics = FileMetrics()
    group = footer.row_group(row_group)
    for index, leaf in leaves:
        chunk = group.column(index)
        statistics = chunk.statistics
        if leaf.field_id > USER_FIELD_ID_MAX or statistics is None:
            continue
        if statistics.has_null_count:
            metrics.value_counts[leaf.field_id] = chunk.num_values
            metrics.null_value_counts[leaf.field_id] = statistics.null_count
            _add_bounds(metrics, leaf, [chunk])
    return metrics


def _add_bounds(metrics: FileMetrics, leaf: Leaf, chunks: Sequence[Any]) -> None:
    lows, highs = [], []
    for chunk in chunks:
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return
        if statistics.has_min_max:
            lows.append(statistics.min_raw)
            highs.append(statistics.max_raw)
        elif statistics.null_count < chunk.num_values and not _is_float(leaf.kind):
            return
    if not lows or any(value != value for value in (*lows, *highs)):  # foreign writers: NaN
        return
    decode = _decimal_order if isinstance(leaf.kind, iceberg.DecimalType) else _same
    low, high = min(map(decode, lows)), max(map(decode, highs))
    lower = lower_bound(low, leaf.kind, leaf.mode.truncate_length)
    upper = upper_bound(high, leaf.kind, leaf.mode.truncate_length)
    metrics.lower_bounds[leaf.field_id] = lower
    if upper is not None:
        metrics.upper_bounds[leaf.field_id] = upper


def lower_bound(value: Any, kind: iceberg.PrimitiveType, length: int | None) -> bytes:
    """A value at most `value`, serialized; `value` as Parquet holds it (text as UTF-8)."""
    if length is not None and isinstance(kind, iceberg.StringType):
        return str(value, "utf-8")[:length].encode()
    if length is not None and isinstance(kind, iceberg.BinaryType):
        return bytes(value[:length])
    return serialize_value(value, kind)


def upper_bound(value: Any, kind: iceberg.PrimitiveType, length: int | None) -> bytes | None:
    """A value at least `value`, serialized; None if there is no such short one."""
    if length is not None and isinstance(kind, iceberg.StringType):
        return _round_up_text(str(value, "utf-8"), length)
    if length is not None and isinstance(kind, iceberg.BinaryType):
        return _round_up_bytes(value, length)
    return serialize_value(value, kind)


def serialize_value(value: Any, kind: iceberg.PrimitiveType) -> bytes:
    """Single-value serialization (spec: Appendix D) of a value as Parquet holds it.

    Decimals come as unscaled int; the result is the shortest two's complement, big endian.
    """
    if isinstance(kind, iceberg.DecimalType):
        size_bytes = (value + (value < 0)).bit_length() // 8 + 1
        return bytes(value.to_bytes(size_bytes, "big", signed=True))
    if isinstance(kind, iceberg.BooleanType):
        return b"\x01" if value else b"\x00"
    if isinstance(kind, iceberg.FloatType):
        return struct.pack("<f", value)
    if isinstance(kind, iceberg.DoubleType):
        return struct.pack("<d", value)
    if isinstance(kind, iceberg.IntegerType | iceberg.DateType):
        return struct.pack("<i", value)
    if isinstance(value, int):
        return struct.pack("<q", value)
    return bytes(value)


def _round_up_text(text: str, length: int) -> bytes | None:
    if len(text) <= length:
        return text.encode()
    points = [ord(char) for char in text[:length]]
    while points:
        point = points.pop() + 1
        if point in _SURROGATES:
            point = _SURROGATES.stop
        if point <= _CODE_POINT_MAX:
            return "".join(map(chr, [*points, point])).encode()
    return None


def _round_up_bytes(value: bytes, length: int) -> bytes | None:
    if len(value) <= length:
        return bytes(value)
    kept = value[:length].rstrip(b"\xff")
    return bytes(kept[:-1]) + bytes([kept[-1] + 1]) if kept else None


def _split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    offsets = []
    for index in range(footer.num_row_groups):
        chunk = footer.row_group(index).column(0)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            start = min(start, chunk.dictionary_page_offset)
        offsets.append(start)
    return tuple(sorted(offsets))


def _is_float(kind: iceberg.PrimitiveType) -> bool:
    return isinstance(kind, iceberg.FloatType | iceberg.DoubleType)


def _decimal_order(value: int | bytes) -> int:
    return value if isinstance(value, int) else int.from_bytes(value, "big", signed=True)


def _same(value: Any) -> Any:
    return value
