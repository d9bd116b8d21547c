"""The tables that a stream would make, from the first messages of their topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from tableformat.cdc.many.source import EARLIEST, POLL_MESSAGES, POLL_S, STILL_MS, MessageSource
from tableformat.cdc.many.stream_tables import StreamTables
from tableformat.cdc.many.table_making import NewTable, plan_table
from tableformat.errors import TableError


def plan_new_tables(
    tables: StreamTables,
    source: MessageSource,
    partitions: Mapping[str, int],
    now_ms: Callable[[], float],
) -> dict[str, NewTable | str]:
    """Tables that do not exist, as they would be made, or why one cannot; nothing is written.

    Args:
        tables: Of the stream.
        source: Brings the messages; nothing is read from it afterwards.
        partitions: How many each topic has.
        now_ms: The monotonic clock.
    """
    missing = [each for each in tables.tables.values() if not each.exists]
    first = _first_messages(tables, source, partitions, now_ms)
    found: dict[str, NewTable | str] = {}
    for table in missing:
        if table.name not in first:
            found[table.name] = "its topics are empty"
            continue
        events, decoder = pa.concat_tables(first[table.name]), tables.settings.decoder
        try:
            found[table.name] = plan_table(table.name, events, table.options, decoder)
        except TableError as error:
            found[table.name] = str(error)
    return found


def _first_messages(
    tables: StreamTables,
    source: MessageSource,
    partitions: Mapping[str, int],
    now_ms: Callable[[], float],
) -> dict[str, list[pa.Table]]:
    """Some messages of each table that does not exist and has any."""
    missing = [each for each in tables.tables.values() if not each.exists]
    places = [place for each in missing for place in each.places(partitions)]
    ends = {place: end for place, end in source.ends(places).items() if end > 0}
    source.assign(dict.fromkeys(ends, EARLIEST))
    first: dict[str, list[pa.Table]] = {}
    table_of = tables.table_of
    started_ms = now_ms()
    while ends and now_ms() - started_ms < STILL_MS:
        polled = source.poll(POLL_MESSAGES, POLL_S)
        for place, messages in polled.messages.items():
            first.setdefault(table_of[place[0]], []).append(messages)
        done = {place for place, at in polled.read.items() if at >= ends.get(place, 0)}
        done |= {place for place in ends if table_of[place[0]] in first}
        for place in done & set(ends):
            del ends[place]
            source.unassign([place])
    return first
