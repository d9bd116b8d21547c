"""Random histories in which the structure of a table changes while changes wait, beside a model.

Columns come and go, at any depth, change names and types and take old names; partition specs
and sort orders change, and old ones come back; the key changes. Rows are staged whole, with columns
left out, and by another writer, whose equality deletes name any columns, under any spec, new or
old: such a delete reaches one partition of that spec. Or that writer commits to `main`, which is
resolved in place. The model folds dicts by field id; DuckDB reads `main`, too.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
)

import tableformat as tf
from maintenance import CompactOptions, RewriteManifestsOptions, compact, rewrite_manifests
from resolver import resolve
from resolver.index_check import verify
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.paths import data_file_locations, equality_delete_locations
from tableformat.spec.types import arrow_schema
from tableformat.write.data_files import write_data_files
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.drawn_filters import drawn_filter
from tests.support.evolving_rows import (
    Row,
    default,
    drawn,
    drawn_field,
    found,
    named,
    shown,
    shown_field,
)
from tests.support.foreign_table import edited
from tests.support.foreign_tool import ForeignTool, now_ms, write
from tests.support.interop_engines import duckdb_connection
from tests.support.table_checker import LiveFile, check_table, read_metadata

KEYS = range(8)
BEYOND = 1_000_000  # what an UPDATE adds to the number that tells versions of a row apart
INTEGERS = pa.struct([("a", pa.int32()), ("b", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("k2", pa.int32(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        ("region", pa.string()),
        ("day", pa.date32()),
        ("x", pa.float32()),
        ("d", pa.decimal128(9, 2)),
        ("s", INTEGERS),
        ("ls", pa.list_(INTEGERS)),
        ("m", pa.map_(pa.string(), INTEGERS)),
    ]
)
NAMES = [*SCHEMA.names[3:], "c1", "c2", "c3"]
WIDER = {"int": LongType(), "float": DoubleType(), "decimal(9, 2)": DecimalType(18, 2)}
TYPES: tuple[Callable[[], Any], ...] = (IntegerType, StringType, DateType, DoubleType)
TRANSFORMS = {
    "int": ["identity", "bucket[3]", "truncate[10]", "void"],
    "long": ["identity", "bucket[3]", "truncate[10]", "void"],
    "string": ["identity", "bucket[2]", "truncate[1]", "void"],
    "date": ["identity", "bucket[2]", "year", "month", "day", "void"],
    "timestamp": ["identity", "bucket[2]", "year", "month", "day", "hour"],
    "double": ["identity"],
    "float": ["identity"],
    "decimal": ["identity", "bucket[2]", "truncate[50]"],
}
WEIGHTS = {
    "stage": 7, "resolve": 5, "change_columns": 6, "change_nested": 2, "change_spec": 5,
    "old_spec": 1.5, "change_order": 1.5, "append": 2, "delete": 2, "update": 3, "upsert": 2,
    "compact": 3, "rewrite_manifests": 1, "change_publish": 1, "date_to_timestamp": 0.5,
}  # fmt: skip
OF_MAIN = {"append", "delete", "update", "upsert"}
WAYS = {"whole": {}, "partial": {"partial": 7}, "foreign": {"foreign": 8},
        "keys": {"change_key": 3, "foreign": 2}, "in-place": {"foreign": 8}}  # fmt: skip


class Skipped(Exception):
    """The step does not apply here."""


@dataclass(frozen=True)
class Deleted:
    """What equality deletes name: values of some columns, everywhere or in one partition."""

    ids: tuple[int, ...]
    values: frozenset[tuple[Any, ...]]
    place: tuple[int, str] | None = None


@dataclass(frozen=True)
class Staged:
    """What a staged snapshot changes. `lacking`: the columns that its rows leave out."""

    deletes: tuple[Deleted, ...]
    rows: tuple[Row, ...]
    lacking: frozenset[int] = field(default=frozenset())


class History:
    """One table and the model; a step is a method."""

    def __init__(self, folder, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.way = rng.choice([*WAYS])
        self.version = rng.choice([2, 3, 3]) if self.way != "partial" else 3
        self.tool = ForeignTool(folder, "t", "rows")
        by = rng.choice([[], [], ["region"], ["bucket(2, id)"], ["month(day)", "truncate(5, k2)"]])
        properties = {
            "format-version": str(self.version),
            "commit.manifest.min-count-to-merge": rng.choice(["2", "100"]),
            "icefold.on-missing-row": "null",
        }
        catalog = tf.open_catalog("local", warehouse=str(folder))
        self.table = catalog.create_table(
            "t.rows", SCHEMA, primary_key=["id"], partition_by=by, properties=properties
        )
        self.schema: Any = None
        self.fields: dict[int, Any] = {}  # also those that are gone
        self.read_schema()
        ids = {each["name"]: each["id"] for each in self.schema["fields"]}
        self.id, self.k2, self.n = ids["id"], ids["k2"], ids["n"]
        self.twice: int | None = None
        if rng.random() < 0.3:
            self.table.add_computed_column("twice", "n * 2", "long", stored=True)
            self.read_schema()
            self.twice = self.schema["fields"][-1]["id"]
        self.main: list[Row] = []
        self.log: list[Staged] = []
        self.published = self.number = self.new_key = self.updates = 0
        self.is_apart = False  # `main` has what staging has not
        self.places: dict[int, tuple[int, str]] = {}
        self.counts: Counter[str] = Counter()
        self.append()

    # -- the model ---------------------------------------------------------------------------------

    def metadata(self) -> dict[str, Any]:
        """As the file says it, which the catalog names."""
        return read_metadata(
            self.table.environment.store.get, self.table.refresh().metadata_location
        )

    def read_schema(self) -> None:
        metadata = self.metadata()
        current = metadata["current-schema-id"]
        [self.schema] = [s for s in metadata["schemas"] if s["schema-id"] == current]
        self.fields |= {each["id"]: each for each in self.schema["fields"]}

    @property
    def key(self) -> tuple[int, ...]:
        return tuple(sorted(self.schema["identifier-field-ids"]))

    def name(self, field_id: int) -> str:
        return str(next(f["name"] for f in self.schema["fields"] if f["id"] == field_id))

    def column(self, name: str) -> Any:
        """A column of the schema, if there is one; nested ones by their path."""
        *above, last = name.split(".")
        struct = self.schema
        for each in above:
            struct = next((f["type"] for f in struct["fields"] if f["name"] == each), None)
            struct = struct.get("element", struct.get("value", struct)) if struct else None
            if struct is None or "fields" not in struct:
                return None
        return next((f for f in struct["fields"] if f["name"] == last), None)

    def values(self, row: Row, ids: Iterable[int]) -> tuple[Any, ...]:
        """Of top-level columns, also of those that are gone."""
        return tuple(shown_field(row, self.fields[each]) for each in ids)

    def fresh(self, keys: Iterable[int]) -> list[Row]:
        rows = []
        for key in keys:
            self.number += 1
            row = {each["id"]: drawn_field(self.rng, each) for each in self.schema["fields"]}
            rows.append(row | {self.id: key, self.k2: self.rng.randrange(3), self.n: self.number})
        return [self.computed(row) for row in rows]

    def computed(self, row: Row) -> Row:
        return row if self.twice is None else row | {self.twice: 2 * row[self.n]}

    def arrow(self, rows: Iterable[Row], without: Iterable[int] = ()) -> pa.Table:
        struct = {"type": "struct", "fields": self.schema["fields"]}
        left_out = {*without, self.twice}
        names = [f["name"] for f in struct["fields"] if f["id"] not in left_out]
        schema = arrow_schema(self.table.refresh().schema())
        wanted = pa.schema([schema.field(each) for each in names])
        return pa.Table.from_pylist([named(row, struct) for row in rows], schema=wanted)

    def draw(self, least: int = 1, most: int = 4) -> list[int]:
        return self.rng.sample(KEYS, self.rng.randint(least, most))

    def unused(self) -> list[int]:
        self.new_key += 2
        return [100 + self.new_key, 101 + self.new_key]

    def seen(self) -> list[Row]:
        """All rows, once everything staged is published."""
        rows = self.main
        for each in self.log[self.published :]:
            rows = self.folded(rows, each)
        return rows

    def folded(self, rows: list[Row], staged: Staged) -> list[Row]:
        new = []
        for row in staged.rows:
            if staged.lacking:
                key = self.values(row, self.key)
                olds = [old for old in rows if self.values(old, self.key) == key]
                row = (olds[0] if olds else self.defaults()) | row
            new.append(row)
        return [row for row in rows if not any(self.dies(row, d) for d in staged.deletes)] + new

    def defaults(self) -> Row:
        return {each["id"]: default(each, "write-default") for each in self.schema["fields"]}

    def dies(self, row: Row, deleted: Deleted) -> bool:
        if deleted.place not in (None, self.places.get(row[self.n])):
            return False
        kinds = [self.fields[each]["type"] for each in deleted.ids]
        gone = {tuple(map(shown, values, kinds)) for values in deleted.values}
        return self.values(row, deleted.ids) in gone

    def deleted(self, rows: Iterable[Row], ids: tuple[int, ...]) -> Deleted:
        return Deleted(ids, frozenset(self.values(row, ids) for row in rows))

    # -- what is stored ----------------------------------------------------------------------------

    def live(self, branch: str) -> tuple[int | None, list[LiveFile]]:
        """The head of a branch and its files, read with code of its own."""
        metadata = self.metadata()
        if branch not in metadata.get("refs", {}):
            return None, []
        head = metadata["refs"][branch]["snapshot-id"]
        read = self.table.environment.store.get
        return head, check_table(read, self.table.metadata_location)[head].live

    def note_places(self, branch: str) -> None:
        """Where the rows of a branch are filed."""
        for each in self.live(branch)[1]:
            if each.content == 0:
                for [number] in self.stored(each, (self.n,)):
                    self.places[number] = place_of(each)

    def stored(self, file: LiveFile, ids: tuple[int, ...]) -> list[tuple[Any, ...]]:
        """Columns of a Parquet file, by field id."""
        rows = pq.read_table(file.path.removeprefix("file://"))
        at = {int(f.metadata[b"PARQUET:field_id"]): f.name for f in rows.schema if f.metadata}
        columns = [rows[at[each]].to_pylist() for each in ids]
        kinds = [self.fields[each]["type"] for each in ids]
        return [tuple(map(shown, row, kinds)) for row in zip(*columns, strict=True)]

    # -- writers -----------------------------------------------------------------------------------

    def stage(self) -> None:
        if self.way == "in-place":
            self.foreign()
            return
        rows, gone = self.fresh(self.draw()), self.fresh(self.draw(0, 2))
        seen = self.seen()
        if seen and self.rng.random() < 0.5:  # a key that is there, whatever its columns are
            old = self.rng.choice(seen)
            gone.append(self.fresh([old[self.id]])[0] | {self.k2: old[self.k2]})
        keys = self.arrow(gone).select([self.name(each) for each in self.key]) if gone else None
        self.table.refresh().stage(self.arrow(rows), keys)
        self.staged(Staged((self.deleted([*rows, *gone], self.key),), tuple(rows)))

    def partial(self) -> None:
        """Rows that leave columns out, of keys that are there."""
        seen = {self.values(row, self.key): row for row in self.seen()}
        if not seen:
            raise Skipped
        olds = self.rng.sample([*seen.values()], min(len(seen), 2))
        fixed = {*self.key, self.n, self.k2, self.twice}
        given = [each["id"] for each in self.schema["fields"]]
        lacking = frozenset(i for i in given if i not in fixed and self.rng.random() < 0.6)
        required = [f["id"] for f in self.schema["fields"] if f["required"]]
        lacking -= {i for i in required if self.fields[i].get("write-default") is None}
        rows = [self.fresh([old[self.id]])[0] | {self.k2: old[self.k2]} for old in olds]
        left = [{i: v for i, v in row.items() if i not in lacking} for row in rows]
        self.table.refresh().stage(self.arrow(left, lacking), columns="partial")
        self.staged(Staged((self.deleted(rows, self.key),), tuple(left), lacking))

    def staged(self, change: Staged) -> None:
        self.log.append(change)
        if self.way in ("foreign", "keys"):
            self.note_places("staging")

    def foreign(self) -> None:
        """As Flink commits: rows, and deletes of some columns under some spec."""
        branch = "main" if self.way == "in-place" else "staging"
        if branch == "main":
            self.note_places("main")
        seen = self.seen()
        if not seen:
            raise Skipped
        table, environment = self.table.refresh(), self.table.environment
        metadata = table.state.metadata
        given = {"schema": table.schema(), "properties": metadata.properties}
        victims = self.rng.sample(seen, min(len(seen), 2))
        choices = [self.key, (self.id,), (self.id, self.k2), *self.flat()]
        ids = tuple(sorted(self.rng.choice(choices)))
        present = {each["id"] for each in self.schema["fields"]}
        specs = [s for s in metadata.partition_specs if {f.source_id for f in s.fields} <= present]
        spec = self.rng.choice(specs)
        rows = self.fresh(self.rng.choice([self.draw(0), self.unused()]))
        data = write_data_files(
            environment.store, self.arrow(rows), spec=metadata.spec(), **given,
            location_for=data_file_locations(metadata, environment.runtime.ids),
        )  # fmt: skip
        wanted = {*ids, *(f.source_id for f in spec.fields)}
        names = [self.name(each) for each in wanted]
        whole = [self.fresh([0])[0] | row for row in victims]
        keys = write_equality_deletes(
            environment.store, self.arrow_of(whole).select(names), equality_ids=ids, spec=spec,
            location_for=equality_delete_locations(metadata, environment.runtime.ids), **given,
        )  # fmt: skip
        change = Changeset(
            kind=CommitKind.ROW_DELTA,
            branch=branch,
            added_data_files=tuple(data),
            added_delete_files=tuple(keys),
            carry_marker=False,
        )
        commit(environment, table.identifier, change)
        head, live = self.live(branch)
        specs_of_files = {each.spec_id for each in live}
        sources = {each.source_id for each in spec.fields}
        is_global = all(str(each.transform) == "void" for each in spec.fields)
        if branch == "staging" and specs_of_files == {spec.spec_id} and sources <= {*ids}:
            is_global = True  # every row of these keys was there, wherever it is moved
        mine = [each for each in live if each.content == 2 and each.snapshot_id == head]
        deletes = tuple(
            Deleted(ids, frozenset(self.stored(each, ids)), None if is_global else place_of(each))
            for each in mine
        )
        if branch == "main":
            self.main = self.folded(self.main, Staged(deletes, tuple(rows)))
        else:
            self.staged(Staged(deletes, tuple(rows)))

    def arrow_of(self, rows: list[Row]) -> pa.Table:
        """With the computed column."""
        struct = {"type": "struct", "fields": self.schema["fields"]}
        schema = arrow_schema(self.table.refresh().schema())
        return pa.Table.from_pylist([named(row, struct) for row in rows], schema=schema)

    def flat(self) -> list[tuple[int, ...]]:
        """Columns that a delete may name."""
        kinds = ("string", "int", "long", "date", "timestamp")
        return [(f["id"],) for f in self.schema["fields"] if f["type"] in kinds]

    def append(self) -> None:
        rows = self.fresh(self.unused())
        self.table.refresh().append(self.arrow(rows))
        self.main = [*self.main, *rows]

    def condition(self) -> tuple[str, Callable[[Row], bool]]:
        """SQL, and what it means."""
        some = drawn_filter(self.rng, self.schema["fields"], self.main)
        return some.text, some.keeps

    def mode(self) -> str:
        return self.rng.choice(["merge-on-read", "copy-on-write"])

    def delete(self) -> None:
        self.only_v3()
        where, is_hit = self.condition()
        self.table.refresh().delete(where, mode=self.mode())
        self.main = [row for row in self.main if not is_hit(row)]

    def update(self) -> None:
        self.only_v3()
        where, is_hit = self.condition()
        more = BEYOND << self.updates  # so that no two rows get the same number
        self.updates += 1
        assigned, sets = {}, {f"`{self.name(self.n)}`": f"`{self.name(self.n)}` + {more}"}
        for each in self.schema["fields"]:
            if each["type"] in ("string", "int", "date") and each["id"] not in (
                self.id, self.k2, self.n,
            ) and self.rng.random() < 0.4:  # fmt: skip
                value = drawn(self.rng, each["type"])
                assigned[each["id"]] = value
                text = f"'{value}'" if isinstance(value, str) else str(value)
                sets[f"`{each['name']}`"] = f"DATE '{value}'" if each["type"] == "date" else text
        self.table.refresh().update(sets, where, mode=self.mode())
        self.main = [
            self.computed(row | assigned | {self.n: row[self.n] + more}) if is_hit(row) else row
            for row in self.main
        ]

    def upsert(self) -> None:
        self.only_v3()
        rows = self.fresh(self.draw())
        self.table.refresh().upsert(self.arrow(rows), mode=self.mode())
        self.main = self.folded(self.main, Staged((self.deleted(rows, self.key),), tuple(rows)))

    def only_v3(self) -> None:
        if self.version == 2:
            raise Skipped

    # -- structure ---------------------------------------------------------------------------------

    def evolve(self, edit: Callable[[Any], object], *, spec: bool = False) -> None:
        """A change that may be refused, and then changes nothing."""
        table = self.table.refresh()
        before = self.metadata()
        try:
            (table.update_partitioning if spec else table.update_schema)(edit)
        except tf.InvalidInputError as error:
            assert self.metadata() == before
            self.counts["refused: " + re.sub(r"[0-9]+|'\w+'", "_", str(error))[:70]] += 1
        self.read_schema()

    def change_columns(self) -> None:
        rng = self.rng
        fixed = (self.id, self.k2, self.n, self.twice)
        others = [f["name"] for f in self.schema["fields"] if f["id"] not in fixed]
        free = [name for name in NAMES if self.column(name) is None]
        anyone = rng.choice([f["name"] for f in self.schema["fields"] if f["id"] != self.twice])
        wider = [f for f in self.schema["fields"] if str(f["type"]) in WIDER]
        match rng.choice(["add", "add", "drop", "rename", "swap", "widen", "optional", "move"]):
            case "add" if free:
                kind = rng.choice(TYPES)()
                value = {"int": 7, "string": "was", "date": "2026-02-03", "double": 0.5}[str(kind)]
                value = value if self.version == 3 and rng.random() < 0.6 else None
                required = value is not None and rng.random() < 0.4
                name = rng.choice(free)
                self.evolve(
                    lambda e: e.add_column(name, kind, required=required, default_value=value)
                )
            case "drop" if others:
                self.evolve(lambda e: e.delete_column(rng.choice(others)))
            case "rename" if free:
                self.evolve(lambda e: e.rename_column(anyone, rng.choice(free)))
            case "swap" if free and others:  # the old name goes to a new column
                old, kind = rng.choice(others), rng.choice(TYPES)()
                self.evolve(lambda e: e.rename_column(old, rng.choice(free)))
                if self.column(old) is None:
                    self.evolve(lambda e: e.add_column(old, kind))
            case "widen" if wider:
                each = rng.choice(wider)
                self.evolve(lambda e: e.update_column(each["name"], WIDER[str(each["type"])]))
            case "optional" if others:
                self.evolve(lambda e: e.make_column_optional(rng.choice(others)))
            case "move":
                self.evolve(lambda e: e.move_first(anyone))
            case _:
                raise Skipped

    def change_nested(self) -> None:
        nested = [f for f in self.schema["fields"] if not isinstance(f["type"], str)]
        if not nested:
            raise Skipped
        top = self.rng.choice(nested)
        inner = top["type"].get("element", top["type"].get("value", top["type"]))
        way = {"list": ("element",), "map": ("value",)}.get(top["type"]["type"], ())
        path, fields = (top["name"], *way), inner["fields"]
        one = self.rng.choice(fields)
        match self.rng.choice(["add", "add", "rename", "drop", "widen"]):
            case "add":
                value = 5 if self.version == 3 and self.rng.random() < 0.5 else None
                name = f"f{self.number}"
                self.evolve(
                    lambda e: e.add_column((top["name"], name), IntegerType(), default_value=value)
                )
            case "rename":
                self.evolve(lambda e: e.rename_column((*path, one["name"]), f"g{self.number}"))
            case "drop" if len(fields) > 1:
                self.evolve(lambda e: e.delete_column((*path, one["name"])))
            case "widen" if str(one["type"]) in WIDER:
                wider = WIDER[one["type"]]
                self.evolve(lambda e: e.update_column((*path, one["name"]), wider))
            case _:
                raise Skipped

    def change_spec(self) -> None:
        rng, fields = self.rng, self.table.refresh().spec().fields
        sources = [f["name"] for f in self.schema["fields"] if isinstance(f["type"], str)]
        sources += [f"{f['name']}.{each['name']}" for f in self.schema["fields"]
                    if isinstance(f["type"], dict) and f["type"]["type"] == "struct"
                    for each in f["type"]["fields"]]  # fmt: skip
        source = rng.choice(sources)
        kind = self.column(source)["type"]
        transform = rng.choice(TRANSFORMS["decimal" if kind.startswith("decimal") else kind])
        gone = rng.choice(fields).name if fields and rng.random() < 0.7 else None
        name = rng.choice(["p", "q", None, f"p{self.number}"])

        def edit(spec: Any) -> None:
            if gone is not None:
                spec.remove_field(gone)
            if gone is None or rng.random() < 0.6:
                spec.add_field(source, transform, name)

        self.evolve(edit, spec=True)

    def old_spec(self) -> None:
        """As Java sets one that the table has had."""
        metadata = self.metadata()
        ids = self.ids_of(self.schema)
        specs = [s["spec-id"] for s in metadata["partition-specs"]
                 if {f["source-id"] for f in s["fields"]} <= ids]  # fmt: skip
        self.edit(lambda new: new.update({"default-spec-id": self.rng.choice(specs)}))

    def ids_of(self, struct: Any) -> set[int]:
        """Of a struct and the structs in it."""
        found_ids = {each["id"] for each in struct["fields"]}
        for each in struct["fields"]:
            if isinstance(each["type"], dict) and each["type"]["type"] == "struct":
                found_ids |= self.ids_of(each["type"])
        return found_ids

    def change_order(self) -> None:
        some = [f for f in self.schema["fields"] if isinstance(f["type"], str)]
        fields = []
        for each in self.rng.sample(some, self.rng.randint(0, 2)):
            kind = "decimal" if each["type"].startswith("decimal") else each["type"]
            plain = self.rng.random() < 0.7
            transform = "identity" if plain else self.rng.choice(TRANSFORMS[kind])
            if transform != "void":
                fields.append({
                    "transform": transform, "source-id": each["id"],
                    "direction": self.rng.choice(["asc", "desc"]),
                    "null-order": self.rng.choice(["nulls-first", "nulls-last"]),
                })  # fmt: skip
        orders = self.metadata()["sort-orders"]
        new_id = 1 + max(each["order-id"] for each in orders) if fields else 0
        order = [{"order-id": new_id, "fields": fields}] if fields else []
        known = orders if fields or any(o["order-id"] == 0 for o in orders) else [
            *orders, {"order-id": 0, "fields": []}]  # fmt: skip
        self.edit(
            lambda new: new.update(
                {"sort-orders": [*known, *order], "default-sort-order-id": new_id}
            )
        )

    def date_to_timestamp(self) -> None:
        """As v3 allows it where no partition value would become another one."""
        self.only_v3()
        used = {
            f["source-id"] for s in self.metadata()["partition-specs"] for f in s["fields"]
            if f["transform"] not in ("year", "month", "day", "void")
        }  # fmt: skip
        dates = [f for f in self.schema["fields"] if f["type"] == "date" and f["id"] not in used]
        if not dates:
            raise Skipped
        one = self.rng.choice(dates)
        if "initial-default" in one or "write-default" in one:
            raise Skipped

        def change(new: dict[str, Any]) -> None:
            number = 1 + max(each["schema-id"] for each in new["schemas"])
            fields = [
                each | {"type": "timestamp"} if each["id"] == one["id"] else each
                for each in self.schema["fields"]
            ]
            schema = self.schema | {"schema-id": number, "fields": fields}
            new.update({"schemas": [*new["schemas"], schema], "current-schema-id": number})

        self.edit(change)

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Another tool changes metadata."""
        table = self.tool.table()
        self.tool.swap(table, edited(write, table, change, now_ms()))
        self.read_schema()

    def change_key(self) -> None:
        key = self.rng.choice([[self.id], [self.id, self.k2]])
        self.table.refresh().set_primary_key([self.name(each) for each in key], check=False)
        self.read_schema()

    def change_publish(self) -> None:
        self.only_v3()
        way = self.rng.choice(["link", "rewrite"])
        self.table.refresh().set_properties({"icefold.publish": way})

    # -- maintenance -------------------------------------------------------------------------------

    def resolve(self) -> None:
        self.note_places("main")
        table = self.table.refresh()
        if self.way == "in-place":
            resolve(table, staging="main", target="main")
            return
        if not self.log:
            raise Skipped
        report = resolve(table, limit=self.rng.choice([None, 1, 2]))
        until = self.published + report.staged_snapshots
        for each in self.log[self.published : until]:
            self.main = self.folded(self.main, each)
        self.published = until

    def compact(self) -> None:
        strategy = self.rng.choice(["bin-pack", "sort", "sort"])
        some = [f["name"] for f in self.schema["fields"] if isinstance(f["type"], str)]
        by = (self.rng.choice(some),) if self.rng.random() < 0.4 else ()
        options = CompactOptions(
            input_files_min=2, rewrite_all=True, strategy=strategy,
            sort_by=by if strategy == "sort" else (),
        )  # fmt: skip
        try:
            report = compact(self.table.refresh(), options)
        except (tf.UnsupportedError, tf.InvalidInputError) as error:
            if by or not re.search("sort by a transform|columns to order", str(error)):
                raise
            raise Skipped from None
        assert not report.errors, report.errors

    def rewrite_manifests(self) -> None:
        rewrite_manifests(self.table.refresh(), RewriteManifestsOptions(rewrite_all=True))

    # -- what is there -----------------------------------------------------------------------------

    def check(self) -> None:
        table = self.table.refresh()
        self.check_filtered("main", self.main)
        if self.log and not self.is_apart and self.way not in ("in-place", "partial"):
            self.check_filtered("staging", self.seen())
        readers = {"icefold": table.scan().to_arrow()}
        if table.current_snapshot() is not None and not self.has_key_deletes():
            readers |= self.others(table)
        for reader, rows in readers.items():
            fields = [f for f in self.schema["fields"] if f["name"] in rows.column_names]
            struct = {"type": "struct", "fields": fields}
            wanted = Counter(shown(row, struct) for row in self.main)
            there = Counter(found(each, struct) for each in rows.to_pylist())
            assert there == wanted, (
                f"{reader}: too many {dict(there - wanted)}, missing {dict(wanted - there)}"
            )

    def check_filtered(self, branch: str, rows: list[Row]) -> None:
        """Some rows of a branch, in some columns."""
        fields = self.schema["fields"]
        some = drawn_filter(self.rng, fields, rows)
        names = self.rng.sample([f["name"] for f in fields], self.rng.randint(1, 3))
        struct = {"type": "struct", "fields": [f for f in fields if f["name"] in names]}
        read = self.table.scan(some.text, names, branch=branch).to_arrow()
        there = Counter(found(each, struct) for each in read.to_pylist())
        wanted = Counter(shown(row, struct) for row in rows if some.keeps(row))
        assert there == wanted, (
            f"{names} of {branch} where {some.text}: too many {dict(there - wanted)}, "
            f"missing {dict(wanted - there)}"
        )

    def others(self, table: tf.Table) -> dict[str, pa.Table]:
        """DuckDB's process dies of specs whose columns are gone: then PyIceberg."""
        used = {f.source_id for s in table.state.metadata.partition_specs for f in s.fields}
        if used <= self.ids_of(self.schema):
            query = f"SELECT * FROM iceberg_scan('{table.metadata_location}')"
            return {"DuckDB": duckdb_connection().execute(query).to_arrow_table()}
        # PyIceberg fails on a date that has become a timestamp.
        plain = (f for f in self.schema["fields"] if f["type"] != "timestamp")
        flat = tuple(f["name"] for f in plain if isinstance(f["type"], str))
        scan = StaticTable.from_metadata(table.metadata_location).scan(selected_fields=flat)
        return {"PyIceberg": scan.to_arrow()}  # it takes a null list for an empty one

    def has_key_deletes(self) -> bool:
        return self.way == "in-place" and any(e.content == 2 for e in self.live("main")[1])


