"""When the source made a change, as its events say it: what freshness is counted from."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

SOURCE, TS_MS = "source", "ts_ms"
FLATTENED_TS_MS = "__source_ts_ms"  # ExtractNewRecordState with add.fields=source.ts_ms


def declare_source_time(fields: dict[str, pa.DataType], *, flattened: bool) -> None:
    """Add the time to the fields of a JSON object; one that is declared there already stays."""
    if flattened:
        fields.setdefault(FLATTENED_TS_MS, pa.int64())
        return
    known = {child.name: child.type for child in fields.get(SOURCE, ())}
    known.setdefault(TS_MS, pa.int64())
    fields[SOURCE] = pa.struct(list(known.items()))


def latest_source_ms(events: pa.Table, *, flattened: bool) -> int | None:
    """The highest source time of parsed events, in milliseconds since 1970; None without any."""
    if flattened:
        times = events.column(FLATTENED_TS_MS)
    else:
        times = pc.struct_field(events.column(SOURCE), TS_MS)
    return latest_ms(times)


def latest_ms(times: pa.Array | pa.ChunkedArray | None) -> int | None:
    """The highest of some times; None without any, or where they are no numbers."""
    if times is None or not pa.types.is_integer(times.type):
        return None
    latest: int | None = pc.max(times).as_py()
    return latest


def latest_of(times_ms: Iterable[int | None]) -> int | None:
    """The latest of some times that may be unknown; None if all are."""
    return max((each for each in times_ms if each is not None), default=None)
