"""Values of a database, written as Debezium writes them, in every mode that says how: read back.

The writer below is a model of Debezium's converters in a few lines; it shares nothing with the
reader. Whatever is not said must be refused, and a placeholder is never a value.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import math
import re
import uuid
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tableformat.cdc.connect_schema import SEMANTICS
from tableformat.cdc.events import EventBatch
from tableformat.cdc.many.table_making import plan_table
from tableformat.cdc.many.table_options import TableOptions
from tableformat.cdc.registry.client import RegistrySettings
from tableformat.cdc.registry.decoder import RegistryDecoder
from tableformat.errors import InvalidInputError
from tableformat.table_definition import define_schema
from tests.support.change_events import batch_of, kinds_and, parse, reasons
from tests.support.fake_registry import Converter, FakeRegistry, fake_registry

FORMAT = "debezium-json"
ANY_TIME = settings(deadline=None)
TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(18, 4)),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.time64("us")),
        pa.field("at", pa.timestamp("us")),
        pa.field("raw", pa.binary()),
        pa.field("days", pa.list_(pa.date32())),
        pa.field("stamps", pa.list_(pa.timestamp("us"))),
        pa.field("numbers", pa.list_(pa.int64())),
        pa.field("uuids", pa.list_(pa.uuid())),
        pa.field("texts", pa.list_(pa.string())),
        pa.field("floats", pa.list_(pa.float64())),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int32()),
        pa.field("real", pa.float32()),
        pa.field("zoned", pa.timestamp("us", tz="UTC")),
        pa.field("open", pa.decimal128(18, 4)),
        pa.field("point", pa.struct([("x", pa.float64()), ("on", pa.date32())])),
        pa.field("prices", pa.list_(pa.decimal128(18, 4))),
        pa.field("raws", pa.list_(pa.binary())),
        pa.field("lists", pa.list_(pa.list_(pa.int64()))),
        pa.field("source", pa.string()),
    ]
)
SCHEMA = define_schema(TABLE, ["id"])
# What events call their own parts; a table may have columns of these names.
OWN_NAMES = ["source", "op", "before", "after", "ts_ms", "schema", "payload", "transaction"]
NUMBER = "number of "  # longer than the texts of a column
UNITS = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
SEMANTIC = {
    ("clock", "ms"): "io.debezium.time.Time",
    ("clock", "us"): "io.debezium.time.MicroTime",
    ("clock", "ns"): "io.debezium.time.NanoTime",
    ("at", "ms"): "io.debezium.time.Timestamp",
    ("at", "us"): "io.debezium.time.MicroTimestamp",
    ("at", "ns"): "io.debezium.time.NanoTimestamp",
}
VARIABLE = {
    "type": "struct",
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}],
}
DATE = {"type": "int32", "name": "io.debezium.time.Date"}

days = st.dates(dt.date(1000, 1, 1), dt.date(9999, 12, 31))
# To the millisecond, so that every unit can say it, and within what nanoseconds can say.
moments = st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1)).map(
    lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
)
prices = st.decimals(-(10**13), 10**13, places=4)
integers = st.integers(-(2**63), 2**63 - 1)
values = st.fixed_dictionaries(
    {
        "price": st.none() | prices,
        "day": st.none() | days,
        "clock": st.none() | moments.map(dt.datetime.time),
        "at": st.none() | moments,
        "raw": st.none() | st.binary(max_size=9),
        "days": st.none() | st.lists(st.none() | days, max_size=3),
        "stamps": st.none() | st.lists(st.none() | moments, max_size=3),
        "numbers": st.none() | st.lists(st.none() | integers, max_size=3),
        "uuids": st.none() | st.lists(st.none() | st.uuids(), max_size=3),
        "texts": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "floats": st.none() | st.lists(st.none() | st.floats(allow_nan=False), max_size=3),
        "flag": st.none() | st.booleans(),
        "small": st.none() | st.integers(-(2**31), 2**31 - 1),
        "real": st.none() | st.floats(width=32, allow_nan=False),
        "zoned": st.none() | moments.map(lambda at: at.replace(tzinfo=dt.UTC)),
        "open": st.none() | prices,
        "point": st.none()
        | st.fixed_dictionaries(
            {"x": st.none() | st.floats(allow_nan=False), "on": st.none() | days}
        ),
        "prices": st.none() | st.lists(st.none() | prices, max_size=3),
        "raws": st.none() | st.lists(st.none() | st.binary(max_size=9), max_size=3),
        "lists": st.none()
        | st.lists(st.none() | st.lists(st.none() | integers, max_size=3), max_size=3),
        "source": st.none() | st.text(max_size=3),
    }
)
modes = st.fixed_dictionaries(
    {
        "unit": st.sampled_from(list(UNITS)),
        "decimals": st.sampled_from(["precise", "text", "number", "float64"]),
        "binaries": st.sampled_from(["base64", "hex"]),
    }
)


def day_of(value: dt.date) -> int:
    return (value - dt.date(1970, 1, 1)).days


def written(name: str, value: Any, mode: dict[str, str]) -> Any:
    per_s = UNITS[mode["unit"]]
    match value:
        case None | str():
            return value
        case list():
            return [written(name, each, mode) for each in value]
        case dict():
            return {inner: written(inner, each, mode) for inner, each in value.items()}
        case dt.datetime() if value.tzinfo is not None:
            return value.isoformat().replace("+00:00", "Z")
        case Decimal() if name == "open" and mode["decimals"] != "text":
            return {"scale": 4, "value": written("", value, mode | {"decimals": "precise"})}
        case dt.datetime():
            micros = (value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
            return micros * per_s // 1_000_000
        case dt.date():
            return day_of(value)
        case dt.time():
            seconds = value.hour * 3600 + value.minute * 60 + value.second
            return seconds * per_s + value.microsecond * per_s // 1_000_000
        case Decimal():
            if mode["decimals"] != "precise":
                text = format(value, "f")
                return text if mode["decimals"] == "text" else f"{NUMBER}{text}"
            unscaled = int(value.scaleb(4))
            raw = unscaled.to_bytes((unscaled.bit_length() // 8) + 1, "big", signed=True)
            return base64.b64encode(raw).decode()
        case bytes():
            return value.hex() if mode["binaries"] == "hex" else base64.b64encode(value).decode()
        case uuid.UUID():
            return str(value)
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
    return value


def declared(mode: dict[str, str]) -> list[dict[str, Any]]:
    """The Connect schema of the row."""
    unit = mode["unit"]
    price: dict[str, Any] = {"type": "string"}
    if mode["decimals"] == "float64":  # CockroachDB's
        digits = {"precision": "18", "scale": "4"}
        price = {"type": "float64", "name": "decimal", "parameters": digits}
    elif mode["decimals"] != "text":
        name = "org.apache.kafka.connect.data.Decimal"
        price = {"type": "bytes", "name": name, "parameters": {"scale": "4"}}
    at = {"type": "int64", "name": SEMANTIC["at", unit]}
    raw = {"type": "string" if mode["binaries"] == "hex" else "bytes"}
    kinds: dict[str, dict[str, Any]] = {
        "id": {"type": "int64"},
        "price": price,
        "day": DATE,
        "clock": {"type": "int64", "name": SEMANTIC["clock", unit]},
        "at": at,
        "raw": raw,
        "days": {"type": "array", "items": DATE},
        "stamps": {"type": "array", "items": at},
        "numbers": {"type": "array", "items": {"type": "int64"}},
        "uuids": {
            "type": "array",
            "items": {"type": "string", "name": "io.debezium.data.Uuid"},
        },
        "texts": {"type": "array", "items": {"type": "string"}},
        "floats": {"type": "array", "items": {"type": "double"}},
        "flag": {"type": "boolean"},
        "small": {"type": "int32"},
        "real": {"type": "float"},
        "zoned": {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        "open": price if mode["decimals"] == "text" else VARIABLE,
        "point": {
            "type": "struct",
            "fields": [
                {"field": "x", "type": "double", "optional": True},
                {"field": "on", **DATE, "optional": True},
            ],
        },
        "prices": {"type": "array", "items": price},
        "raws": {"type": "array", "items": raw},
        "lists": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "int64", "optional": True}},
        },
        "source": {"type": "string"},
    }
    return [{"field": name, **kind} for name, kind in kinds.items()]


def event(
    row: dict[str, Any],
    mode: dict[str, str],
    *,
    layout: str,
    schema: bool,
    own_name: str = "source",
    first: str = "schema",
) -> str:
    after = {name: written(name, value, mode) for name, value in row.items()}
    op = {"op": "u", "source": {"connector": "x"}, "before": after, "after": after}
    payload: dict[str, Any] = after if layout == "flattened" else op
    if not schema:
        return with_numbers(json.dumps(payload))
    fields = [
        {**each, "field": own_name} if each["field"] == "source" else each
        for each in declared(mode)
    ]
    if layout == "envelope":
        fields = [{"field": "after", "type": "struct", "fields": fields}]
    both = {"schema": {"type": "struct", "fields": fields}, "payload": payload}
    return with_numbers(
        json.dumps(both, sort_keys=first == "payload", indent=first == "payload" or None)
    )


def with_numbers(text: str) -> str:
    """With all digits of a decimal, as the converter's `decimal.format=NUMERIC` writes them."""
    return re.sub(rf'"{NUMBER}([-0-9.]+)"', r"\1", text)


