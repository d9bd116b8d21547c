"""Bugs other projects had with keys and evolving schemas, group B by their ids.

A key that is deleted must take its own row along and no other, by every way a delete is applied:
merge-on-read of staging, the index, and the join with files that came during the cycle. Rows are
read from the files' bytes without the product's code.
"""

from __future__ import annotations

import datetime as dt
import itertools
import unicodedata
import uuid
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import DecimalType, LongType, TimestampType

from resolver import resolve
from resolver.index import shard_map
from resolver.index_check import verify
from tableformat.commit.evolution import update_schema
from tableformat.errors import TableError
from tableformat.spec.data_file import DataFile, FileContent
from tests.support.interruptions import interrupt, other_process
from tests.support.memory_tables import memory_catalog
from tests.support.raw_rows import raw_rows
from tests.support.staged_tables import StagedTable

FIELD_ID = "PARQUET:field_id"
US, NS = pa.timestamp("us"), pa.timestamp("ns")


def evolve(staged, edit):
    update_schema(
        staged.environment, staged.table.identifier, edit, allow_incompatible_changes=True
    )
    staged.table.refresh()


def foreign_deletes(staged, keys, *, equality_ids=None):
    """A global equality delete file as another engine writes it: its columns, and nothing else.

    `keys` has a field id in each column's metadata.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(keys, sink)
    data = sink.getvalue().to_pybytes()
    state = staged.table.refresh().state
    location = f"{state.metadata.location}/data/foreign-{uuid.uuid4()}.parquet"
    staged.environment.store.put(location, data)
    ids = [int(field.metadata[FIELD_ID.encode()]) for field in keys.schema]
    return DataFile(
        content=FileContent.EQUALITY_DELETES,
        file_path=location,
        file_format="PARQUET",
        spec_id=staged.global_spec().spec_id,
        partition=(),
        record_count=keys.num_rows,
        file_size_in_bytes=len(data),
        equality_ids=tuple(ids if equality_ids is None else equality_ids),
    )


def column(values, kind, field_id, name="k", nullable=True):
    field = pa.field(name, kind, nullable, {FIELD_ID: str(field_id)})
    return pa.table([pa.array(values, kind)], schema=pa.schema([field]))


def field_id(staged, name):
    return staged.table.refresh().schema().find_field(name).field_id


def left(staged):
    """`note` of every live row, from the bytes."""
    return {note: count for (note,), count in raw_rows(staged.table, ["note"]).items()}


def shown(staged, row_filter=None, branch="staging"):
    """`note` of every row that a scan shows."""
    rows = staged.table.scan(filter=row_filter, columns=["note"], branch=branch).to_arrow()
    return dict(Counter(rows.column("note").to_pylist()))


def each(*notes):
    return dict.fromkeys(notes, 1)


# -- R20, R21, R22: evolved columns --------------------------------------------------------------

NARROW = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("note", pa.string())])
WIDE_NUMBERS = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("note", pa.string())])


def promoted(tmp_path):
    """`n` was an int and is a long: files of both, values 0, NULL, 7 and -1 in the narrow one."""
    staged = StagedTable(tmp_path, schema=NARROW)
    staged.table.append(
        staged.rows((1, 0, "zero"), (2, None, "null"), (3, 7, "seven"), (4, -1, "minus"))
    )
    evolve(staged, lambda s: s.update_column("n", field_type=LongType()))
    staged.schema = WIDE_NUMBERS
    staged.table.append(staged.rows((5, 2**32, "wide zero"), (6, 2**32 + 7, "wide seven")))
    return staged


@pytest.mark.parametrize(
    ("gone", "dead"),
    [
        ([2**32], ["wide zero"]),
        ([2**32 + 7, 2**32 - 1, 2**63 - 1, -(2**63)], ["wide seven"]),
        ([None], ["null"]),
        ([0], ["zero"]),
        ([-1, 7], ["minus", "seven"]),
    ],
)
def test_r20_promoted_value_never_overflows_to_null_or_to_another_value(tmp_path, gone, dead):
    staged = promoted(tmp_path)
    number = field_id(staged, "n")
    staged.commit(deletes=[foreign_deletes(staged, column(gone, pa.int64(), number))])
    everything = ["zero", "null", "seven", "minus", "wide zero", "wide seven"]
    expected = each(*(note for note in everything if note not in dead))
    assert shown(staged) == expected
    resolve(staged.table)
    assert left(staged) == expected


def test_r20_promoted_primary_key_is_found_in_files_and_index_of_the_narrow_one(tmp_path):
    schema = pa.schema([("id", pa.int32()), ("n", pa.int32()), ("note", pa.string())])
    staged = StagedTable(tmp_path, schema=schema)
    staged.table.append(staged.rows((0, 0, "zero"), (1, 0, "one"), (-1, 0, "minus")))
    staged.table.stage(upserts=staged.rows((2**31 - 1, 0, "top"), (1, 0, "one again")))
    resolve(staged.table)  # the index is made of narrow keys
    evolve(staged, lambda s: s.update_column("id", field_type=LongType()))
    wide = [2**32, 2**32 + 1, 2**32 - 1, 2**31, -(2**31) - 1]
    staged.table.stage(deletes=pa.table({"id": pa.array(wide, pa.int64())}))
    resolve(staged.table)
    assert left(staged) == each("zero", "one again", "minus", "top")
    narrow = column([1, 2**31 - 1], pa.int32(), field_id(staged, "id"))
    staged.commit(deletes=[foreign_deletes(staged, narrow)])  # of a writer with the old schema
    resolve(staged.table)
    assert left(staged) == each("zero", "minus")
    assert verify(staged.table).report.is_sound


FILTERS = {
    "n = -1": ["minus"],
    "n = 7": ["seven"],
    "n < 0": ["minus"],
    "n > 7": ["wide zero", "wide seven"],
    "n >= 4294967296": ["wide zero", "wide seven"],
    "n <= 0": ["zero", "minus"],
    "n is null": ["null"],
}


@pytest.mark.parametrize("row_filter", FILTERS)
def test_r21_four_byte_bounds_of_a_promoted_column_never_prune_wrongly(tmp_path, row_filter):
    staged = promoted(tmp_path)
    narrow = [t.entry.data_file for t in staged.table.scan().plan.tasks]
    number = field_id(staged, "n")
    assert {len(file.lower_bounds[number]) for file in narrow} == {4, 8}
    assert shown(staged, row_filter, branch="main") == each(*FILTERS[row_filter])
    result = staged.table.delete(row_filter)
    assert result.deleted_rows == len(FILTERS[row_filter])
    everything = ["zero", "null", "seven", "minus", "wide zero", "wide seven"]
    assert left(staged) == each(*(n for n in everything if n not in FILTERS[row_filter]))


def test_r21_delete_file_with_four_byte_bounds_never_misses_the_files_it_reaches(tmp_path):
    """Its bounds are compared with those of files written after the promotion."""
    staged = StagedTable(tmp_path, schema=NARROW)
    staged.table.append(staged.rows((1, -5, "narrow"), (2, 8, "other")))
    state = staged.table.refresh().state
    evolve(staged, lambda s: s.update_column("n", field_type=LongType()))
    staged.schema = WIDE_NUMBERS
    staged.table.append(staged.rows((3, -5, "wide"), (4, 2**40, "far")))
    staged.table.state = state  # the writer still has the old schema
    narrow = column([-5], pa.int32(), field_id(staged, "n"))
    bound = (-5).to_bytes(4, "little", signed=True)
    number = field_id(staged, "n")
    delete = foreign_deletes(staged, narrow).with_(
        lower_bounds={number: bound},
        upper_bounds={number: bound},
        value_counts={number: 1},
        null_value_counts={number: 0},
    )
    staged.commit(deletes=[delete])
    assert shown(staged) == each("other", "far")
    resolve(staged.table)
    assert left(staged) == each("other", "far")


def drop(builder):
    builder.delete_column("region")


def rename(builder):
    builder.rename_column("region", "area")


def drop_renamed(builder):
    builder.delete_column("area")


def replace(builder):
    """Dropped, and another column of its name in its place."""
    builder.delete_column("region")
    builder.add_column("area", LongType())


@pytest.mark.parametrize(
    "edits",
    [[drop], [rename], [replace], [rename, drop_renamed]],
    ids=["drop", "rename", "replace", "rename and drop"],
)
@pytest.mark.parametrize("columns", [["region"], ["id", "region"]])
def test_r22_delete_never_stops_applying_when_its_column_is_dropped_or_evolved(
    tmp_path, edits, columns
):
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((1, "eu", "a"), (2, "us", "b"), (3, None, "c")))
    staged.commit(data=staged.data_files((4, "us", "staged"), (5, "eu", "staged too")))
    gone = pa.table({"id": [2, 4, 5], "region": ["us", "us", "us"]}).select(columns)
    staged.commit(deletes=staged.equality_deletes(gone, columns))
    for edit in edits:
        evolve(staged, edit)
    expected = each("a", "c", "staged too")
    assert shown(staged) == expected
    resolve(staged.table)
    assert left(staged) == expected


def test_r22_column_that_came_back_under_its_old_name_is_another_one(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((1, "eu", "a"), (2, "us", "b")))
    by_old = staged.equality_deletes(pa.table({"region": ["us"]}), ["region"])
    evolve(staged, lambda s: s.delete_column("region"))
    evolve(staged, lambda s: s.add_column("region", LongType()))
    staged.schema = pa.schema([("id", pa.int64()), ("note", pa.string()), ("region", pa.int64())])
    staged.table.append(staged.rows((3, "c", None), (4, "d", 7)))
    staged.commit(deletes=by_old)
    assert shown(staged) == each("a", "c", "d")
    resolve(staged.table)
    assert left(staged) == each("a", "c", "d")


# -- R24: NULL -----------------------------------------------------------------------------------

NULL_LOOKALIKES = {
    "string": (pa.string(), ["", "null", "\x00", "None"]),
    "long": (pa.int64(), [0, -1, -(2**63)]),
    "int": (pa.int32(), [0, -(2**31)]),
    "boolean": (pa.bool_(), [False, True]),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(1969, 12, 31)]),
    "decimal": (pa.decimal128(9, 2), [Decimal("0.00"), Decimal("-0.01")]),
    "binary": (pa.binary(), [b"", b"\x00"]),
    "fixed": (pa.binary(2), [b"\x00\x00", b"\x00\x01"]),
}


@pytest.mark.parametrize("kind", NULL_LOOKALIKES)
@pytest.mark.parametrize("with_key", [False, True], ids=["alone", "beside another column"])
@pytest.mark.parametrize("gone", ["null", "value"])
def test_r24_null_equals_null_and_never_zero_or_the_empty_string(tmp_path, kind, with_key, gone):
    """Rows of the target, of staging, and of a file that comes during the cycle."""
    arrow_type, lookalikes = NULL_LOOKALIKES[kind]
    schema = pa.schema([("id", pa.int64()), ("k", arrow_type), ("note", pa.string())])
    staged = StagedTable(tmp_path, schema=schema)
    values = [None, *lookalikes]
    rows = [(1, value, f"{place} {n}") for place in "tsm" for n, value in enumerate(values)]
    size = len(values)
    staged.table.append(staged.rows(*rows[:size]))
    staged.commit(data=staged.data_files(*rows[size : 2 * size]))
    value = None if gone == "null" else lookalikes[0]
    dead = 0 if gone == "null" else 1
    columns = ["id", "k"] if with_key else ["k"]
    keys = pa.table({"id": [1], "k": pa.array([value], arrow_type)}).select(columns)
    staged.commit(deletes=staged.equality_deletes(keys, columns))
    assert shown(staged) == each(
        *(r[2] for n, r in enumerate(rows[: 2 * size]) if n % size != dead)
    )
    other, late = other_process(staged.table), staged.rows(*rows[2 * size :])
    interrupt(staged.table, "resolve.after_dv_write", lambda: other.append(late))
    resolve(staged.table)
    assert left(staged) == each(*(r[2] for n, r in enumerate(rows) if n % size != dead))


def test_r24_null_in_a_delete_of_the_primary_key_never_hits_a_row(tmp_path):
    """The key has no NULL; a foreign delete file may have one all the same."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((0, "eu", "zero"), (1, "eu", "one")))
    keys = column([None, 1], pa.int64(), field_id(staged, "id"))
    staged.commit(deletes=[foreign_deletes(staged, keys)])
    assert shown(staged) == each("zero")
    resolve(staged.table)
    assert left(staged) == each("zero")


