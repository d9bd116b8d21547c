"""Random histories of icefold and another tool on one table: the model, and icefold's steps.

The model is a dict of rows per snapshot, by field id, and the log of staged changes: the keys that
each deletes, and its rows. Staged changes come in their order after what is on `main` when they are
published. Keys that statements insert are never used twice, so `main` has one row per key.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import tableformat as tf
from maintenance import (
    CompactOptions,
    DropDeadDeletesOptions,
    ExpireOptions,
    ExpiryPolicy,
    RemoveOrphansOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
    compact,
    drop_dead_deletes,
    expire,
    remove_orphans,
    rewrite_manifests,
    rewrite_vectors,
)
from resolver import resolve
from resolver.cursor import LostCursorError
from tests.support.interop_java_tables import SharedTable

EVERYTHING = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
GZIPPED = b"\x1f\x8b"
OLD_S = 30 * 24 * 3600
KEYS = range(10)  # those that are upserted; what statements insert is above
TYPES = {"bigint": 1, "int": 1, "string": 1, "double": 1, "date": 1, "decimal(9,2)": 1}

Row = Mapping[int, Any]  # by field id
Rows = dict[int, Row]  # by key


class Skipped(Exception):
    """The step does not apply here."""


class ToldAsLost(Exception):
    """Staged changes have expired, and only a person can say which."""


@dataclass(frozen=True)
class Staged:
    """What a staged snapshot changes."""

    snapshot_id: int
    deletes: frozenset[int]
    rows: tuple[Row, ...]
    is_append: bool = False  # a statement that only adds files


@dataclass(frozen=True)
class State:
    """Rows of a snapshot, how much of the log is in them, and what was picked out of it."""

    rows: Rows = field(default_factory=dict)
    cursor: int = 0
    picked: frozenset[int] = frozenset()


@dataclass
class Column:
    """A column of the current schema."""

    name: str
    field_id: int
    type: str
    default: Any = None


class TableHistory:
    """One table, the tools, and the model; a step is a method. A tool's is a subclass."""

    weights: Mapping[str, float]

    def __init__(self, shared: SharedTable, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shared = shared
        self.version = self.rng.choice([2, 3, 3])
        self.number = 0
        self.next_key = 100
        self.statements: list[str] = []
        self.refusals: Counter[str] = Counter()
        self.states: dict[int | None, State] = {None: State()}
        self.log: list[Staged] = []
        self.wap: dict[str, Staged] = {}
        self.main_before = self.staging_before = State()  # before the step
        self.is_believed = False  # the key is no identifier field: it may be null
        self.lost = False  # another tool has expired staged changes
        self.was_replaced = False
        self.inside: State | None = None  # main, where another tool has acted in a cycle's middle
        self.create()
        self.table = shared.load()
        self.read_columns()
        for keys in (KEYS[:4], KEYS[4:7]):
            self.main_before, rows = self.main, self.fresh(keys)
            self.table.refresh().append(self.arrow(rows))
            self.on_main({**self.main_before.rows, **by_key(rows)})

    def create(self) -> None:
        """The table, with the columns `id`, `region`, `amount`."""
        raise NotImplementedError

    # -- the model ---------------------------------------------------------------------------------

    def mode(self) -> str:
        return self.rng.choice(["merge-on-read", "merge-on-read", "copy-on-write"])

    def metadata(self) -> dict[str, Any]:
        """As the file says it, which the catalog names."""
        self.table.refresh()
        found = local_path(self.table.metadata_location).read_bytes()
        return json.loads(gzip.decompress(found) if found.startswith(GZIPPED) else found)

    def head(self, branch: str) -> int | None:
        return self.metadata()["refs"].get(branch, {}).get("snapshot-id")

    def snapshot(self, snapshot_id: int) -> dict[str, Any]:
        return next(s for s in self.metadata()["snapshots"] if s["snapshot-id"] == snapshot_id)

    @property
    def main(self) -> State:
        return self.states[self.head("main")]

    @property
    def staging(self) -> State | None:
        head = self.head("staging")
        return None if head is None else self.states[head]

    @property
    def waiting(self) -> list[Staged]:
        return [] if self.head("staging") is None else self.log[self.main.cursor :]

    def on_main(self, rows: Rows, **changes: Any) -> None:
        """The head of main has these rows now."""
        self.states[self.head("main")] = replace(self.main_before, rows=rows, **changes)

    def on_staging(
        self, rows: Rows, deletes: Iterable[int], added: Iterable[Row], head: int | None = None
    ) -> None:
        """A snapshot of staging (None: the newest) made these changes, if it is a new one."""
        head = self.head("staging") if head is None else head
        if head is None or head in self.states:
            return
        summary = self.snapshot(head)["summary"]
        deletes_added = int(summary.get("added-delete-files", 0))
        self.log.append(
            Staged(
                head,
                frozenset(deletes),
                tuple(added),
                is_append=summary["operation"] == "append" and not deletes_added,
            )
        )
        self.states[head] = State(rows, len(self.log), self.staging_before.picked)

    def read_columns(self) -> None:
        metadata = self.metadata()
        schema = next(
            s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]
        )
        self.columns = [
            Column(f["name"], f["id"], f["type"], f.get("initial-default"))
            for f in schema["fields"]
        ]
        self.by_name = {each.name: each for each in self.columns}

    def draw(self, least: int = 1, most: int = 4) -> set[int]:
        return set(self.rng.sample(KEYS, self.rng.randint(least, most)))

    def new_keys(self) -> set[int]:
        count = self.rng.randint(1, 3)
        self.next_key += count
        return set(range(self.next_key - count, self.next_key))

    def value(self, of: Column) -> Any:
        self.number += 1
        if self.rng.random() < 0.2:
            return None
        match of.type:
            case "string":
                return f"s{self.number}"
            case "double" | "float":
                return self.number / 2
            case "date":
                return date(2026, 1 + self.number % 12, 1 + self.number % 28)
            case _:
                return self.number

    def fresh(self, keys: Iterable[int]) -> list[Row]:
        rows = []
        for key in sorted(keys):
            row = {each.field_id: self.value(each) for each in self.columns[3:]}
            region = self.rng.choice(["eu", "us", None])
            self.number += 1
            rows.append({1: key, 2: region, 3: self.number, **row})
        return rows

    def shown(self, rows: Iterable[Row]) -> Counter[tuple[Any, ...]]:
        """In the columns as they are now."""
        return Counter(
            tuple(plain(row.get(c.field_id, c.default)) for c in self.columns) for row in rows
        )

    def called(self, field_id: int) -> str:
        """The column's name now."""
        return next(each.name for each in self.columns if each.field_id == field_id)

    def key_rows(self, keys: Iterable[int]) -> pa.Table | None:
        """Of staged deletes."""
        listed = sorted(keys)
        return pa.table({self.called(1): pa.array(listed, pa.int64())}) if listed else None

    def arrow(self, rows: Iterable[Row]) -> pa.Table:
        schema = self.table.refresh().scan().to_arrow().schema
        listed = [{c.name: _exact(row.get(c.field_id), c) for c in self.columns} for row in rows]
        return pa.Table.from_pylist(listed, schema=schema)

    def spark(self, *texts: str) -> None:
        for text in texts:
            self.statements.append(text)
            self.shared.sql(text)

    def condition(self, rows: Rows) -> tuple[str, set[int]]:
        """SQL, and the keys of the rows that it is true for."""
        match self.rng.randint(0, 5):
            case 0:
                limit = self.rng.randint(0, self.number)
                hit = {k for k, r in rows.items() if (v := r.get(3)) is not None and v < limit}
                return f"amount < {limit}", hit
            case 1:
                region = self.rng.choice(["eu", "us"])
                return f"region = '{region}'", {k for k, r in rows.items() if r.get(2) == region}
            case 2:
                rest = self.rng.randint(0, 2)
                return f"id % 3 = {rest}", {k for k in rows if k % 3 == rest}
            case _:
                keys = set(self.rng.sample(sorted(rows), min(len(rows), self.rng.randint(1, 3))))
                keys |= {self.rng.choice(KEYS)}
                return f"id IN ({', '.join(map(str, sorted(keys)))})", keys & rows.keys()

    def current_spec(self) -> list[dict[str, Any]]:
        metadata = self.metadata()
        wanted = metadata["default-spec-id"]
        return next(s["fields"] for s in metadata["partition-specs"] if s["spec-id"] == wanted)

    @property
    def specs_changed(self) -> bool:
        return len(self.metadata()["partition-specs"]) > 1

    def other_property(self) -> tuple[str, str]:
        choices = [
            *((f"write.{each}.mode", self.mode()) for each in ("delete", "update", "merge")),
            ("commit.manifest.min-count-to-merge", self.rng.choice(["2", "100"])),
            ("commit.manifest-merge.enabled", self.rng.choice(["true", "false"])),
            ("write.delete.granularity", self.rng.choice(["file", "partition"])),
            ("write.distribution-mode", self.rng.choice(["none", "hash"])),
            ("write.metadata.metrics.default", self.rng.choice(["none", "counts", "full"])),
            ("write.object-storage.enabled", self.rng.choice(["true", "false"])),
            ("write.metadata.delete-after-commit.enabled", "true"),
            ("write.metadata.previous-versions-max", self.rng.choice(["1", "100"])),
            ("write.parquet.compression-codec", self.rng.choice(["zstd", "gzip", "snappy"])),
            ("write.parquet.page-version", self.rng.choice(["v1", "v2"])),
            ("write.metadata.compression-codec", self.rng.choice(["gzip", "none"])),
            ("icefold.dv-placement", self.rng.choice(["per-file", "packed"])),
        ]
        if self.version == 3:
            choices += [("icefold.publish", self.rng.choice(["link", "rewrite"]))] * 3
        return self.rng.choice(choices)

    def same_main(self) -> None:
        """The step was to change no row."""
        if self.head("main") not in self.states:
            self.states[self.head("main")] = self.main_before

    def all_new_are_same(self) -> None:
        """Several commits, perhaps."""
        parents = {
            s["snapshot-id"]: s.get("parent-snapshot-id") for s in self.metadata()["snapshots"]
        }
        at = self.head("main")
        while at is not None and at not in self.states:
            self.states[at] = self.main_before
            at = parents.get(at)

    def older_head(self) -> int:
        """A snapshot that main had."""
        metadata = self.metadata()
        parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata["snapshots"]}
        at, found = parents.get(self.head("main")), []
        while at in parents:
            if at in self.states:
                found.append(at)
            at = parents[at]
        if not found:
            raise Skipped
        return self.rng.choice(found[:4])

    def make_old(self) -> None:
        then = time.time() - OLD_S
        for each in local_path(self.metadata()["location"]).rglob("*"):
            if each.is_file():
                os.utime(each, (then, then))

    # -- icefold -----------------------------------------------------------------------------------

    def stage(self) -> None:
        upserts = self.draw()
        seen = sorted(self.staging.rows if self.staging else self.main.rows)
        upserts |= set(self.rng.sample(seen, min(len(seen), 1)))
        deletes = self.draw(0, 2) | set(self.rng.sample(seen, min(len(seen), 1)))
        deletes -= upserts
        rows = self.fresh(upserts)
        keys = self.key_rows(deletes)
        self.statements.append(f"stage({sorted(upserts)}, {sorted(deletes)})")
        view = (self.staging or self.main).rows
        if self.staging is None:
            self.staging_before = self.main
            self.log = self.log[: self.main.cursor]
        self.table.refresh().stage(self.arrow(rows), keys)
        gone = upserts | deletes
        left = {**{k: r for k, r in view.items() if k not in gone}, **by_key(rows)}
        self.on_staging(left, gone, rows)

    def resolve_some(self) -> None:
        if not self.waiting:
            raise Skipped
        self.resolve(limit=self.rng.randint(1, len(self.waiting)))

    def resolve(self, **options: Any) -> None:
        waiting, before = self.waiting, self.main
        head = self.head("main")
        self.statements.append(f"resolve({options})")
        try:
            resolve(self.table.refresh(), **options)
        except tf.TableError as error:
            if self.head("main") != head:  # equality deletes that were live there, converted
                self.main_before = self.inside or before
                self.all_new_are_same()
            self.check()
            self.refused(error, self.waiting)
            return
        head = self.head("main")
        before = self.inside or before
        cursor = before.cursor + len(waiting)
        if self.inside and head not in self.states:
            named = int(self.snapshot(head)["summary"]["equality-convert-staging-snapshot"])
            cursor = [each.snapshot_id for each in self.log].index(named) + 1
        if options.get("limit") and waiting:
            named = int(self.snapshot(head)["summary"]["equality-convert-staging-snapshot"])
            ids = [each.snapshot_id for each in self.log]
            cursor = ids.index(named) + 1
            assert cursor >= before.cursor + options["limit"], "fewer than the limit"
        if head not in self.states:
            rows = dict(before.rows)
            for each in self.log[before.cursor : cursor]:
                if each.snapshot_id not in before.picked:
                    rows = {k: r for k, r in rows.items() if k not in each.deletes}
                    rows |= by_key(each.rows)
            picked = before.picked - {e.snapshot_id for e in self.log[:cursor]}
            self.states[head] = State(rows, cursor, picked)
        if not options.get("limit"):
            self.lost = False
        self.check_engines()

    def refused(self, error: tf.TableError, waiting: list[Staged]) -> None:
        """A documented refusal has a way on, which is gone."""
        text = str(error)
        assert "\n" not in text
        self.refusals["resolve: " + text[:70]] += 1
        if isinstance(error, LostCursorError) and "--from-staging-state" in text and self.lost:
            self.resolve(from_staging_state=True)
            return
        untold = ("--staged-after", "has left the target", "the log that says which has expired")
        if self.lost and any(each in text for each in untold):
            raise ToldAsLost
        is_lost = self.was_replaced and isinstance(error, LostCursorError)
        is_replaced = is_lost and "was replaced (REPLACE TABLE)" in text
        # Where nothing of the old main is known any more, nothing tells that there was one.
        if is_replaced or (is_lost and "(expired?)" in text):
            told = int(error.context["stopped_at"])
            if self.head("staging") == told:
                self.spark("ALTER TABLE T DROP BRANCH staging")
            else:
                self.states[self.head("main")] = replace(self.main, cursor=self.states[told].cursor)
                self.resolve(from_snapshot=told, skip_unpublished=True)
            return
        if "the copies would bring these back" in text:
            named = int(str(error.context["snapshot_id"]))
            made = self.made_with(named)
            at = next(n for n, e in enumerate(self.log) if e.snapshot_id in made)
            summary = self.snapshot(named)["summary"]
            assert {"added-data-files", "deleted-data-files"} <= summary.keys(), error
            self.go_back_to(at)
            self.resolve()
            return
        raise error

    def made_with(self, snapshot_id: int) -> list[int]:
        """It, and those up to one that the model knows: a transaction may make several."""
        made, above = (
            [snapshot_id],
            {s.get("parent-snapshot-id"): s["snapshot-id"] for s in self.metadata()["snapshots"]},
        )
        while made[-1] not in self.states:
            made.append(above[made[-1]])
        return made

    def go_back_to(self, at: int) -> None:
        """Staging, to before the staged change `at`."""
        parent = self.snapshot(self.log[at].snapshot_id)["parent-snapshot-id"]
        while parent not in self.states:  # of the same transaction
            parent = self.snapshot(parent)["parent-snapshot-id"]
        if self.head("staging") != parent:
            self.spark(f"ALTER TABLE T REPLACE BRANCH staging AS OF VERSION {parent}")
        self.log = self.log[:at]
        self.states = {k: s for k, s in self.states.items() if s.cursor <= at}

    def compact(self) -> None:
        strategy = self.rng.choice(["bin-pack", "sort"])
        by = (self.called(3),) if strategy == "sort" else ()
        compact(
            self.table.refresh(),
            CompactOptions(input_files_min=2, rewrite_all=True, strategy=strategy, sort_by=by),
        )
        self.all_new_are_same()

    def expire(self) -> None:
        expire(self.table.refresh(), ExpireOptions(policy=EVERYTHING))

    def other_maintenance(self) -> None:
        kind = self.rng.choice(["vectors", "manifests", "dead", "orphans"])
        self.statements.append(kind)
        table = self.table.refresh()
        match kind:
            case "vectors":
                rewrite_vectors(table, RewriteVectorsOptions(rewrite_all=True))
            case "manifests":
                rewrite_manifests(table, RewriteManifestsOptions(rewrite_all=True))
            case "dead":
                drop_dead_deletes(table, DropDeadDeletesOptions())
            case _:
                self.make_old()
                remove_orphans(table, RemoveOrphansOptions())
        self.all_new_are_same()

    def icefold_on_main(self) -> None:
        if self.version == 2:
            raise Skipped
        rows = self.main.rows
        where, keys = self.condition(rows)
        if "%" in where:
            raise Skipped
        table = self.table.refresh()
        mode = self.mode()
        self.statements.append(f"icefold changes {where} {mode}")
        if self.rng.random() < 0.5:
            table.delete(where, mode=mode)
            self.on_main({k: r for k, r in rows.items() if k not in keys})
        else:
            self.number += 1
            table.update({"amount": str(self.number)}, where, mode=mode)
            self.on_main({k: {**r, 3: self.number} if k in keys else r for k, r in rows.items()})

    # -- what is there -----------------------------------------------------------------------------

    def check(self) -> None:
        """As icefold and another reader see it."""
        for branch, state in (("main", self.main), ("staging", self.staging)):
            if state is None:
                continue
            wanted = self.shown(state.rows.values())
            ours = self.table.refresh().scan(branch=branch).to_arrow()
            compare(f"icefold, {branch}", wanted, self.as_shown(ours))
            other = self.as_others_read(branch)
            if other is not None:
                compare(f"the other reader, {branch}", wanted, other)

    def as_others_read(self, branch: str) -> Counter[tuple[Any, ...]] | None:
        """What is shown there; None: nobody else reads it."""
        raise NotImplementedError

    def as_shown(self, table: pa.Table) -> Counter[tuple[Any, ...]]:
        table = table.select([each.name for each in self.columns])
        return Counter(
            tuple(map(plain, row))
            for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
        )

    def check_engines(self) -> None:
        """After a publish."""

    def step(self, name: str) -> None:
        self.main_before = self.main
        self.staging_before = self.staging or State()
        getattr(self, name)()
        self.check()


