"""Keys of every type in files and equality deletes of Apache Iceberg's own library.

A key is the same row whoever wrote it: Java's rows are replaced and deleted by us, and ours by it.
Values are Iceberg's single-value JSON.
"""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat import Table
from tableformat.spec.types import arrow_type
from tests.support.interop_java_tables import SharedTable

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

LEAST_NS, MOST_NS = "1677-09-22T00:00:00.000000001", "2262-04-11T23:47:16.854775807"
FIRST, LAST, BEFORE = "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "1969-12-31T23:59:59.5"
KEYS = {
    "boolean": [True, False],
    "long": [0, -1, 2**63 - 1, -(2**63), 2**53 + 1],
    "decimal(38, 10)": ["0.0000000000", "-0.0000000001", f"{'9' * 28}.{'9' * 10}", "1.0000000000"],
    "string": ["", "a", "a ", "\0", "\0\0", "é", "e\u0301", "\uffff", "\U0010ffff" * 17],
    "binary": ["", "00", "0000", "80", "FF" * 20],
    "uuid": [str(UUID(int=n)) for n in (0, 1 << 127, (1 << 127) - 1, (1 << 128) - 1)],
    "date": ["1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31"],
    "time": ["00:00:00.000000", "23:59:59.999999", "00:00:00.000001"],
    "timestamp": ["1970-01-01T00:00:00", FIRST, LAST, BEFORE],
    "timestamptz": [f"{each}+00:00" for each in (FIRST, LAST, BEFORE)],
    "timestamp_ns": [LEAST_NS, MOST_NS, BEFORE],
    "timestamptz_ns": [f"{each}+00:00" for each in (LEAST_NS, MOST_NS, BEFORE)],
}


@pytest.mark.parametrize(
    "types",
    [
        ("boolean",),
        ("decimal(38, 10)",),
        ("string",),
        ("uuid",),
        ("time",),
        ("timestamptz_ns",),
        ("long", "timestamp"),
        ("date", "binary", "timestamptz", "timestamp_ns"),
    ],
    ids=str,
)
def test_row_is_found_by_its_key_whoever_wrote_it(shared, types) -> None:
    tool = _Keyed(shared, types)
    count = max(len(KEYS[each]) for each in types)
    keys = [tuple(KEYS[each][at % len(KEYS[each])] for each in types) for at in range(count)]
    first, last = keys[0], keys[-1]
    tool.write(keys, "java")
    tool.table.stage(upserts=tool.arrow([first], "ours"))
    tool.write([last], "staged", deleted=[last], branch="staging")
    gone = keys[1:-1][:1]  # there are only two truth values
    if gone:
        tool.table.stage(deletes=tool.arrow(gone))
    resolve(tool.table)
    expected = dict.fromkeys(keys, "java") | {first: "ours", last: "staged"}
    for each in gone:
        del expected[each]
    assert tool.rows() == expected
    found = tool.table.lookup(tool.arrow(keys), columns=["v"]).rows.column("v").to_pylist()
    assert sorted(found) == sorted(expected.values())
    tool.write([first], "on main", deleted=[first])
    assert tool.rows() == expected | {first: "on main"}
    tool.table.stage(deletes=tool.arrow([first]))
    resolve(tool.table)
    del expected[first]
    assert tool.rows() == expected


class _Keyed:
    """A table of Java's with a key of some types, and a text."""

    def __init__(self, shared: SharedTable, types: tuple[str, ...]) -> None:
        self.shared, self.types = shared, types
        self.names = [f"k{at}" for at in range(len(types))]
        shared.sql("CREATE TABLE T (v string) USING iceberg TBLPROPERTIES ('format-version'='3')")
        columns = [
            ["addRequiredColumn", name, {"type": kind}]
            for name, kind in zip(self.names, types, strict=True)
        ]
        key = ["setIdentifierFields", {"names": self.names}]
        self._core([["updateSchema"], ["allowIncompatibleChanges"], *columns, key, ["commit"]])
        schema = self.table.schema()
        self.fields = [schema.find_field(name) for name in self.names]

    @property
    def table(self) -> Table:
        return self.shared.load()

    def write(self, keys, text: str, *, deleted=(), branch: str | None = None) -> None:
        """A commit of Java's."""
        rows = [{**self._by_id(key), "1": text} for key in keys]
        calls: list[list[Any]] = [
            ["newRowDelta"],
            ["addRows", {"data": {"rows": rows, "format": "parquet"}}],
        ]
        if deleted:
            ids = [field.field_id for field in self.fields]
            gone = {"rows": [*map(self._by_id, deleted)], "format": "parquet", "ids": ids}
            calls.append(["addDeletes", {"equality": gone}])
        self._core([*calls, *([["toBranch", branch]] if branch else []), ["commit"]])

    def arrow(self, keys, text: str | None = None) -> pa.Table:
        """Keys, and the text, for icefold."""
        columns = {
            field.name: _arrow([key[at] for key in keys], arrow_type(field.field_type))
            for at, field in enumerate(self.fields)
        }
        return pa.table(columns if text is None else columns | {"v": [text] * len(keys)})

    def rows(self) -> dict[tuple[Any, ...], str]:
        """As Java reads them, and we must."""
        head = self.table.state.metadata.refs["main"].snapshot_id
        found = self.shared.java.request(
            "core_rows", table=self.shared.java_name, snapshot_id=head
        )["rows"]
        ids = [str(field.field_id) for field in self.fields]
        theirs = {tuple(row[each] for each in ids): row["1"] for row in found}
        assert len(theirs) == len(found)
        # Texts of moments differ in zeros at their end: compare what both are as Arrow values.
        ours = self.table.scan(columns=[*self.names, "v"]).to_arrow().to_pylist()
        as_ours = self.arrow(list(theirs)).append_column("v", pa.array([*theirs.values()]))
        assert sorted(map(repr, ours)) == sorted(map(repr, as_ours.to_pylist()))
        return {_plain(key): text for key, text in theirs.items()}

    def _by_id(self, key) -> dict[str, Any]:
        return {str(field.field_id): value for field, value in zip(self.fields, key, strict=True)}

    def _core(self, calls) -> None:
        self.shared.java.request(
            "core", table=self.shared.java_name, commits=[calls], in_transaction=False
        )


def _plain(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """As `KEYS` has it."""
    known = {value: value for values in KEYS.values() for value in values if value is not True}
    return tuple(_same(value, known) for value in key)


def _same(value: Any, known: dict[Any, Any]) -> Any:
    if isinstance(value, str) and value not in known:
        return next((each for each in known if str(each).startswith(value.split("+")[0])), value)
    return value


def _arrow(values: list[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.UuidType):
        raw = pa.array([UUID(each).bytes for each in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(kind, raw)
    if pa.types.is_binary(kind):
        return pa.array([bytes.fromhex(each) for each in values], kind)
    if pa.types.is_timestamp(kind):
        bare = pa.array([each.removesuffix("+00:00") for each in values])
        return bare.cast(pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind)
    if pa.types.is_time(kind):
        return pa.array([dt.time.fromisoformat(each) for each in values], kind)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.string()).cast(kind)
