"""What the actors of the simulator ask for: rows, SQL statements, changes of schema and spec."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IntegerType, LongType, StringType

from tests.support.sim_files import Spec
from tests.support.sim_schema import AMOUNT, ID, REGION, Column, Named, Row, TableSchema

ARROW = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
ICEBERG = {"int": IntegerType(), "long": LongType(), "string": StringType()}
# Two names per lasting column. Extra columns come back under their names with other field ids, and
# other types.
NAMES = {ID: ("id", "key"), REGION: ("region", "area"), AMOUNT: ("amount", "total")}
EXTRAS = {"x0": ("int", "long", "string"), "x1": ("string",), "x2": ("int",)}
PARTITIONS: tuple[tuple[int, str], ...] = (
    (ID, "bucket[2]"),
    (ID, "bucket[3]"),
    (REGION, "identity"),
    (REGION, "truncate[1]"),
)
PARTITION_FIELDS_MAX = 2
BEYOND_INT = 1 << 33


@dataclass(slots=True)
class Serial:
    """Numbers that tell versions of a row apart."""

    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last


def draw_columns(rng: random.Random, schema: TableSchema) -> list[Column]:
    """The columns that a writer gives; it may leave out those that come and go."""
    extras = [column for column in schema.extras if rng.random() < 0.8]
    return [schema.by_id[ID], schema.by_id[REGION], schema.by_id[AMOUNT], *extras]


def draw_rows(
    rng: random.Random, columns: list[Column], *, keys: int, most: int, serial: Serial
) -> tuple[Row, ...]:
    """Rows of distinct keys, none to `most`."""
    rows = []
    for key in rng.sample(range(keys), rng.randint(0, most)):
        amount = serial.next()
        if columns[2].kind == "long" and len(columns) > AMOUNT and rng.random() < 0.2:
            amount += BEYOND_INT
        more = [_extra(rng, column) for column in columns[AMOUNT:]]
        rows.append((key, rng.choice(["eu", "us", None]), amount, *more))
    return tuple(rows)


def _extra(rng: random.Random, column: Column) -> Any:
    choices: list[Any] = [5, 6, 7] if column.kind != "string" else ["p", "q"]
    if column.kind == "long":
        choices.append(BEYOND_INT)
    return rng.choice(choices if column.required else [None, *choices])


def as_table(typed: dict[str, str], rows: tuple[Row, ...]) -> pa.Table | None:
    if not rows:
        return None
    columns = list(zip(*rows, strict=True))
    kinds = list(typed.items())[: len(columns)]
    arrays = [pa.array(c, ARROW[kind]) for c, (_, kind) in zip(columns, kinds, strict=True)]
    return pa.table(arrays, names=[name for name, _ in kinds])


def as_events(typed: dict[str, str], rows: tuple[Row, ...], gone: list[int]) -> pa.Table:
    """Change events: rows that come, before them keys that go, told apart by a column `op`."""
    key = next(iter(typed))
    columns = {name: pa.array([row[at] for row in rows], ARROW[kind])
               for at, (name, kind) in enumerate(typed.items())} if rows else {}  # fmt: skip
    upserts = pa.table({**columns, "op": ["+U"] * len(rows)} if rows else {})
    deletes = pa.table({key: pa.array(gone, ARROW[typed[key]]), "op": ["-D"] * len(gone)})
    parts = [each for each in (deletes, upserts) if each.num_rows]
    return pa.concat_tables(parts, promote_options="default")


@dataclass(frozen=True, slots=True)
class Statement:
    """A condition, assignments (none: DELETE), its columns, and what it makes of a row."""

    where: str
    assignments: dict[str, str]
    typed: dict[str, str]
    becomes: Callable[[Named], Named | None]


def draw_statement(rng: random.Random, keys: int, schema: TableSchema) -> Statement:
    """Every assignment changes every row that matches, so that row lineage has one right answer.

    Where writers leave columns out an amount may be NULL: who adds to it leaves these rows alone.
    """
    if schema.extras and rng.random() < 0.5:
        return _on_extra(rng, schema, rng.choice(schema.extras))
    key = rng.randrange(keys)
    ident, region, amount = (schema.name(each) for each in (ID, REGION, AMOUNT))
    rich = {amount: f"{amount} + 1000000"}
    match rng.randrange(5):
        case 0:
            used = [ID]
            drawn = (f"{ident} = {key}", {}, lambda row: row[ident] == key, None)
        case 1:
            used = [REGION]
            drawn = (
                f"NOT ({region} = 'eu')",
                {},
                lambda row: row[region] not in {"eu", None},
                None,
            )
        case 2:
            used = [ID, AMOUNT]
            drawn = (
                f"{ident} >= {key} AND {amount} IS NOT NULL",
                rich,
                lambda row: row[ident] >= key and row[amount] is not None,
                _richer(amount),
            )
        case 3:
            used = [ID, REGION]
            drawn = (
                f"{region} IS NULL AND {ident} <= {key}",
                {region: "'us'"},
                lambda row: row[region] is None and row[ident] <= key,
                lambda row: row | {region: "us"},
            )
        case _:
            used = [REGION, AMOUNT]
            drawn = (
                f"{region} = 'us' AND {amount} > {key}",
                {region: "NULL", **rich},
                lambda row: row[region] == "us" and row[amount] is not None and row[amount] > key,
                lambda row: _richer(amount)(row) | {region: None},
            )
    return _statement([schema.by_id[each] for each in used], *drawn)


def _on_extra(rng: random.Random, schema: TableSchema, column: Column) -> Statement:
    name, amount = column.name, schema.name(AMOUNT)
    value: Any = rng.choice([5, 7] if column.kind != "string" else ["p", "q"])
    rich = {amount: f"{amount} + 1000000"}
    match rng.randrange(3):
        case 0:
            used = [column]
            drawn = (f"{name} = {value!r}", {}, lambda row: row[name] == value, None)
        case 1:
            used = [replace(column, kind="any"), schema.by_id[AMOUNT]]
            drawn = (
                f"{name} IS NULL AND {amount} IS NOT NULL",
                rich,
                lambda row: row[name] is None and row[amount] is not None,
                _richer(amount),
            )
        case _:
            used = [column, schema.by_id[AMOUNT]]
            drawn = (
                f"NOT ({name} = {value!r}) AND {amount} IS NOT NULL",
                {name: repr(value), **rich},
                lambda row: row[name] not in {value, None} and row[amount] is not None,
                lambda row: _richer(amount)(row) | {name: value},
            )
    return _statement(used, *drawn)


def _statement(
    used: Iterable[Column],
    where: str,
    assignments: dict[str, str],
    matches: Callable[[Named], bool],
    change: Callable[[Named], Named] | None,
) -> Statement:
    def becomes(row: Named) -> Named | None:
        if not matches(row):
            return row
        return None if change is None else change(row)

    typed = {column.name: column.kind for column in used}
    return Statement(where, assignments, typed, becomes)


def _richer(amount: str) -> Callable[[Named], Named]:
    return lambda row: row | {amount: row[amount] + 1_000_000}


@dataclass(frozen=True, slots=True)
class SchemaEdit:
    """A change of the schema, and whether a schema shows it."""

    text: str
    edit: Callable[[UpdateSchema], object]
    shows: Callable[[TableSchema, Spec], bool]


def draw_schema_edit(rng: random.Random, schema: TableSchema) -> SchemaEdit:
    ints = [column.name for column in schema.columns if column.kind == "int"]
    missing = [name for name in EXTRAS if name not in schema.by_name]
    choices: list[Callable[[], SchemaEdit]] = [lambda: _rename(rng, schema)]
    if ints:
        choices.append(lambda: _widen(rng.choice(ints)))
    if missing:
        choices += [lambda: _add(rng, rng.choice(missing))] * 2
    if schema.extras:
        choices += [lambda: _drop(rng.choice(schema.extras).name),
                    lambda: _move(rng.choice(schema.extras).name)]  # fmt: skip
    return rng.choice(choices)()


def _add(rng: random.Random, name: str) -> SchemaEdit:
    kind = rng.choice(EXTRAS[name])
    default = rng.choice([None, "p" if kind == "string" else 7])
    required = default is not None and rng.random() < 0.4
    return SchemaEdit(
        f"add {name} {kind} default {default} required {required}",
        lambda s: s.add_column(name, ICEBERG[kind], required=required, default_value=default),
        lambda schema, _: name in schema.by_name,
    )


def _rename(rng: random.Random, schema: TableSchema) -> SchemaEdit:
    field_id = rng.choice(list(NAMES))
    old = schema.name(field_id)
    new = next(name for name in NAMES[field_id] if name != old)
    return SchemaEdit(
        f"rename {old} to {new}",
        lambda s: s.rename_column(old, new),
        lambda schema, _: new in schema.by_name,
    )


def _widen(name: str) -> SchemaEdit:
    return SchemaEdit(
        f"widen {name}",
        lambda s: s.update_column(name, LongType()),
        lambda schema, _: name in schema.by_name and schema.by_name[name].kind == "long",
    )


def _drop(name: str) -> SchemaEdit:
    return SchemaEdit(
        f"drop {name}",
        lambda s: s.delete_column(name),
        lambda schema, _: name not in schema.by_name,
    )


def _move(name: str) -> SchemaEdit:
    return SchemaEdit(
        f"move {name} first",
        lambda s: s.move_first(name),
        lambda schema, _: schema.columns[0].name == name,
    )


@dataclass(frozen=True, slots=True)
class SpecEdit:
    """A change of the partition spec, and whether a spec shows it."""

    text: str
    edit: Callable[[UpdateSpec], object]
    shows: Callable[[TableSchema, Spec], bool]


def draw_spec_edit(
    rng: random.Random, schema: TableSchema, fields: dict[str, tuple[int, str]]
) -> SpecEdit:
    """Add, remove or replace a field.

    Args:
        rng: Chooses.
        schema: For the columns' names.
        fields: The present spec: source field id and transform by the field's name.
    """
    present = {what: name for name, what in fields.items() if what[1] != "void"}
    missing = [each for each in PARTITIONS if each not in present]
    gone = rng.choice([None, *present]) if len(present) < PARTITION_FIELDS_MAX else (
        rng.choice(list(present)))  # fmt: skip
    added = rng.choice([None, *missing]) if gone is not None else rng.choice(missing)

    def edit(spec: UpdateSpec) -> None:
        if gone is not None:
            spec.remove_field(present[gone])
        if added is not None:
            source, transform = added
            name = f"p{source}_{transform.replace('[', '_').rstrip(']')}"
            spec.add_field(schema.name(source), parse_transform(transform), name)

    return SpecEdit(
        f"remove {gone} add {added}",
        edit,
        lambda _, spec: (gone is None or gone not in spec) and (added is None or added in spec),
    )