@pytest.mark.slow
@ANY_TIME
@given(
    rows=st.lists(values, min_size=1, max_size=5),
    mode=modes,
    layout=st.sampled_from(["envelope", "flattened"]),
    name=st.sampled_from(OWN_NAMES),
    first=st.sampled_from(["schema", "payload"]),
    schema=st.booleans(),
)
def test_value_that_is_read_is_the_one_that_was_written(
    rows: list[dict[str, Any]],
    mode: dict[str, str],
    layout: str,
    name: str,
    first: str,
    *,
    schema: bool,
) -> None:
    columns = [f.with_name(name) if f.name == "source" else f for f in TABLE]
    table = define_schema(pa.schema(columns), ["id"])
    rows = [
        {name: row["source"], "id": number, **{k: v for k, v in row.items() if k != "source"}}
        for number, row in enumerate(rows)
    ]
    events = batch_of(
        [event(row, mode, layout=layout, schema=schema, own_name=name, first=first) for row in rows]
    )
    said = {"layout": layout, "unknown_columns": "fail"}
    if not schema:
        unit = mode["unit"]
        decimals = {"number": "precise", "float64": "text"}.get(mode["decimals"], mode["decimals"])
        said |= {"timestamp_unit": unit, "time_unit": unit, "decimals": decimals}
        if mode["decimals"] == "float64":
            said["encodings"] = "open=variable"
    if not schema or mode["binaries"] == "hex":
        said["binaries"] = mode["binaries"]
    parsed = parse(FORMAT, table, events, **said)
    assert reasons(parsed) == []
    found = parsed.changes.select([f.name for f in columns]).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == rows


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as started:
        yield started


