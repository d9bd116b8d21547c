"""Change events: batches of lines through the vectorized decoders.

The first byte of an input chooses the options; every line after it is an event, with its message
key in front of a tab where there is one. An empty line is an event without a value.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import pyarrow as pa

from tableformat.cdc.events import EventBatch
from tableformat.cdc.formats import ChangeFormat, choose_format
from tableformat.errors import InvalidInputError
from tableformat.table_definition import define_schema
from tests.fuzz.mutate_bytes import BYTE_MUTATORS
from tests.fuzz.mutate_text import JSON_MUTATORS
from tests.fuzz.target import Accepted, Mutator, Target

ROWS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int32()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("score", pa.float64()),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.time64("us")),
        pa.field("at", pa.timestamp("us")),
        pa.field("zoned", pa.timestamp("us", tz="UTC")),
        pa.field("uuid", pa.uuid()),
        pa.field("raw", pa.binary()),
        pa.field("code", pa.binary(4)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("place", pa.struct([("x", pa.float64()), ("names", pa.list_(pa.string()))])),
        pa.field("numbers", pa.list_(pa.int32())),
        pa.field("days", pa.list_(pa.date32())),
        pa.field("prices", pa.list_(pa.decimal128(10, 2))),
        pa.field("point", pa.struct([("wkb", pa.binary()), ("at", pa.timestamp("us"))])),
    ]
)
_EVOLVE = {"schema-evolution": "full"}
_SAID = {
    "timestamp-unit": "us",
    "time-unit": "us",
    "decimals": "precise",
    "binaries": "base64",
}
_JSON = {**_EVOLVE, "new-columns": "json"}
DEBEZIUM: tuple[Mapping[str, str], ...] = (
    _SAID,
    {"layout": "flattened", **_SAID},
    {"decimals": "text", "binaries": "hex", "timestamp-unit": "ms", "unknown-columns": "ignore"},
    {"encodings": "price=variable,point.at=ms", "sequence": "source.lsn", "deletes": "row"},
    {**_SAID, "decimals": "double", "on-truncate": "ignore", "on-unknown-op": "ignore", **_JSON},
    {"layout": "flattened", "on-unavailable-value": "null", "deletes": "row", **_SAID, **_JSON},
    {"sequence": "source.file:text,source.pos", **_SAID},
    {},
    {"layout": "flattened", "unavailable-value": "hex:5f5f", **_EVOLVE},
    {**_SAID, "on-unavailable-value": "null", "encodings": "days=iso,at=iso"},
)
CHANGELOG: tuple[Mapping[str, str], ...] = (
    {},
    {"layout": "flat"},
    {"unknown-columns": "ignore", "deletes": "row", "encodings": "price=precise,at=iso"},
    {"sequence": "seq", **_EVOLVE},
    {"layout": "flat", "kind-field": "kind", **_EVOLVE},
)


def _batch(data: bytes) -> EventBatch:
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for line in data[1:].split(b"\n"):
        key, tab, value = line.rpartition(b"\t")
        keys.append(key if tab else None)
        values.append(value or None)
    columns = {"value": pa.array(values, pa.binary())}
    if any(key is not None for key in keys):
        columns["key"] = pa.array(keys, pa.binary())
    return EventBatch(pa.record_batch(columns))


def _parser(name: str, choices: Sequence[Mapping[str, str]]) -> Callable[[bytes], None]:
    @lru_cache
    def built(number: int) -> ChangeFormat:
        choice = choose_format(name, choices[number])
        return choice.build(define_schema(ROWS, ["id"]))

    def parse(data: bytes) -> None:
        change_format = built((data or b"0")[0] % len(choices))
        events = _batch(data)
        parsed = change_format.parse(events)
        parsed.changes.validate(full=True)
        parsed.bad.validate(full=True)
        if not parsed.schema_changes and len(parsed.rows) != parsed.changes.num_rows:
            raise Accepted("changes without the event they came from")
        for reason in parsed.bad.column("reason").to_pylist():
            if len(reason.splitlines()) != 1:
                raise Accepted(f"the reason of a bad record is not one line: {reason!r}")

    return parse


def _one_line(inner: Mutator) -> Mutator:
    """Change one event and leave its neighbours good: they must not be lost."""

    def mutate(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
        first, lines = data[:1] or b"0", data[1:].split(b"\n")
        at = rng.randrange(len(lines))
        others = [line for each in corpus[:8] for line in each[1:].split(b"\n")]
        key, tab, value = lines[at].rpartition(b"\t")
        if tab and rng.random() < 0.3:
            key = inner(rng, key, others)
        else:
            value = inner(rng, value, others)
        lines[at] = (key + tab + value).replace(b"\n", b" ")
        return first + b"\n".join(lines)

    return mutate


def _other_options(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return bytes([rng.randrange(48, 58)]) + data[1:]


def _more_events(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    lines = data[1:].split(b"\n")
    lines += rng.choice(corpus)[1:].split(b"\n")
    rng.shuffle(lines)
    return data[:1] + b"\n".join(lines[:50])


_MUTATORS = (
    *(_one_line(each) for each in JSON_MUTATORS),
    *(_one_line(each) for each in JSON_MUTATORS),
    *(_one_line(each) for each in BYTE_MUTATORS),
    _other_options,
    _more_events,
)
DEBEZIUM_JSON = Target(
    name="debezium_json",
    parse=_parser("debezium-json", DEBEZIUM),
    mutators=_MUTATORS,
    errors=(InvalidInputError,),
    inputs=2_500,
)
CHANGELOG_JSON = Target(
    name="changelog_json",
    parse=_parser("changelog-json", CHANGELOG),
    mutators=_MUTATORS,
    errors=(InvalidInputError,),
    inputs=2_500,
)