# -- R25: floats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("key", [["k"], ["id", "k"]])
def test_r25_float_is_never_accepted_as_a_primary_key(tmp_path, kind, key):
    schema = pa.schema([("id", pa.int64()), ("k", kind), ("note", pa.string())])
    with pytest.raises((TableError, ValueError)):
        memory_catalog(str(tmp_path)).create_table("t.floats", schema, primary_key=key)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_r25_staged_delete_by_a_float_column_stops_the_cycle_before_it_publishes(tmp_path, kind):
    schema = pa.schema([("id", pa.int64()), ("k", kind), ("note", pa.string())])
    staged = StagedTable(tmp_path, schema=schema)
    staged.table.append(staged.rows((1, 0.0, "zero"), (2, -0.0, "minus zero"), (3, 1.5, "other")))
    keys = column([0.0, float("nan")], kind, field_id(staged, "k"))
    staged.commit(deletes=[foreign_deletes(staged, keys)])
    before = staged.table.refresh().metadata_location
    with pytest.raises(TableError, match="float"):
        resolve(staged.table)
    assert staged.table.refresh().metadata_location == before
    assert left(staged) == each("zero", "minus zero", "other")


def nan(payload):
    return float(np.array([0x7FF8000000000000 | payload], np.uint64).view(np.float64)[0])