@pytest.mark.slow
@ANY_TIME
@given(
    rows=st.lists(values, min_size=1, max_size=5),
    mode=modes,
    layout=st.sampled_from(["envelope", "flattened"]),
    kind=st.sampled_from(["AVRO", "JSON"]),
)
def test_value_that_is_read_through_a_registry_is_the_one_that_was_written(
    registry: FakeRegistry, rows: list[dict[str, Any]], mode: dict[str, str], layout: str, kind: str
) -> None:
    rows = [{"id": number, **row} for number, row in enumerate(rows)]
    if mode["decimals"] in ("number", "float64"):  # JSON's alone
        mode = mode | {"decimals": "precise"}
    written_as = Converter(registry, kind)
    messages = []
    for row in rows:
        message = json.loads(event(row, mode, layout=layout, schema=True))
        fields = message["schema"]["fields"]
        if layout == "envelope":  # of its parts Avro writes those that the schema names
            fields = fields[0]["fields"]
            message["schema"]["fields"].append({"field": "op", "type": "string"})
            message["payload"] = {name: message["payload"][name] for name in ("after", "op")}
        for each in fields:
            each["optional"] = each["field"] != "id"
            if "items" in each:
                each["items"] = {**each["items"], "optional": True}
        messages.append(written_as.write(message))
    said = {"binaries": "hex"} if mode["binaries"] == "hex" else {}
    decoded = RegistryDecoder(RegistrySettings(registry.url)).decode(batch_of(messages))
    parsed = parse(FORMAT, SCHEMA, decoded, layout=layout, unknown_columns="fail", **said)
    assert reasons(parsed) == []
    found = parsed.changes.select([f.name for f in TABLE]).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == rows