def run(
    kind: Callable[[SharedTable, int], TableHistory], shared: SharedTable, seed: int, steps: int
) -> TableHistory:
    """A history; what fails names its seed, and what was done."""
    history = kind(shared, seed)
    names = history.rng.choices([*history.weights], [*history.weights.values()], k=steps)
    for name in [*names, "resolve"]:
        history.statements.append(f"-- {name}")
        try:
            history.step(name)
        except Skipped:
            history.statements[-1] += ": skipped"
        except ToldAsLost:
            history.refusals["told as lost"] += 1
            break
        except Exception as error:
            done = "\n".join(history.statements)
            raise AssertionError(f"seed {seed}: {error}\n{done}") from error
    return history


def local_path(location: str) -> Path:
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def by_key(rows: Iterable[Row]) -> Rows:
    return {row[1]: row for row in rows}


def compare(reader: str, wanted: Counter[Any], there: Counter[Any]) -> None:
    if wanted != there:
        raise AssertionError(
            f"{reader}: too many {dict(there - wanted)}, missing {dict(wanted - there)}"
        )


def plain(value: Any) -> Any:
    """Comparable over engines: numbers as floats, others as text."""
    if value is None or isinstance(value, bool):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def _exact(value: Any, of: Column) -> Any:
    if value is not None and of.type.startswith("decimal"):
        return Decimal(value)
    return value
