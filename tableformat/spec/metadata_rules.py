"""What table metadata must satisfy beyond its JSON types. Checked on every file that is read.

One predicate per rule; each raises `CorruptDataError`. Sources: the spec's Table Metadata section,
and the checks of the reference implementation's `TableMetadata` constructor.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH

from tableformat.errors import CorruptDataError
from tableformat.spec.metadata_models import last_sequence_number, next_row_id

LONG_MAX = (1 << 63) - 1
CLOCK_SKEW_MS_MAX = 60_000  # how far back Java lets log entries go (R78)
JSON_DEPTH_MAX = 200  # a level of structs costs three
# A decimal has 38 digits; writing 1e999999999 as an integer takes minutes.
_HUGE_EXPONENT = re.compile(r"[eE][+-]?0*[1-9][0-9]{3,}")
_DEFAULTS = ("initial-default", "write-default")

_REQUIRED = ("location", "last-updated-ms", "last-column-id")
_REQUIRED_V2 = (
    "table-uuid",
    "last-sequence-number",
    "schemas",
    "current-schema-id",
    "partition-specs",
    "default-spec-id",
    "last-partition-id",
    "sort-orders",
    "default-sort-order-id",
)
_LONGS = ("last-sequence-number", "last-updated-ms", "last-column-id", "next-row-id")
_SNAPSHOT_LONGS = ("sequence-number", "timestamp-ms", "first-row-id", "added-rows")
_LISTS = (
    "schemas",
    "partition-specs",
    "sort-orders",
    "snapshots",
    "statistics",
    "partition-statistics",
    "snapshot-log",
    "metadata-log",
)


def check_raw_metadata(raw: Mapping[str, Any], version: int) -> None:
    """Presence, ranges and depth, before any model sees the values."""
    required = _REQUIRED if version == 1 else _REQUIRED + _REQUIRED_V2
    for key in (*required, "next-row-id") if version > 2 else required:
        if raw.get(key) is None:
            raise CorruptDataError("table metadata lacks a required field", key=key)
    for key in _LONGS:
        _check_long(raw, key)
    for key in _LISTS:
        if not isinstance(raw.get(key) or [], list):
            raise CorruptDataError("table metadata has a value of the wrong type", key=key)
    _check_depth([value for key, value in raw.items() if key != "snapshots"])
    _check_defaults([raw.get("schemas"), raw.get("schema")])


def check_metadata(metadata: TableMetadata) -> None:
    """Rules that tie the parts together."""
    _check_unique("snapshot-id", (one.snapshot_id for one in metadata.snapshots))
    _check_unique("schema-id", (one.schema_id for one in metadata.schemas))
    _check_unique("spec-id", (one.spec_id for one in metadata.partition_specs))
    _check_unique("order-id", (one.order_id for one in metadata.sort_orders))
    _check_location(metadata.location)
    _check_current_schema(metadata)
    _check_refs(metadata)
    _check_parents(metadata)
    _check_sequence_numbers(metadata)
    _check_times(metadata)


def check_raw_snapshot(raw: Mapping[str, Any], version: int) -> None:
    """Ids, numbers and the summary of one snapshot."""
    snapshot_id = raw.get("snapshot-id")
    if type(snapshot_id) is not int or not 0 <= snapshot_id <= LONG_MAX:
        raise CorruptDataError("a snapshot has no usable id", value=repr(snapshot_id)[:80])
    for key in _SNAPSHOT_LONGS:
        _check_long(raw, key, snapshot_id=snapshot_id)
    if raw.get("timestamp-ms") is None:
        raise CorruptDataError("a snapshot has no timestamp-ms", snapshot_id=snapshot_id)
    if version > 1 and not isinstance(raw.get("manifest-list"), str):
        raise CorruptDataError("a snapshot has no manifest-list", snapshot_id=snapshot_id)
    summary = raw.get("summary")
    if summary is not None and not (
        isinstance(summary, dict) and all(isinstance(value, str) for value in summary.values())
    ):
        raise CorruptDataError("a summary is not a map of strings", snapshot_id=snapshot_id)
    if any(isinstance(value, dict | list) for key, value in raw.items() if key != "summary"):
        _check_depth([raw])


def _check_long(raw: Mapping[str, Any], key: str, snapshot_id: int | None = None) -> None:
    value = raw.get(key)
    if value is None:
        return
    if type(value) is not int or not 0 <= value <= LONG_MAX:
        error = CorruptDataError(
            "table metadata has a number out of range", key=key, value=repr(value)[:80]
        )
        raise error if snapshot_id is None else error.with_context(snapshot_id=snapshot_id)


def _check_depth(value: list[Any]) -> None:
    level: list[Any] = [value]
    for _ in range(JSON_DEPTH_MAX):
        below: list[Any] = []
        for one in level:
            children: Iterable[Any] = one.values() if isinstance(one, dict) else one
            below.extend(child for child in children if isinstance(child, dict | list))
        if not below:
            return
        level = below
    raise CorruptDataError("table metadata is nested too deeply", depth_max=JSON_DEPTH_MAX)


def _check_defaults(value: Any) -> None:
    """Defaults of columns, at any level of a schema that is not nested too deeply."""
    if isinstance(value, dict):
        is_decimal = str(value.get("type")).startswith("decimal")
        for key in _DEFAULTS if is_decimal else ():
            default = value.get(key)
            if isinstance(default, str) and _HUGE_EXPONENT.search(default):
                raise CorruptDataError(
                    "a column's default is no decimal", key=key, value=default[:80]
                )
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            _check_defaults(one)


def _check_unique(key: str, ids: Iterable[int]) -> None:
    seen: set[int] = set()
    for one in ids:
        if one in seen:
            raise CorruptDataError("table metadata has one id twice", key=key, value=one)
        seen.add(one)


def _check_location(location: str) -> None:
    if not location.strip():
        raise CorruptDataError("table metadata has an empty location")


def _check_current_schema(metadata: TableMetadata) -> None:
    if metadata.schema_by_id(metadata.current_schema_id) is None:
        raise CorruptDataError(
            "current-schema-id names no schema", schema_id=metadata.current_schema_id
        )


def _check_refs(metadata: TableMetadata) -> None:
    for name, ref in metadata.refs.items():
        if metadata.snapshot_by_id(ref.snapshot_id) is None:
            raise CorruptDataError(
                "a ref points at an unknown snapshot", ref=name, snapshot_id=ref.snapshot_id
            )
    main = metadata.refs.get(MAIN_BRANCH)
    head = None if main is None else main.snapshot_id
    if head != metadata.current_snapshot_id:
        raise CorruptDataError(
            "current-snapshot-id is not the head of main",
            current_snapshot_id=metadata.current_snapshot_id,
            main=head,
        )


def _check_parents(metadata: TableMetadata) -> None:
    """No snapshot is its own ancestor. Unknown parents are legal: they expired."""
    parents = {one.snapshot_id: one.parent_snapshot_id for one in metadata.snapshots}
    proven: set[int] = set()
    for start in parents:
        path: set[int] = set()
        current: int | None = start
        while current is not None and current in parents and current not in proven:
            if current in path:
                raise CorruptDataError("a snapshot is its own ancestor", snapshot_id=current)
            path.add(current)
            current = parents[current]
        proven |= path


def _check_sequence_numbers(metadata: TableMetadata) -> None:
    if metadata.format_version == 1:
        return
    last = last_sequence_number(metadata)
    numbers = {one.snapshot_id: one.sequence_number or 0 for one in metadata.snapshots}
    for snapshot in metadata.snapshots:
        number = numbers[snapshot.snapshot_id]
        if number > last:
            raise CorruptDataError(
                "a snapshot's sequence number is above last-sequence-number",
                snapshot_id=snapshot.snapshot_id,
                sequence_number=number,
                last_sequence_number=last,
            )
        parent = numbers.get(snapshot.parent_snapshot_id or 0, 0)
        # Snapshots of format version 1 all have number 0.
        if parent and number <= parent:
            raise CorruptDataError(
                "a snapshot's sequence number is not above its parent's",
                snapshot_id=snapshot.snapshot_id,
                sequence_number=number,
            )


def with_free_row_ids(metadata: TableMetadata) -> TableMetadata:
    """With a `next-row-id` above the rows of all snapshots.

    It is, but for what transactions of DuckDB 1.5 make of it, where catalogs take their numbers as
    they are. Rows of others must not get the same ids.

    Raises:
        CorruptDataError: There is no such number.
    """
    if metadata.format_version < 3:
        return metadata
    ends = (
        one.first_row_id + (one.added_rows or 0)
        for one in metadata.snapshots
        if one.first_row_id is not None  # written before the upgrade to version 3
    )
    free = max(ends, default=0)
    if free > LONG_MAX:
        raise CorruptDataError("a snapshot's row ids reach beyond all numbers")
    if free <= next_row_id(metadata):
        return metadata
    return metadata.model_copy(update={"next_row_id": free})


def _check_times(metadata: TableMetadata) -> None:
    for name, log in (
        ("snapshot-log", [entry.timestamp_ms for entry in metadata.snapshot_log]),
        ("metadata-log", [entry.timestamp_ms for entry in metadata.metadata_log]),
    ):
        for before, after in itertools.pairwise([*log, metadata.last_updated_ms]):
            if after < before - CLOCK_SKEW_MS_MAX:
                raise CorruptDataError(
                    "time goes back by more than a minute",
                    key=name,
                    before_ms=before,
                    after_ms=after,
                )