@pytest.mark.parametrize(
    ("gone", "dead"),
    [(nan(1), "nan"), (-nan(5), "nan"), (0.0, "zero"), (-0.0, "minus zero"), (None, "null")],
)
def test_r25_float_partition_values_are_compared_by_bits_with_one_nan(tmp_path, gone, dead):
    """The same key in each partition; a delete is scoped to one of them."""
    schema = pa.schema([("id", pa.int64()), ("k", pa.float64()), ("note", pa.string())])
    staged = StagedTable(tmp_path, schema=schema, partition_by=["k"])
    rows = {"nan": nan(0), "zero": 0.0, "minus zero": -0.0, "null": None, "one": 1.0}
    for note, value in rows.items():
        staged.table.append(staged.rows((1, value, note)))
    keys = pa.table({"id": [1], "k": pa.array([gone], pa.float64())})
    staged.commit(deletes=staged.equality_deletes(keys, spec=staged.table.spec()))
    expected = each(*(note for note in rows if note != dead))
    assert shown(staged) == expected
    resolve(staged.table)
    assert left(staged) == expected


# -- R26, R31: values that look alike ------------------------------------------------------------


class KeyedTable:
    """A table whose key has the given column types, and a note that numbers its rows."""

    def __init__(self, folder, kinds):
        names = [f"k{n}" for n in range(len(kinds))]
        fields = [pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)]
        self.names, self.kinds = names, kinds
        self.schema = pa.schema([*fields, pa.field("note", pa.string())])
        catalog = memory_catalog(str(folder))
        self.table = catalog.create_table("t.keys", self.schema, primary_key=names)

    def keys(self, tuples):
        columns = zip(*tuples, strict=True)
        arrays = [pa.array(c, kind) for c, kind in zip(columns, self.kinds, strict=True)]
        return pa.table(arrays, names=self.names)

    def rows(self, tuples):
        notes = pa.array([f"{n}" for n, _ in tuples])
        return self.keys([key for _, key in tuples]).append_column("note", notes)


