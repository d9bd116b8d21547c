"""Order rows as TPC-C has them, as a change stream of any length, and what must be left of it.

Every event is drawn from a seed, all at once by NumPy:

- the key is (w_id, d_id, o_id); of all keys the first fifth gets four fifths of the events;
- the first event of a key is an insert, most others are updates, one in twenty of all is a delete,
  and what follows a delete inserts the key again;
- an update moves the order to another `region`, by which the table is partitioned, one time in ten;
- one event in a hundred arrives late: up to `LATE_EVENTS` others overtake it, within its file, or
  with `late_across_files` also into the next ones.

`source.lsn` says what happened first; `version` is the same number as a column.

`OrderFold` is the oracle: the newest event of each key, by DuckDB's own JSON reader and SQL. It
shares no code with the product.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

KEY = ("w_id", "d_id", "o_id")
PARTITION_BY = ("region",)
OPTIONS = {  # of the format `debezium-json`
    "sequence": "source.lsn",
    "decimals": "text",
    "timestamp-unit": "us",
}
WAREHOUSES, DISTRICTS = 20, 10
KEYS_PER_EVENT = 0.3
HOT_KEYS, HOT_EVENTS = 0.2, 0.8
DELETES = 0.05
MOVES = 0.1
LATE, LATE_EVENTS = 0.01, 2000
FIRST_LSN, LSN_STEP = 33_554_432, 56
FIRST_ENTRY_US = 1_700_000_000_000_000
REGIONS = pa.array(["africa", "americas", "asia", "europe", "oceania"])
STATES = pa.array(["new", "paid", "picked", "packed", "shipped", "delivered"])
NOTES = pa.array([f"note {number:03d}: leave at the {place}" for number, place in
                  enumerate(["door", "desk", "neighbour's", "garage", "shop"] * 40)])  # fmt: skip
OPERATIONS = pa.array(["c", "u", "d"])
INSERT, UPDATE, DELETE = range(3)

Before = Literal["full", "key"]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def orders_schema() -> pa.Schema:
    """The table's Arrow schema; the key and the partition column are not nullable."""
    fields = {
        "w_id": pa.int32(),
        "d_id": pa.int32(),
        "o_id": pa.int64(),
        "region": pa.string(),
        "c_id": pa.int64(),
        "status": pa.string(),
        "carrier_id": pa.int32(),
        "ol_cnt": pa.int32(),
        "amount": pa.decimal128(12, 2),
        "entry": pa.timestamp("us"),
        "note": pa.string(),
        "version": pa.int64(),
    }
    needed = (*KEY, "region")
    return pa.schema([pa.field(n, kind, nullable=n not in needed) for n, kind in fields.items()])