def place_of(file: LiveFile) -> tuple[int, str]:
    """The spec and partition that a file is filed under."""
    return file.spec_id, repr(file.partition)


def run(folder, seed: int, steps: int) -> Counter[str]:
    """A history; what it did."""
    history = History(folder, seed)
    weights = WEIGHTS | WAYS[history.way]
    names = history.rng.choices([*weights], [*weights.values()], k=steps)
    done = []
    for name in [*names, "resolve", "resolve", "resolve"]:
        done.append(name)
        try:
            getattr(history, name)()
            history.is_apart |= name in OF_MAIN and bool(history.log)
            history.check()
        except Skipped:
            done[-1] += " (skipped)"
            continue
        except Exception as error:
            told = f"seed {seed}, {history.way}, v{history.version}: {' '.join(done)}: {error}"
            raise AssertionError(told) from error
        history.counts[name] += 1
    if history.way not in ("in-place", "keys") and history.log:
        assert verify(history.table.refresh()).report.is_sound
    return history.counts


def run_some(tmp_path, seeds: Iterable[int], steps: int) -> Counter[str]:
    done = Counter[str]()
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        done += run(folder, seed, steps)
    return done


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_structure_that_changes_while_changes_wait_loses_no_row(tmp_path):
    done = run_some(tmp_path, range(8), 25)
    assert done["resolve"] > 10


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", range(1000, 1400, 20))
def test_structure_of_many_tables_that_changes_loses_no_row(start, tmp_path):
    run_some(tmp_path, range(start, start + 20), 30)