@ANY_TIME
@given(
    digits=st.none() | st.integers(1, 38),
    scale=st.integers(0, 38),
    kind=st.sampled_from(["AVRO", "JSON", None]),
    data=st.data(),
)
def test_decimal_of_any_digits_makes_a_column_that_holds_it(
    registry: FakeRegistry, digits: int | None, scale: int, kind: str | None, data: st.DataObject
) -> None:
    """Also of more digits behind the point than it has (PostgreSQL's `numeric(3,5)`)."""
    unscaled = data.draw(st.integers(-(10 ** (digits or 38)) + 1, 10 ** (digits or 38) - 1))
    parameters = {"scale": str(scale)}
    if digits is not None:
        parameters["connect.decimal.precision"] = str(digits)
    name = "org.apache.kafka.connect.data.Decimal"
    raw = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    message = {
        "schema": row_schema({"type": "bytes", "name": name, "parameters": parameters}),
        "payload": {"id": 1, "x": base64.b64encode(raw).decode()},
    }
    key = {"schema": row_schema(), "payload": {"id": 1}}
    write = Converter(registry, kind).write if kind else lambda each: json.dumps(each).encode()
    decoder = RegistryDecoder(RegistrySettings(registry.url)) if kind else None
    events = pa.table({"value": [write(message)], "key": [write(key)]})
    options = TableOptions.of({"layout": "flattened"})
    made = plan_table("shop.t", events, options, decoder)
    assert str(made.schema.find_type("x")) == f"decimal({max(digits or 38, scale)}, {scale})"
    (batch,) = EventBatch.split(events, 1)
    parsed = parse(
        FORMAT, made.schema, decoder.decode(batch) if decoder else batch, layout="flattened"
    )
    assert reasons(parsed) == []
    (value,) = parsed.changes.column("x").to_pylist()
    assert value == Decimal(unscaled).scaleb(-scale, Context(prec=99))


@ANY_TIME
@given(
    numbers=st.lists(st.none() | st.integers(-(10**15) + 1, 10**15 - 1), min_size=1, max_size=5),
    behind=st.integers(0, 15),
    scale=st.integers(0, 23),
    is_declared=st.booleans(),
)
def test_decimal_that_comes_as_a_double_is_what_is_printed(
    numbers: list[int | None], behind: int, scale: int, *, is_declared: bool
) -> None:
    """`decimal.handling.mode=double`: doubles have fifteen digits of any decimal."""
    table = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("x", pa.decimal128(38, scale)),
        ]
    )
    exact = [None if each is None else Decimal(each).scaleb(-behind) for each in numbers]
    rows = [
        {"id": place, "x": None if each is None else float(each)}
        for place, each in enumerate(exact)
    ]
    schema = row_schema({"type": "double", "optional": True})
    events = [{"schema": schema, "payload": row} if is_declared else row for row in rows]
    said = {} if is_declared else {"decimals": "double"}
    parsed = parse(
        FORMAT,
        define_schema(table, ["id"]),
        batch_of([json.dumps(each) for each in events]),
        layout="flattened",
        **said,
    )
    found = dict(
        zip(*(parsed.changes.column(name).to_pylist() for name in ("id", "x")), strict=True)
    )
    places = Context(prec=60)
    for place, each in enumerate(exact):
        near = None if each is None else each.quantize(Decimal(1).scaleb(-scale), context=places)
        if near == each:
            assert found[place] == each
        elif is_declared:
            assert place not in found
        else:  # a half may go either way: the double beside it does
            assert abs(found[place] - each) <= Decimal(6).scaleb(-scale - 1)