@dataclass(frozen=True, slots=True)
class OrderEvents:
    """Events in the order in which things happened, and in which order they arrive.

    Attributes:
        operation: `INSERT`, `UPDATE` or `DELETE`, shape (events,).
        previous: Number of the key's event before this one, -1 for the first.
        rows: The order after each event (before it, of a delete), one row per event.
        files: The numbers of the events of each file, in order of arrival.
    """

    operation: Integers
    previous: Integers
    rows: pa.Table
    files: tuple[Integers, ...]

    @classmethod
    def draw(
        cls,
        events: int,
        *,
        files: int,
        seed: int,
        late_across_files: bool = False,
        keys: int | None = None,
        first_event: int = 0,
    ) -> OrderEvents:
        """Draw a change stream; equal arguments give equal streams.

        Args:
            events: How many.
            files: In how many files, of about the same size.
            seed: Of everything that is random.
            late_across_files: Late events may arrive in a later file than their own.
            keys: How many orders there are; None: three for ten events.
            first_event: How many events other draws of the same stream had before. Each draw
                begins with orders it does not know, so inserts may repeat an order.
        """
        draw = np.random.default_rng(seed)
        key = _keys(events, keys or max(int(events * KEYS_PER_EVENT), 10), draw)
        order = np.argsort(key, kind="stable")
        first = np.ones(events, np.bool_)
        first[1:] = key[order][1:] != key[order][:-1]
        operation = np.empty(events, np.int64)
        operation[order] = _operations(first, draw)
        previous = np.full(events, -1, np.int64)
        previous[order[1:]] = np.where(first[1:], -1, order[:-1])
        rows = _rows(key, order, operation, first_event, draw)
        bounds = np.linspace(0, events, files + 1).astype(np.int64)
        arrival = np.arange(events, dtype=np.float64)
        late = draw.random(events) < LATE
        arrival[late] += draw.integers(1, LATE_EVENTS, int(late.sum())) + 0.5
        if not late_across_files:
            last = bounds[1:][np.searchsorted(bounds[1:], np.arange(events), side="right")]
            arrival = np.minimum(arrival, last - 0.5)
        arrived = np.argsort(arrival, kind="stable")
        parts = tuple(arrived[start:stop] for start, stop in itertools.pairwise(bounds))
        return cls(operation=operation, previous=previous, rows=rows, files=parts)

    def typed(self, numbers: Integers) -> pa.Table:
        """Some events as typed rows with their kind in the column `op`."""
        kinds = OPERATIONS.take(pa.array(self.operation[numbers]))
        return self.rows.take(pa.array(numbers)).append_column("op", kinds)

    def json_lines(self, numbers: Integers, *, before: Before = "key") -> memoryview:
        """Some events as Debezium's envelopes, one per line.

        Args:
            numbers: Which events.
            before: What updates and deletes carry as the old row: `full` (all of it), or `key`
                (deletes their key, updates null), PostgreSQL's default.
        """
        texts = {name: _json(self.rows[name], numbers) for name in self.rows.column_names}
        operation = self.operation[numbers]
        deleted = pa.array(operation == DELETE)
        if before == "full":
            old_numbers = np.maximum(self.previous[numbers], 0)
            olds = {name: _json(self.rows[name], old_numbers) for name in self.rows.column_names}
            with_old, old = pa.array(operation != INSERT), _objects(olds)
        else:
            with_old, old = deleted, _objects({name: texts[name] for name in KEY})
        lines = pc.binary_join_element_wise(
            '{"before":',
            pc.if_else(with_old, old, "null"),
            ',"after":',
            pc.if_else(deleted, "null", _objects(texts)),
            ',"source":{"version":"3.0.0.Final","connector":"postgresql","name":"tpcc",',
            '"snapshot":"false","db":"tpcc","schema":"public","table":"orders","txId":',
            pa.array(numbers).cast(pa.string()),
            ',"lsn":',
            texts["version"],
            ',"xmin":null},"transaction":null,"op":"',
            OPERATIONS.take(pa.array(operation)),
            '","ts_ms":1700000000000}\n',
            "",
        )
        size = pc.sum(pc.binary_length(lines)).as_py() or 0
        return memoryview(lines.buffers()[2])[:size]

    def write(self, folder: Path, *, before: Before = "key") -> list[Path]:
        """Write every file as JSON lines, `orders-<n>.jsonl`; returns them in order."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for number, events in enumerate(self.files):
            path = folder / f"orders-{number:04d}.jsonl"
            path.write_bytes(self.json_lines(events, before=before))
            paths.append(path)
        return paths


class OrderFold:
    """The orders after more and more event files, in a DuckDB table `orders_now`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.duck = connection
        row = ", ".join(f"{name} {_duck_type(kind)}" for name, kind in _FIELDS.items())
        columns = {
            "before": f"STRUCT({row})",
            "after": f"STRUCT({row})",
            "source": "STRUCT(lsn BIGINT)",
            "op": "VARCHAR",
        }
        self._columns = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
        self.duck.execute(f"CREATE OR REPLACE TABLE newest (lsn BIGINT, op VARCHAR, {row})")
        self.duck.execute(
            "CREATE OR REPLACE VIEW orders_now AS SELECT * EXCLUDE (lsn, op) "
            "REPLACE (make_timestamp(entry) AS entry) FROM newest WHERE op <> 'd'"
        )

    def add(self, path: Path) -> None:
        """Apply one more file, or all that a glob pattern names."""
        keys = ", ".join(KEY)
        self.duck.execute(
            f"""
            CREATE OR REPLACE TABLE newest AS
            SELECT DISTINCT ON ({keys}) * FROM (
                SELECT * FROM newest
                UNION ALL BY NAME
                SELECT source.lsn AS lsn, op, unnest(CASE WHEN op = 'd' THEN before ELSE after END)
                FROM read_json('{path}', format = 'newline_delimited',
                               columns = {{{self._columns}}})
            ) ORDER BY {keys}, lsn DESC
            """
        )

    def differences(self, relation: str) -> int:
        """Rows that only one of `relation` (a table function) and the fold has."""
        names = ", ".join(_FIELDS)
        one, other = f"SELECT {names} FROM {relation}", f"SELECT {names} FROM orders_now"
        found = self.duck.execute(
            f"SELECT (SELECT count(*) FROM ({one} EXCEPT ALL {other})) + "
            f"(SELECT count(*) FROM ({other} EXCEPT ALL {one}))"
        ).fetchone()
        assert found is not None
        return int(found[0])