def check_only_its_own_row_dies(folder, kinds, keys):
    """Delete one key after the other: rows of the target, of staging, and of a late file.

    All keys are different values; each delete must take one row along.
    """
    keyed = KeyedTable(folder, kinds)
    numbered = list(enumerate(keys))
    keyed.table.append(keyed.rows(numbered[0::2]))
    if numbered[1::2]:
        keyed.table.stage(upserts=keyed.rows(numbered[1::2]))
    living = {str(n) for n, _ in numbered}
    for n, key in numbered:
        keyed.table.stage(deletes=keyed.keys([key]))
        living.discard(str(n))
        assert shown(keyed) == each(*living), f"merge-on-read of {key!r}"
        resolve(keyed.table)
        assert left(keyed) == each(*living), f"deleting {key!r}"
        assert keyed.table.lookup(keyed.keys([key])).to_arrow().num_rows == 0
    # The same, with all rows back in a file that the index does not know yet when they die.
    keyed.table.stage(deletes=keyed.keys(keys[:1]))
    other, late = other_process(keyed.table), keyed.rows(numbered)
    interrupt(keyed.table, "resolve.after_dv_write", lambda: other.append(late))
    resolve(keyed.table)
    assert left(keyed) == each(*(str(n) for n, _ in numbered[1:])), "late file"


def moments(*micros):
    return [(value,) for value in micros]