def row_schema(*more: dict[str, Any]) -> dict[str, Any]:
    fields = [{"field": "id", "type": "int64"}, *({"field": "x", **each} for each in more)]
    return {"type": "struct", "fields": fields}


@ANY_TIME
@given(
    column=st.sampled_from(["long", "int", "timestamp", "time", "date"]),
    semantic=st.sampled_from(sorted(SEMANTICS)),
    in_list=st.booleans(),
    believed=st.sampled_from([None, "s", "ms", "us", "ns"]),
)
def test_unit_of_the_events_that_nobody_looks_at_is_told(
    column: str, semantic: str, believed: str | None, *, in_list: bool
) -> None:
    kind = {"long": pa.int64(), "int": pa.int32(), "timestamp": pa.timestamp("us"),
            "time": pa.time64("us"), "date": pa.date32()}[column]  # fmt: skip
    is_instant = column in ("timestamp", "time")
    table = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("x", pa.list_(kind) if in_list else kind),
        ]
    )
    declared = {"type": "int64", "name": semantic}
    schema = row_schema({"type": "array", "items": declared} if in_list else declared)
    event = json.dumps({"schema": schema, "payload": {"id": 1, "x": None}})
    said = {"encodings": f"x={believed}"} if believed and is_instant else {}
    parsed = parse(
        FORMAT, define_schema(table, ["id"]), batch_of([event]), layout="flattened", **said
    )
    encoding, _ = SEMANTICS[semantic]
    counts = encoding in ("s", "ms", "us", "ns", "days")
    differs = bool(said) and believed != encoding
    wanted = {"x"} if counts and (column in ("long", "int") or differs) else set()
    assert {name for name, _ in parsed.units_not_taken} == wanted
    assert all(semantic in sentence for _, sentence in parsed.units_not_taken)