_FIELDS = {field.name: field.type for field in orders_schema()}


def _keys(events: int, keys: int, draw: np.random.Generator) -> Integers:
    hot = int(keys * HOT_KEYS)
    is_hot = draw.random(events) < HOT_EVENTS
    return np.where(is_hot, draw.integers(0, hot, events), draw.integers(hot, keys, events))


def _operations(first: Mask, draw: np.random.Generator) -> Integers:
    """Operations of events sorted by key: a delete needs a row, an insert needs none."""
    drawn = (draw.random(len(first)) < DELETES / max(1 - first.mean(), DELETES)) & ~first
    begins = np.flatnonzero(drawn & ~np.concatenate([[False], drawn[:-1]]))
    number_in_run = np.zeros(len(first), np.int64)
    if len(begins):
        run = np.searchsorted(begins, np.arange(len(first)), side="right") - 1
        number_in_run = np.arange(len(first)) - begins[np.maximum(run, 0)]
    deletes = drawn & (number_in_run % 2 == 0)
    after_delete = np.concatenate([[False], deletes[:-1]]) & ~first
    return np.where(deletes, DELETE, np.where(first | after_delete, INSERT, UPDATE))


def _rows(
    key: Integers,
    order: Integers,
    operation: Integers,
    first_event: int,
    draw: np.random.Generator,
) -> pa.Table:
    events = len(key)
    inserts = operation == INSERT
    # By key: the number of the event that set a value is carried forward until the next one.
    born = _carried(inserts, order)
    moved = _carried(inserts | ((draw.random(events) < MOVES) & (operation == UPDATE)), order)
    touched = _carried(operation != DELETE, order)
    age = np.empty(events, np.int64)
    age[order] = np.arange(events)
    age = np.minimum((age - age[born]) // 2, len(STATES) - 1)
    number = np.arange(first_event, first_event + events, dtype=np.int64)
    draws = draw.integers(0, 1 << 40, events)
    carrier = pa.array((draws % 10 + 1)[born].astype(np.int32), mask=age < 3)
    cents = np.zeros((events, 2), np.int64)  # 128-bit unscaled values, the low word first
    cents[:, 0] = draws[touched] % 10_000_000
    money = pa.decimal128(12, 2)
    columns = {
        "w_id": pa.array((key % WAREHOUSES + 1).astype(np.int32)),
        "d_id": pa.array((key // WAREHOUSES % DISTRICTS + 1).astype(np.int32)),
        "o_id": pa.array(key // (WAREHOUSES * DISTRICTS) + 1),
        "region": REGIONS.take(pa.array(draws[moved] % len(REGIONS))),
        "c_id": pa.array(draws[born] % 3000 + 1),
        "status": STATES.take(pa.array(age)),
        "carrier_id": carrier,
        "ol_cnt": pa.array((draws[born] % 11 + 5).astype(np.int32)),
        "amount": pa.Array.from_buffers(money, events, [None, pa.py_buffer(cents)]),
        "entry": pa.array(FIRST_ENTRY_US + born * 1000).cast(pa.timestamp("us")),
        "note": NOTES.take(pa.array(draws[touched] % len(NOTES))),
        "version": pa.array(FIRST_LSN + LSN_STEP * number),
    }
    return pa.table(columns, schema=pa.schema([f.with_nullable(True) for f in orders_schema()]))


def _carried(sets: Mask, order: Integers) -> Integers:
    """For every event the key's newest event up to it that sets a value."""
    places = np.where(sets[order], np.arange(len(order)), 0)
    carried = np.empty(len(order), np.int64)
    carried[order] = order[np.maximum.accumulate(places)]
    return carried


def _json(column: pa.ChunkedArray, numbers: Integers) -> pa.StringArray:
    """Values as JSON texts; they hold nothing that JSON would have to escape."""
    values: Any = column.take(pa.array(numbers)).combine_chunks()
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    texts = values.cast(pa.string())
    if pa.types.is_string(values.type) or pa.types.is_decimal(values.type):
        texts = pc.binary_join_element_wise('"', texts, '"', "")
    return pc.fill_null(texts, "null")


def _objects(texts: dict[str, pa.StringArray]) -> pa.StringArray:
    parts: list[Any] = []
    for position, (name, values) in enumerate(texts.items()):
        parts += [f'{"," if position else "{"}"{name}":', values]
    return pc.binary_join_element_wise(*parts, "}", "")


def _duck_type(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "BIGINT"  # as it stands in JSON: microseconds
    if pa.types.is_decimal(kind):
        return "DECIMAL(12, 2)"
    return {pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.string(): "VARCHAR"}[kind]
