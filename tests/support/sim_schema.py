"""Schemas as the oracle sees them: by field id, read from metadata JSON with its own code.

A name means what it meant in some version of the schema that was current while an operation ran;
which one, the operation's files show. A row is a tuple of values in the order of its schema's ids.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

Row = tuple[Any, ...]
Named = dict[str, Any]
ID, REGION, AMOUNT = 1, 2, 3  # field ids of the columns that are always there, in this order
COMPUTED = "twice"  # a stored computed column of some seeds; no schema here has it
_PARQUET_ID = b"PARQUET:field_id"
_INT_MAX = (1 << 31) - 1
_WIDENINGS = {"int": {"int", "long"}, "long": {"long"}, "string": {"string"}}
_TAKEN_BY = {
    "int": {"int", "long"},
    "long": {"int", "long"},  # by an int if the values fit
    "string": {"string"},
    "any": {"int", "long", "string"},
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of one schema version."""

    field_id: int
    name: str
    kind: str  # int | long | string
    required: bool
    initial_default: Any
    write_default: Any


@dataclass(frozen=True)
class TableSchema:
    """One schema version; `columns` in table order."""

    schema_id: int
    columns: tuple[Column, ...]
    fields: tuple[int, ...] = field(init=False)
    by_name: dict[str, Column] = field(init=False)
    by_id: dict[int, Column] = field(init=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "fields", tuple(sorted(column.field_id for column in self.columns)))
        set_(self, "by_name", {column.name: column for column in self.columns})
        set_(self, "by_id", {column.field_id: column for column in self.columns})

    def name(self, field_id: int) -> str:
        return self.by_id[field_id].name

    @property
    def extras(self) -> list[Column]:
        """Columns that come and go."""
        return [column for column in self.columns if column.field_id > AMOUNT]

    def row(self, values: Mapping[int, Any]) -> Row:
        """Values by field id as a row of this version; what is missing has its initial default."""
        return tuple(
            values[f] if f in values else self.by_id[f].initial_default for f in self.fields
        )

    def takes(self, typed: Mapping[str, str]) -> bool:
        """Whether columns of these names and types can be written into it, if the values fit."""
        return all(
            name in self.by_name and self.by_name[name].kind in _TAKEN_BY[kind]
            for name, kind in typed.items()
        )

    def bound(self, names: Iterable[str], rows: Iterable[Row]) -> list[dict[int, Any]] | None:
        """Rows given by names as values by field id; None: a null, or a number, that cannot be."""
        ids = [self.by_name[name].field_id for name in names]
        given = set(ids)
        filled = {c.field_id: c.write_default for c in self.columns if c.field_id not in given}
        bound = [filled | dict(zip(ids, row, strict=True)) for row in rows]
        required = [c.field_id for c in self.columns if c.required]
        ints = [c.field_id for c in self.columns if c.kind == "int"]
        if any(row[f] is None for row in bound for f in required) or any(
            abs(row[f] or 0) > _INT_MAX for row in bound for f in ints
        ):
            return None
        return bound


def read_schema(data: Mapping[str, Any]) -> TableSchema:
    """From metadata JSON."""
    return TableSchema(
        data["schema-id"],
        tuple(
            Column(
                each["id"],
                each["name"],
                each["type"],
                each["required"],
                each.get("initial-default"),
                each.get("write-default"),
            )
            for each in data["fields"]
            if each["name"] != COMPUTED
        ),
    )