@ANY_TIME
@given(
    micros=st.lists(st.none() | st.integers(-(2**57), 2**60), min_size=1, max_size=4),
    column=st.sampled_from(["day", "at", "zoned", "nano", "zoned_nano"]),
)
def test_iso_texts_of_any_year_are_what_numpy_takes_them_for(
    micros: list[int | None], column: str
) -> None:
    table = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("day", pa.date32()),
            pa.field("at", pa.timestamp("us")),
            pa.field("zoned", pa.timestamp("us", tz="UTC")),
            pa.field("nano", pa.timestamp("ns")),
            pa.field("zoned_nano", pa.timestamp("ns", tz="UTC")),
        ]
    )
    is_nano = "nano" in column
    expected, texts = [], []
    for each in micros:
        moment = (
            None
            if each is None
            else np.datetime64(each, "us").astype("M8[D]" if column == "day" else "M8[us]")
        )
        text = None if moment is None else str(moment)
        if text is not None and text[0] != "-" and text.index("-") > 4:
            text = f"+{text}"  # as Java writes it
        if text is not None and text[0] == "-":  # numpy's sign is one of four characters
            year, _, rest = text[1:].partition("-")
            text = f"-{year.zfill(4)}-{rest}"
        texts.append(text if text is None or column == "day" else f"{text}Z")
        count = None if moment is None else int(moment.astype(np.int64))
        expected.append(count * 1000 if is_nano and count is not None else count)
    events = [json.dumps({"id": row, column: text}) for row, text in enumerate(texts)]
    said = {} if column.startswith("zoned") else {"encodings": f"{column}=iso"}
    parsed = parse(
        FORMAT, define_schema(table, ["id"]), batch_of(events), layout="flattened", **said
    )
    too_far = [
        text
        for text, each in zip(texts, micros, strict=True)
        if each is not None
        and (abs(each) > 2**63 // 1000 if is_nano else each < -210_866_889_600_000_000)
    ]
    assert len(reasons(parsed)) == len(too_far)
    found = parsed.changes.column(column).cast(pa.int32() if column == "day" else pa.int64())
    kept = [each for each, text in zip(expected, texts, strict=True) if text not in too_far]
    assert found.to_pylist() == kept


keys = st.decimals(-(10**4), 10**4, places=2)


@ANY_TIME
@given(
    old=keys,
    new=keys,
    written_as=st.sampled_from(["precise", "variable", "text"]),
    same=st.booleans(),
)
def test_update_of_a_decimal_key_deletes_the_old_one_unless_it_is_the_same(
    old: Decimal, new: Decimal, written_as: str, *, same: bool
) -> None:
    table = pa.schema([pa.field("id", pa.decimal128(18, 4), nullable=False)])
    new = old if same else new
    wires = []
    for each in (old, new):
        decimals = "text" if written_as == "text" else "precise"
        encoded = written("id", each, {"unit": "ms", "decimals": decimals})
        wires.append({"scale": 4, "value": encoded} if written_as == "variable" else encoded)
    change = {"op": "u", "before": {"id": wires[0]}, "after": {"id": wires[1]}}
    said = {} if written_as == "variable" else {"decimals": written_as}
    parsed = parse(FORMAT, define_schema(table, ["id"]), batch_of([json.dumps(change)]), **said)
    assert reasons(parsed) == []
    expected = [("+U", new)] if old == new else [("-D", old), ("+U", new)]
    assert kinds_and(parsed, "id") == expected


@pytest.mark.slow  # of each type, quick: unit/tableformat/cdc/test_real_debezium_events.py
@ANY_TIME
@given(row=values, mode=modes, layout=st.sampled_from(["envelope", "flattened"]))
def test_what_nobody_said_is_refused_unless_it_says_itself(
    row: dict[str, Any], mode: dict[str, str], layout: str
) -> None:
    events = batch_of([event({"id": 1, **row}, mode, layout=layout, schema=False)])
    lists = [row[name] or [] for name in ("stamps", "prices", "raws")]
    columns = ("price", "clock", "at", "raw")
    columns += ("open",) if mode["decimals"] == "text" else ()  # else it tells its scale
    doubtful = any(row[name] is not None for name in columns)
    doubtful |= any(each is not None for items in lists for each in items)
    if doubtful:
        with pytest.raises(InvalidInputError, match="encodings="):
            parse(FORMAT, SCHEMA, events, layout=layout)
    else:
        assert reasons(parse(FORMAT, SCHEMA, events, layout=layout)) == []


@pytest.mark.slow
@ANY_TIME
@given(
    raw=st.binary(min_size=12, max_size=40),
    column=st.sampled_from(["raw", "days", "numbers", "uuids", "texts"]),
)
def test_any_placeholder_is_known_in_any_form_and_nothing_near_it_is(
    raw: bytes, column: str
) -> None:
    signed = [each - 256 if each > 127 else each for each in raw]
    digest = bytearray(hashlib.md5(raw, usedforsecurity=False).digest())
    digest[6] = digest[6] & 0x0F | 0x30
    digest[8] = digest[8] & 0x3F | 0x80
    form: Any = {
        "raw": base64.b64encode(raw).decode(),
        "days": signed,
        "numbers": signed,
        "uuids": [str(uuid.UUID(bytes=bytes(digest)))],
        "texts": [raw.decode(errors="replace")],
    }[column]
    near: Any = base64.b64encode(raw + b"\0").decode() if column == "raw" else [*form, None]
    said = {"unavailable_value": f"hex:{raw.hex()}", "binaries": "base64"}
    for value, count in ((form, 1), (near, 0)):
        change = {"op": "u", "after": {"id": 1, column: value}}
        parsed = parse(FORMAT, SCHEMA, batch_of([json.dumps(change)]), **said)
        assert len(reasons(parsed)) == count, (value, reasons(parsed))