R26_CASES = {
    "date": ([pa.date32()], moments(0, -1, 1, 1000, 19_000, -25_567)),
    "time": ([pa.time64("us")], moments(0, 1, 1_000, 1_000_000, 86_399_999_999)),
    "timestamp": ([US], moments(0, 1, -1, 1_000, 1_000_000, 86_400_000_000, -86_400_000_000)),
    "timestamp of long ago": ([US], moments(-62_135_596_800_000_000, -62_135_596_799_999_999)),
    "timestamptz": ([pa.timestamp("us", "UTC")], moments(0, 3_600_000_000, -3_600_000_000, 1)),
    "date and time": ([pa.date32(), pa.time64("us")], [(0, 1), (1, 0), (0, 0), (-1, 1)]),
}


@pytest.mark.parametrize("case", R26_CASES)
def test_r26_dates_and_times_are_never_compared_in_the_wrong_form(tmp_path, case):
    kinds, keys = R26_CASES[case]
    given = [
        tuple(
            pa.scalar(value, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
            for value, kind in zip(key, kinds, strict=True)
        )
        for key in keys
    ]
    check_only_its_own_row_dies(tmp_path, kinds, given)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (US, pa.timestamp("ms")),
        (US, pa.timestamp("s")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
        (pa.time64("us"), pa.time32("ms")),
        (pa.date32(), pa.date64()),
    ],
    ids=str,
)
def test_r26_key_given_in_another_unit_means_its_moment_or_is_refused(tmp_path, kind, given):
    """Never the bare number: 86400 seconds are not 86400 microseconds."""
    keyed = KeyedTable(tmp_path, [kind])
    base = {"date": 1, "time": 43_200_000_000}.get(str(kind)[:4], 86_400_000_000)
    plain = pa.int32() if kind == pa.date32() else pa.int64()
    values = [
        pa.scalar(value, plain).cast(kind) for value in (base, base // 1000, base // 10**6, 0)
    ]
    keyed.table.append(
        keyed.rows([(n, (v,)) for n, v in enumerate(values[: 1 if base == 1 else 4])])
    )
    keys = pa.table({"k0": pa.array([values[0]], kind).cast(given)})
    try:
        keyed.table.stage(deletes=keys)
    except TableError:
        assert keyed.table.refresh().state.ref("staging") is None
        return
    resolve(keyed.table)
    assert left(keyed) == each(*(str(n) for n in range(1, 1 if base == 1 else 4)))


A_UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
R31_CASES = {
    "decimal scale": (
        [pa.decimal128(9, 2)],
        [(Decimal(text),) for text in ("1.20", "12.00", "0.12", "-1.20", "0.00", "120.00")],
    ),
    "decimal of 38 digits": (
        [pa.decimal128(38, 0)],
        [(Decimal(n),) for n in (10**37, -(10**37), 2**64, 2**64 + 1, 1, 2**32)],
    ),
    "int edges": ([pa.int32()], [(n,) for n in (0, 2**31 - 1, -(2**31), -1, 1)]),
    "long edges": (
        [pa.int64()],
        [(n,) for n in (0, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63), -1)],
    ),
    "nanoseconds": ([NS], [(pa.scalar(n, pa.int64()).cast(NS),) for n in (1000, 1001, 999, 1, 0)]),
    "uuid": (
        [pa.uuid()],
        [(A_UUID.bytes,), (A_UUID.bytes_le,), (A_UUID.bytes[::-1],), (bytes(16),)],
    ),
    "uuid as text": ([pa.string()], [(str(A_UUID),), (str(A_UUID).upper(),), (A_UUID.hex,)]),
    "normal forms": (
        [pa.string()],
        [
            *((unicodedata.normalize(form, "Å\ufb01"),) for form in ("NFC", "NFD", "NFKC")),
            ("å\ufb01",),
        ],
    ),
    "spaces and NULs": (
        [pa.string()],
        [(text,) for text in ("a", "a ", " a", "a\x00", "a\x00\x00", "", " ", "\x00", "A")],
    ),
    "binary": (
        [pa.binary()],
        [(data,) for data in (b"", b"\x00", b"\x00\x00", b"\x01", b"\x01\x00")],
    ),
    "fixed": (
        [pa.binary(3)],
        [(data,) for data in (b"a\x00\x00", b"\x00a\x00", b"\x00\x00a", bytes(3))],
    ),
    "two texts": (
        [pa.string(), pa.string()],
        [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a\x00", "bc"), ("a", "\x00bc")],
    ),
    "text and binary": (
        [pa.string(), pa.binary()],
        [("1", b"1"), ("11", b""), ("", b"11"), ("1", b""), ("", b"1")],
    ),
    "long and text": ([pa.int64(), pa.string()], [(1, "1"), (11, ""), (0, "11"), (1, "11")]),
    "boolean and int": ([pa.bool_(), pa.int32()], [(True, 0), (False, 1), (True, 1), (False, 0)]),
    "fixed and fixed": (
        [pa.binary(2), pa.binary(2)],
        [(b"\x00\x01", b"\x01\x00"), (b"\x01\x00", b"\x00\x01"), (b"\x00\x00", b"\x01\x01")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", R31_CASES)
def test_r31_values_that_look_alike_are_never_one_key(tmp_path, case):
    kinds, keys = R31_CASES[case]
    check_only_its_own_row_dies(tmp_path, kinds, keys)


def set_type(staged, name, field_type):
    """Change a column's type in metadata alone, as an engine does that knows the promotion."""
    state = staged.table.refresh().state
    old = state.metadata.schema()
    fields = [
        field.model_copy(update={"field_type": field_type}) if field.name == name else field
        for field in old.fields
    ]
    schema = Schema(
        *fields, schema_id=old.schema_id + 1, identifier_field_ids=old.identifier_field_ids
    )
    updates = [AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=-1)]
    staged.environment.catalog.commit(state, updates)
    staged.table.refresh()


@pytest.mark.parametrize(
    ("narrow", "wide", "wide_arrow", "values", "wide_values"),
    [
        (
            pa.decimal128(9, 2), DecimalType(20, 2), pa.decimal128(20, 2),
            [Decimal("1.20"), Decimal("-0.01"), Decimal("12.00")], [Decimal("10000000000.00")],
        ),
        (
            pa.date32(), TimestampType(), US,
            [dt.date(1970, 1, 2), dt.date(1969, 12, 31), dt.date(1970, 1, 1)],
            [dt.datetime(1970, 1, 1, 0, 0, 0, 1)],
        ),
    ],
    ids=["decimal", "date to timestamp"],
)  # fmt: skip
def test_r31_widened_key_is_found_again_in_files_and_index_of_the_narrow_one(
    tmp_path, narrow, wide, wide_arrow, values, wide_values
):
    keyed = KeyedTable(tmp_path, [narrow])
    keyed.environment = keyed.table.environment
    keyed.table.append(keyed.rows([(n, (v,)) for n, v in enumerate(values[:2])]))
    keyed.table.stage(upserts=keyed.rows([(2, (values[2],))]))
    resolve(keyed.table)
    set_type(keyed, "k0", wide)
    keyed.kinds = [wide_arrow]
    late = [(3 + n, (v,)) for n, v in enumerate(wide_values)]
    first, _, last = (pa.scalar(value, narrow).cast(wide_arrow) for value in values)
    keyed.table.stage(upserts=keyed.rows(late), deletes=keyed.keys([(first,)]))
    assert shown(keyed) == each("1", "2", "3")
    resolve(keyed.table)
    assert left(keyed) == each("1", "2", "3")
    keyed.table.stage(deletes=keyed.keys([(last,), (wide_values[0],)]))
    resolve(keyed.table)
    assert left(keyed) == each("1")
    assert verify(keyed.table).report.is_sound


# -- R27, R28, R29 -------------------------------------------------------------------------------


def test_r27_order_in_which_key_columns_are_named_never_changes_a_key(tmp_path):
    """Every order of ids and columns in delete files, and of the identifier fields themselves."""
    kinds = [pa.string(), pa.string(), pa.string()]
    keyed = KeyedTable(tmp_path, kinds)
    orders = list(itertools.permutations(range(3)))
    tuples = [(n, tuple(f"{n}{'abc'[i]}" for i in order)) for n, order in enumerate(orders)]
    rotated = [(10 + n, key[1:] + key[:1]) for n, key in tuples]
    keyed.table.append(keyed.rows([*tuples, *rotated]))
    keyed.table.stage(upserts=keyed.rows([(99, ("x", "y", "z"))]))
    resolve(keyed.table)  # builds the index
    ids = {name: keyed.table.schema().find_field(name).field_id for name in keyed.names}
    keyed.environment, keyed.global_spec = (
        keyed.table.environment,
        lambda: keyed.table.spec(),
    )
    commit = StagedTable.commit
    for order, (_, key) in zip(orders, tuples, strict=True):
        fields = [
            pa.field(f"c{i}", pa.string(), True, {FIELD_ID: str(ids[f"k{i}"])}) for i in order
        ]
        delete = pa.table([pa.array([key[i]]) for i in order], schema=pa.schema(fields))
        for equality_ids in (None, sorted(ids.values(), reverse=True)):
            file = foreign_deletes(keyed, delete, equality_ids=equality_ids)
            commit(keyed, deletes=[file])
    keyed.table.update_schema(lambda s: s.set_identifier_fields("k2", "k0", "k1"))
    report = resolve(keyed.table)
    assert report.index in {"current", "followed"}
    assert report.deleted_rows == len(tuples)
    assert left(keyed) == each("99", *(str(n) for n, _ in rotated))
    again = pa.table({"k2": ["z"], "k0": ["x"], "k1": ["y"]})
    keyed.table.stage(deletes=again)
    resolve(keyed.table)
    assert left(keyed) == each(*(str(n) for n, _ in rotated))


@pytest.mark.parametrize("where", ["target", "staging"])
def test_r28_delete_file_with_the_key_alone_never_fails_on_required_columns(tmp_path, where):
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("region", pa.string(), nullable=False),
            pa.field("note", pa.string(), nullable=False),
        ]
    )
    staged = StagedTable(tmp_path, schema=schema)
    rows = [(1, "eu", "one"), (2, "eu", "two"), (3, "us", "three")]
    if where == "target":
        staged.table.append(staged.rows(*rows))
    else:
        staged.commit(data=staged.data_files(*rows))
    by_key = column([1], pa.int64(), field_id(staged, "id"), nullable=False)
    by_region = column(["us"], pa.string(), field_id(staged, "region"), nullable=False)
    staged.commit(deletes=[foreign_deletes(staged, each_) for each_ in (by_key, by_region)])
    assert shown(staged) == each("two")
    resolve(staged.table)
    assert left(staged) == each("two")


@pytest.mark.parametrize(
    ("kinds", "keys"),
    [
        ([pa.string()], [("",), ("a",), ("\x00",), (" ",), ("b",)]),
        ([pa.binary()], [(b"",), (b"\x00",), (b"\x01",), (b"a",)]),
        ([pa.string(), pa.string()], [("", ""), ("", "a"), ("a", ""), ("a", "a"), ("", "\x00")]),
        ([pa.int64(), pa.string()], [(0, ""), (0, "a"), (1, ""), (-1, "")]),
    ],
    ids=["string", "binary", "two strings", "long and string"],
)
def test_r29_empty_string_key_is_the_same_for_every_code_path(tmp_path, monkeypatch, kinds, keys):
    """An index of several shards: built from files, changed by a cycle, asked by key."""
    monkeypatch.setattr(shard_map, "ROWS_PER_SHARD_MIN", 1)
    keyed = KeyedTable(tmp_path, kinds)
    numbered = list(enumerate(keys))
    keyed.table.append(keyed.rows(numbered))
    keyed.table.stage(upserts=keyed.rows([(100, keys[1])]))
    resolve(keyed.table)  # built from the files, all keys at once
    notes = {n: str(n) for n, _ in numbered} | {1: "100"}
    for n, key in numbered:
        found = keyed.table.lookup(keyed.keys([key]))
        assert found.to_arrow().column("note").to_pylist() == [notes[n]]
    keyed.table.stage(upserts=keyed.rows([(200, keys[0])]), deletes=keyed.keys(keys[-1:]))
    resolve(keyed.table)  # changed by a few keys
    notes[0] = "200"
    del notes[len(keys) - 1]
    assert left(keyed) == each(*notes.values())
    assert keyed.table.lookup(keyed.keys(keys[:1])).to_arrow().column("note").to_pylist() == ["200"]
    keyed.table.stage(deletes=keyed.keys(keys[:1]))
    resolve(keyed.table)
    del notes[0]
    assert left(keyed) == each(*notes.values())
    assert verify(keyed.table).report.is_sound
    check_only_its_own_row_dies(tmp_path / "one by one", kinds, keys)