class SchemaHistory:
    """All versions of a table's schema, and when each was current. Checks what may change."""

    def __init__(self) -> None:
        self.by_schema_id: dict[int, TableSchema] = {}
        self._log: list[tuple[int, TableSchema]] = []
        self._known: dict[int, Column] = {}
        self._last_id = 0

    @property
    def current(self) -> TableSchema:
        return self._log[-1][1]

    def see(self, metadata: Mapping[str, Any], swap: int) -> None:
        """A new metadata version, the `swap`th."""
        assert metadata["last-column-id"] >= self._last_id, "last-column-id went back"
        for data in metadata["schemas"]:
            schema = read_schema(data)
            known = self.by_schema_id.setdefault(schema.schema_id, schema)
            assert known == schema, f"schema {schema.schema_id} changed"
            if known is schema:
                self._check_columns(schema)
        self._last_id = metadata["last-column-id"]
        current = self.by_schema_id[metadata["current-schema-id"]]
        assert {ID, REGION, AMOUNT} <= set(current.fields), current
        if not self._log or self._log[-1][1] is not current:
            self._log.append((swap, current))

    def since(self, swap: int) -> list[TableSchema]:
        """The versions that were current at the `swap`th swap or later, newest first."""
        first = max((at for at, (when, _) in enumerate(self._log) if when <= swap), default=0)
        found = [schema for _, schema in self._log[first:]]
        return list({schema.schema_id: schema for schema in reversed(found)}.values())

    def _check_columns(self, schema: TableSchema) -> None:
        for column in schema.columns:
            known = self._known.get(column.field_id)
            if known is None:
                assert not self._known or column.field_id > self._last_id, f"id reused: {column}"
            else:
                assert column.kind in _WIDENINGS[known.kind], f"{known} became {column}"
                assert column.initial_default == known.initial_default, column
            self._known[column.field_id] = column


@dataclass(frozen=True, slots=True)
class FileRows:
    """A Parquet file's columns by field id, and the row ids and updates stored in it."""

    count: int
    columns: dict[int, list[Any]]
    row_ids: list[int | None]
    updates: list[int | None]
    missing: list[str | None]  # what staged rows leave out

    @staticmethod
    def read(data: bytes) -> FileRows:
        table = pq.read_table(io.BytesIO(data))
        columns = {
            int((each.metadata or {})[_PARQUET_ID]): table.column(at).to_pylist()
            for at, each in enumerate(table.schema)
        }
        lineage = [
            table.column(name).to_pylist()
            if name in table.column_names
            else [None] * table.num_rows
            for name in ("_row_id", "_last_updated_sequence_number", "_icefold_missing_columns")
        ]
        return FileRows(table.num_rows, columns, *lineage)

    def lacks(self, at: int, field_id: int) -> bool:
        """Whether a staged row leaves a column out."""
        text = self.missing[at]
        if text is None:
            return False
        sign, ids = text[0], {int(number) for number in text[1:].split(",")}
        assert sign in "+-", text
        return (field_id in ids) == (sign == "-")

    def rows(self, schema: TableSchema) -> list[Row]:
        columns = [
            self.columns[f] if f in self.columns else [schema.by_id[f].initial_default] * self.count
            for f in schema.fields
        ]
        return list(zip(*columns, strict=True))


def in_schema(rows: Counter[Row], old: TableSchema, new: TableSchema) -> Counter[Row]:
    """The same rows under another version."""
    if old.fields == new.fields:
        return rows
    after: Counter[Row] = Counter()
    for row, count in rows.items():
        after[moved(row, old, new)] += count
    return after


def moved(row: Row, old: TableSchema, new: TableSchema) -> Row:
    """One row under another version."""
    return new.row(dict(zip(old.fields, row, strict=True)))


def rewritten(
    becomes: Callable[[Named], Named | None], bound: TableSchema, old: TableSchema, new: TableSchema
) -> Callable[[Row], Row | None]:
    """What a statement, understood under `bound`, makes of a row of `old`, as a row of `new`."""

    def apply(row: Row) -> Row | None:
        values = dict(zip(old.fields, row, strict=True))
        names = {c.name: values.get(c.field_id, c.initial_default) for c in bound.columns}
        became = becomes(names)
        if became is None:
            return None
        return new.row(values | {bound.by_name[name].field_id: v for name, v in became.items()})

    return apply
