"""Steps of Spark, PyIceberg and icefold, one in the middle of the other: see `engine_meddlers`.

Spark's commits pass a gate at the catalog, where icefold acts after Spark has read and written, and
before it commits. icefold's operations stop at a fail point, where Spark acts. What was committed
has to be what the two do one after the other, in the order of their commits, or is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import In
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import SparkSession

import tableformat as tf
from maintenance import RewriteManifestsOptions, rewrite_manifests
from resolver import resolve
from resolver.cursor import LostCursorError
from tableformat.errors import CommitConflictError
from tests.support import table_histories
from tests.support.commit_gate import CommitGate
from tests.support.engine_histories import _sql
from tests.support.engine_names import NamedHistory
from tests.support.interop_java_tables import SharedTable
from tests.support.interruptions import interrupt
from tests.support.java_iceberg import JavaIcebergError
from tests.support.table_histories import (
    Row,
    Rows,
    Skipped,
    Staged,
    State,
    TableHistory,
    by_key,
)

Effect = Callable[[Rows], tuple[Rows, set[int]]]  # rows that it brings, and keys that it takes

SPARK_STEPS = {
    "spark_on_main": 5, "spark_on_staging": 4, "insert_overwrite": 2, "truncate": 0.5,
    "rewrite_data_files": 4, "rewrite_some_files": 3, "rewrite_position_delete_files": 2,
    "spark_rewrites_manifests": 2, "spark_expires": 1, "rollback": 1, "fast_forward": 1,
    "cherrypick": 1, "publish_audited": 1, "upsert_by_equality": 3, "change_columns": 1,
    "change_partitions": 1, "change_properties": 0.5, "branches_and_tags": 1, "forward_staging": 1,
    "pyiceberg_on_main": 2, "pyiceberg_on_staging": 2, "pyiceberg_refs": 1, "set_main": 2,
    "set_staging": 2, "upgrade": 1, "add_files": 1, "roll_back_in_time": 0.5, "change_order": 0.3,
    "same_column_anew": 0.5, "compute_stats": 0.3, "rename_column": 2, "drop_key": 0.7,
}  # fmt: skip
INSIDE_ONLY = {
    "move_staging_back": 1, "write_for_audit": 1, "audit_staging": 1, "replace_table": 0.7,
    "rename_table": 1.5,
}  # fmt: skip
OUR_STEPS = {
    "stage": 4, "resolve": 5, "resolve_some": 3, "compact": 2, "own_statement": 4, "expire": 1,
    "other_maintenance": 2,
}  # fmt: skip
POINTS = {
    "stage": ["stage.before_commit", "commit.before_swap"],
    "own_statement": ["rowlevel.after_plan", "rowlevel.after_scan", "rowlevel.before_commit",
                      "commit.before_swap"],
    "compact": ["compact.after_plan", "compact.after_write", "compact.before_commit",
                "commit.before_swap"],
    "other_maintenance": ["commit.before_swap", "orphans.after_list", "orphans.before_delete"],
    "expire": ["commit.before_swap", "commit.after_swap"],
    "resolve": ["resolve.after_read", "resolve.before_trim", "resolve.after_publish",
                "resolve.after_rewrite", "commit.before_swap"],
}  # fmt: skip
CROSSED = {
    "spark_while_icefold_acts": 34, "icefold_while_spark_acts": 16, "own_statement": 7,
    "pyiceberg_on_main": 3, "pyiceberg_on_staging": 3, "pyiceberg_refs": 2,
    "pyiceberg_expires": 1, "stage_behind": 4,
    "icefold_on_main": 0,  # `own_statement` does the same, and knows of the computed column
}  # fmt: skip
# What may lose a race, in the words of each tool.
CONFLICTS = (
    "CommitFailed", "ValidationException", "is not an ancestor", "Cannot commit", "conflict",
    "Cannot fast-forward", "does not exist", "CommitStateUnknown", "Cannot delete file where some",
    "Requirement failed", "to unknown snapshot",
)  # fmt: skip


class CrossedHistory(NamedHistory):
    """All steps of `NamedHistory`, those of PyIceberg, and one inside of the other."""

    weights = NamedHistory.weights | CROSSED
    engine: SparkSession | None = None  # of icefold's own statements

    def __init__(self, gate: CommitGate, shared: SharedTable, seed: int) -> None:
        self.gate = gate
        self.is_inside = False
        self.given_up: tuple[list[Staged], dict[int | None, State]] = ([], {})  # with the branch
        self.computed: int | None = None
        self.done: Counter[str] = Counter()
        super().__init__(shared, seed)
        self.theirs = RestCatalog("gate", uri=gate.uri)
        if self.version == 3 and self.rng.random() < 0.6:
            self.declare_computed()

    def declare_computed(self) -> None:
        """A column that icefold computes, and no other engine."""
        self.main_before = self.main
        self.table.refresh().add_computed_column(
            "twice", "amount * 2", "long", stored=True, backfill=True
        )
        self.read_columns()
        self.computed = self.by_name["twice"].field_id
        self.on_main(self.with_computed(self.main_before.rows))

    def with_computed(self, rows: Rows) -> Rows:
        if self.computed is None or all(c.field_id != self.computed for c in self.columns):
            return rows
        return {
            key: {**row, self.computed: None if row.get(3) is None else row[3] * 2}
            for key, row in rows.items()
        }

    def fresh(self, keys: Iterable[int]) -> list[Row]:
        return list(self.with_computed(by_key(super().fresh(keys))).values())

    def change_columns(self) -> None:
        self.without_computed(super().change_columns)

    def same_column_anew(self) -> None:
        self.without_computed(super().same_column_anew)

    def without_computed(self, change: Callable[[], None]) -> None:
        """Others do not know that the column is declared; here they leave it alone."""
        self.columns = [c for c in self.columns if c.field_id != self.computed]
        try:
            change()
        finally:
            self.read_columns()

    # -- statements as functions of the rows that they find ----------------------------------------

    def condition(self, rows: Rows) -> tuple[str, set[int]]:
        match self.rng.randint(0, 5):
            case 0:
                limit = self.rng.randint(0, self.number)
                text = f"amount < {limit}"

                def holds(row: Row) -> bool:
                    return row.get(3) is not None and row[3] < limit
            case 1:
                region = self.rng.choice(["eu", "us"])
                text = f"region = '{region}'"

                def holds(row: Row) -> bool:
                    return row.get(2) == region
            case 2:
                rest = self.rng.randint(0, 2)
                text = f"id % 3 = {rest}"

                def holds(row: Row) -> bool:
                    return row[1] % 3 == rest
            case _:
                keys = set(self.rng.sample(sorted(rows), min(len(rows), self.rng.randint(1, 3))))
                keys |= self.draw(1, 1)
                text = f"id IN ({', '.join(map(str, sorted(keys)))})"

                def holds(row: Row) -> bool:
                    return row[1] in keys

        self.holds = holds
        return text, {k for k, r in rows.items() if holds(r)}

    def drawn(self, rows: Rows, name: str) -> tuple[str, Effect]:
        """A statement of Spark, and what it does."""
        kind = self.rng.choice(["insert", "delete", "update", "update", "merge"])
        if kind in ("insert", "merge"):
            text, new, gone = self.statement(kind, rows, name)
            return text, lambda found: (new, (gone | set(new)) & found.keys())
        where, _ = self.condition(rows)
        holds = self.holds
        if kind == "delete":
            return f"DELETE FROM {name} WHERE {where}", lambda found: (
                {},
                {k for k, r in found.items() if holds(r)},
            )
        column = self.rng.choice([c for c in self.columns if c.name != "id"])
        in_region = column.name == "region"
        value = self.rng.choice(["eu", "us", None]) if in_region else self.value(column)

        def effect(found: Rows) -> tuple[Rows, set[int]]:
            hit = {k: {**r, column.field_id: value} for k, r in found.items() if holds(r)}
            return hit, {*hit}

        return f"UPDATE {name} SET {column.name} = {_sql(value, column)} WHERE {where}", effect

    def note_main(self, effect: Effect) -> None:
        """A statement has come to main after what is there."""
        if self.inside is not None and self.head("main") in self.states:
            return  # it found nothing, so it was first
        rows = self.main_before.rows
        new, gone = effect(rows)
        self.on_main({**{k: r for k, r in rows.items() if k not in gone}, **new})

    def note_staging(self, effect: Effect) -> None:
        """On what the branch was when the commit landed."""
        head = self.head("staging")
        if head is None or head in self.states:
            return
        below = self.snapshot(head).get("parent-snapshot-id")
        self.staging_before = self.states.get(below, self.staging_before)
        self.shorten(max(self.staging_before.cursor, self.main.cursor))
        rows = self.staging_before.rows
        new, gone = effect(rows)
        left = {**{k: r for k, r in rows.items() if k not in gone}, **new}
        self.on_staging(left, gone, new.values())

    def spark_on_main(self) -> None:
        text, effect = self.drawn(self.main.rows, "T")
        self.spark(text)
        self.note_main(effect)

    def spark_on_staging(self) -> None:
        if self.staging is None:
            raise Skipped
        text, effect = self.drawn(self.staging.rows, "T.branch_staging")
        self.spark(text)
        self.note_staging(effect)

    def insert_overwrite(self) -> None:
        on_staging = self.rng.random() < 0.5 and self.staging is not None
        state = self.staging if on_staging else self.main
        assert state is not None
        new = by_key(self.fresh(self.new_keys()))
        mode = self.rng.choice(["static", "dynamic"])
        spec = self.current_spec()
        if mode == "dynamic" and (
            not spec
            or self.specs_changed
            or any(f["transform"] not in ("identity", "void") for f in spec)
        ):
            raise Skipped
        placed = {r.get(2) for r in new.values()}

        def effect(found: Rows) -> tuple[Rows, set[int]]:
            gone = {k for k, r in found.items() if mode == "static" or r.get(2) in placed}
            return new, gone

        self.shared.java.configure({"spark.sql.sources.partitionOverwriteMode": mode})
        name = "T.branch_staging" if on_staging else "T"
        self.spark(f"INSERT OVERWRITE {name} VALUES {self.values(new.values())}")
        (self.note_staging if on_staging else self.note_main)(effect)

    def note_upsert(self, on_staging: bool, gone: set[int], rows: list[Row]) -> None:
        (self.note_staging if on_staging else self.note_main)(lambda _: (by_key(rows), gone))

    def stage(self) -> None:
        """On what the branch is when the commit lands; a new one begins at main as it is then."""
        seen = sorted((self.staging or self.main).rows)
        upserts = self.draw() | set(self.rng.sample(seen, min(len(seen), 1)))
        deletes = self.draw(0, 2) | set(self.rng.sample(seen, min(len(seen), 1)))
        deletes -= upserts
        rows = self.fresh(upserts)
        keys = self.key_rows(deletes)
        self.statements.append(f"stage({sorted(upserts)}, {sorted(deletes)})")
        self.staging_before = self.staging or self.main
        self.table.refresh().stage(self.arrow(rows), keys)
        self.note_staging(lambda _: (by_key(rows), upserts | deletes))

    # -- icefold's own statements ------------------------------------------------------------------

    def own_statement(self) -> None:
        """In this process or on a Spark of icefold's own."""
        if self.version == 2:
            raise Skipped
        how: dict[str, Any] = {"mode": self.mode()}
        if self.engine is not None and self.rng.random() < 0.4:
            how["spark"] = self.engine
        kind = self.rng.choice(["delete", "update", "merge", "merge"])
        table = self.table.refresh()
        if kind == "merge":
            source, clauses, effect = self.drawn_merge(self.main.rows, on_spark="spark" in how)
            self.statements.append(f"own merge {clauses} {source.to_pylist()} {[*how.items()]}")
            self.on_own(table.merge, source, "t.id = s.id", clauses, **how)
        else:
            where, _ = self.condition(self.main.rows)
            holds = self.holds
            self.statements.append(f"own {kind} {where} {[*how.items()]}")
            more = self.number = self.number + 1
            if kind == "delete":
                self.on_own(table.delete, where, **how)
            else:
                self.on_own(table.update, {"amount": f"amount + {more}"}, where, **how)

            def effect(found: Rows) -> tuple[Rows, set[int]]:
                hit = {k: r for k, r in found.items() if holds(r)}
                moved = {} if kind == "delete" else {k: added(r, more) for k, r in hit.items()}
                return self.with_computed(moved), {*hit}

        self.note_main(effect)

    def on_own(self, run: Callable[..., object], *given: Any, **how: Any) -> None:
        """Some want a Spark."""
        try:
            run(*given, **how)
        except tf.UnsupportedError as error:
            if "needs Spark" not in str(error):
                raise
            raise Skipped from None

    def make_old(self) -> None:
        if not self.is_inside:  # what is being written is no orphan as long as it is young
            super().make_old()

    def drawn_merge(self, rows: Rows, *, on_spark: bool) -> tuple[pa.Table, list[str], Effect]:
        """A MERGE of random clauses, in their order."""
        old = set(self.rng.sample(sorted(rows), min(len(rows), self.rng.randint(0, 4))))
        given = by_key(self.fresh(old | self.new_keys()))
        flags = {key: self.rng.randint(0, 2) for key in given}
        source = self.arrow(given.values()).append_column(
            "flag", pa.array([flags[k] for k in given], pa.int32())
        )
        limit = self.rng.randint(0, self.number)
        matched = [
            ("WHEN MATCHED AND s.flag = 1 THEN DELETE", lambda r, s: flags[s[1]] == 1, None),
            (
                "WHEN MATCHED AND s.flag = 2 THEN UPDATE SET amount = t.amount + s.amount",
                lambda r, s: flags[s[1]] == 2,
                lambda r, s: {**r, 3: None if None in (r.get(3), s[3]) else r[3] + s[3]},
            ),
            (
                f"WHEN MATCHED AND t.amount < {limit} THEN UPDATE SET region = s.region",
                lambda r, s: r.get(3) is not None and r[3] < limit,
                lambda r, s: {**r, 2: s[2]},
            ),
            ("WHEN MATCHED THEN UPDATE SET *", lambda r, s: True, lambda r, s: s),
        ]
        matched = self.rng.sample(matched, self.rng.randint(0, 2))
        # A clause without a condition has to be the last one.
        matched.sort(key=lambda each: " AND " not in each[0])
        others = [
            (
                f"WHEN NOT MATCHED BY SOURCE AND t.amount < {limit // 2} THEN DELETE",
                lambda r: r.get(3) is not None and r[3] < limit // 2,
                None,
            ),
            (
                "WHEN NOT MATCHED BY SOURCE AND t.region = 'eu' THEN UPDATE SET region = 'us'",
                lambda r: r.get(2) == "eu",
                lambda r: {**r, 2: "us"},
            ),
        ]
        others = self.rng.sample(others, self.rng.choice([0, 1, 1, 2]) if on_spark else 0)
        inserts = self.rng.random() < 0.7 or not (matched or others)
        clauses = [each[0] for each in matched]
        if inserts:
            clauses.append("WHEN NOT MATCHED AND s.flag <> 1 THEN INSERT *")
        clauses += [each[0] for each in others]

        def effect(found: Rows) -> tuple[Rows, set[int]]:
            new: Rows = {}
            gone: set[int] = set()
            for key, row in found.items():
                if key in given:
                    hit = next((e for e in matched if e[1](row, given[key])), None)
                    changed = hit and hit[2] and hit[2](row, given[key])
                else:
                    hit = next((e for e in others if e[1](row)), None)
                    changed = hit and hit[2] and hit[2](row)
                if hit:
                    gone.add(key)
                if changed:
                    new[key] = changed
            if inserts:
                new |= {k: r for k, r in given.items() if k not in found and flags[k] != 1}
            return self.with_computed(new), gone

        return source, clauses, effect

    # -- PyIceberg ---------------------------------------------------------------------------------

    def their_table(self) -> Any:
        return self.theirs.load_table(self.shared.name)

    def pyiceberg_on_main(self) -> None:
        self.pyiceberg_writes("main")

    def pyiceberg_on_staging(self) -> None:
        if self.staging is None:
            raise Skipped
        self.pyiceberg_writes("staging")

    def pyiceberg_writes(self, branch: str) -> None:
        """Copy-on-write; it refuses what it cannot read, and v3."""
        if self.version == 3:
            raise Skipped
        state = self.staging if branch == "staging" else self.main
        assert state is not None
        kind = self.rng.choice(["append", "delete", "overwrite", "upsert"])
        old = set(self.rng.sample(sorted(state.rows), min(len(state.rows), 2)))
        keys = old if kind == "delete" else self.new_keys() | (set() if kind == "append" else old)
        if not keys:
            raise Skipped
        new = by_key(self.fresh(keys)) if kind != "delete" else {}
        self.statements.append(f"PyIceberg {kind} {sorted(keys)} on {branch}")
        table = self.their_table()
        before = self.head(branch)
        schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        plain = self.arrow(new.values())
        columns = [plain[name].cast(schema.field(name).type) for name in schema.names]
        rows = pa.table(columns, schema)
        try:
            match kind:
                case "append":
                    table.append(rows, branch=branch)
                case "delete":
                    table.delete(In("id", keys), branch=branch)
                case "overwrite":
                    table.overwrite(rows, overwrite_filter=In("id", keys), branch=branch)
                case _:
                    table.upsert(rows, join_cols=["id"], branch=branch)
        except (ValueError, NotImplementedError, KeyError, TypeError) as error:
            self.refusals[f"PyIceberg {kind}: " + str(error)[:60]] += 1
            if self.head(branch) != before and not self.gate.has_acted:
                raise
            raise Skipped from None
        effect: Effect = lambda found: (new, keys & found.keys())  # noqa: E731
        (self.note_main if branch == "main" else self.note_staging)(effect)

    def pyiceberg_refs(self) -> None:
        self.number += 1
        manage = self.their_table().manage_snapshots()
        kind = self.rng.choice(["branch", "tag", "current", "rollback"])
        self.statements.append(f"PyIceberg {kind}")
        if kind in ("branch", "tag"):
            ref = self.rng.choice(["main", "staging"])
            at = self.head(ref)
            if at is None:
                raise Skipped
            make = manage.create_branch if kind == "branch" else manage.create_tag
            make(at, f"p{self.number}", max_ref_age_ms=1000 * 3600).commit()
            return
        at = self.older_head()
        if kind == "current":
            manage.set_current_snapshot(snapshot_id=at).commit()
        else:
            manage.rollback_to_snapshot(at).commit()
        self.lost = self.lost or self.has_lost

    def pyiceberg_expires(self) -> None:
        self.statements.append("PyIceberg expires")
        self.backups.clear()
        self.their_table().maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
        self.lost = self.has_lost = True

    # -- branches are moved in the middle ----------------------------------------------------------

    def set_main(self) -> None:
        """As a procedure or as a branch, to what it was or to what is staged."""
        known = {s["snapshot-id"] for s in self.metadata()["snapshots"]}
        staged = [e.snapshot_id for e in self.log if e.snapshot_id in known & self.states.keys()]
        is_staged = bool(staged) and self.rng.random() < 0.5
        at = self.rng.choice(staged) if is_staged else self.older_head()
        how = self.rng.choice(["procedure", "REPLACE", "CREATE OR REPLACE"])
        if how == "procedure":
            self.call("set_current_snapshot", snapshot_id=str(at))
        else:
            self.spark(f"ALTER TABLE T {how} BRANCH main AS OF VERSION {at}")
        self.lost = self.lost or self.has_lost

    def set_staging(self) -> None:
        """Dropped, or made anew at `main`: what waits is given up."""
        if self.staging is None:
            raise Skipped
        how = self.rng.choice(["DROP", "REPLACE", "CREATE OR REPLACE"])
        at = "" if how == "DROP" else f" AS OF VERSION {self.head('main')}"
        self.spark(f"ALTER TABLE T {how} BRANCH staging{at}")
        self.given_up = self.log[self.main.cursor :], self.states
        self.shorten(self.main.cursor)

    def shorten(self, count: int) -> None:
        """What was staged after the first `count` changes is on no branch."""
        if count < len(self.log):
            heads = {self.head("main"), self.head("staging")}
            self.log = self.log[:count]
            self.states = {k: s for k, s in self.states.items() if s.cursor <= count or k in heads}

    def settle(self) -> None:
        """A dropped branch comes back where `resolve` says, or at main; one left behind follows."""
        self.take_back()
        (given_up, states), self.given_up = self.given_up, ([], {})
        at = self.head("staging")
        if at is None and given_up:
            self.log += given_up
            self.told_as_dropped(given_up, self.main)
            known = {s["snapshot-id"] for s in self.metadata()["snapshots"]}
            head = given_up[-1].snapshot_id
            if head in known and self.rng.random() < 0.5:
                self.states = states | self.states
                self.spark(f"ALTER TABLE T CREATE BRANCH staging AS OF VERSION {head}")
            else:
                self.shorten(self.main.cursor)
                self.spark("ALTER TABLE T CREATE BRANCH staging")
        elif at is not None and self.states[at].cursor < self.main.cursor:
            self.spark(f"ALTER TABLE T REPLACE BRANCH staging AS OF VERSION {self.head('main')}")
            self.shorten(self.main.cursor)

    # -- the staging branch is moved behind what was published -------------------------------------

    def stage_behind(self) -> None:
        """Then staged to again: `resolve` stops, and goes on as it says."""
        if self.staging is None or self.main.picked or self.lost or self.has_lost:
            raise Skipped
        known = {s["snapshot-id"] for s in self.metadata()["snapshots"]}
        cursor = self.main.cursor
        # Without the newest published one: that is no move behind the cursor.
        old = [e.snapshot_id for e in self.log[: max(cursor - 1, 0)] if e.snapshot_id in known]
        if not old or self.was_replaced:
            raise Skipped
        at = self.rng.choice(old[-4:])
        self.log = self.log[:cursor]
        self.spark(f"ALTER TABLE T REPLACE BRANCH staging AS OF VERSION {at}")
        self.backups, self.wap = [], {}
        if self.rng.random() < 0.3:
            self.other_maintenance()
        self.staging_before = self.states[at]
        for _ in range(self.rng.randint(1, 2)):
            self.staging_before = self.staging or State()
            self.stage() if self.rng.random() < 0.7 else self.spark_on_staging()
        new = self.log[cursor:]
        rows = dict(self.main.rows)
        for each in new:
            rows = {k: r for k, r in rows.items() if k not in each.deletes} | by_key(each.rows)
        head = self.head("main")
        told = None
        try:
            resolve(self.table.refresh())
        except LostCursorError as error:
            told = str(error)
        if told is not None:
            self.refusals["behind: " + told[:90]] += 1
            assert "\n" not in told
            assert "--from-snapshot" in told, told
            assert self.head("main") == head
            named = re.findall(r"--from-snapshot (\d+)", told)
            assert named in ([str(at)], []), told
            resolve(self.table.refresh(), from_snapshot=at, skip_unpublished=not named)
        if self.head("main") != head:
            self.states[self.head("main")] = State(rows, len(self.log))
        elif new:
            assert rows == self.main.rows, f"nothing was published: {told}"
        # What was published before is not in the branch's log any more: nobody goes back there.
        kept = {self.head("main"), self.head("staging"), None}
        self.states = {k: s for k, s in self.states.items() if k in kept}
        self.check_engines()

    # -- one inside of the other -------------------------------------------------------------------

    def check_engines(self) -> None:
        if self.is_inside:
            self.check()  # Spark waits for us
        else:
            super().check_engines()

    def refused(self, error: tf.TableError, waiting: list[Any]) -> None:
        if not self.is_inside:
            super().refused(error, waiting)
            return
        assert "\n" not in str(error)
        self.refusals["inside Spark: " + str(error)[:70]] += 1

    def spark_while_icefold_acts(self) -> None:
        theirs = self.chosen(SPARK_STEPS)
        ours = self.chosen(OUR_STEPS)
        if theirs == "change_columns" and ours == "resolve":
            ours = "stage"
        self.statements.append(f"{theirs}, inside of it {ours}")

        def act() -> None:
            self.statements.append(f"before the commit: {ours}")
            self.table.refresh()
            self.read_columns()  # with a computed one that Spark's step is not to change
            self.all_new_are_same()
            self.main_before, self.staging_before = self.main, self.staging or self.main
            self.is_inside = True
            try:
                getattr(self, ours)()
            except Skipped:
                self.statements[-1] += ": skipped"
            except CommitConflictError as error:  # of what Spark has committed a part of before
                self.refusals[f"{ours} in {theirs}: " + str(error)[:60]] += 1
            finally:
                self.is_inside = False
            self.main_before, self.staging_before = self.main, self.staging or self.main

        self.gate.arm(act, skip=self.rng.choice([0, 0, 0, 1]))
        try:
            getattr(self, theirs)()
        except (JavaIcebergError, CommitFailedException, ValidationException) as error:
            told = f"{type(error).__name__}: {error}"
            if not self.gate.has_acted or not any(each in told for each in CONFLICTS):
                raise
            self.refusals[f"{theirs} beside {ours}: " + told.split(":", 2)[-1][:70]] += 1
            if "rewrite" in theirs:
                self.all_new_are_same()
            self.read_columns()
        finally:
            self.gate.disarm()
        if self.gate.error is not None:
            raise self.gate.error
        if theirs == "cherrypick":
            self.list_once()
        self.settle()
        self.done[f"{theirs} / {ours}" if self.gate.has_acted else "never in the middle"] += 1

    def list_once(self) -> None:
        """Java lists a file twice that was published in the middle of its cherry-pick."""
        report = rewrite_manifests(self.table.refresh(), RewriteManifestsOptions(rewrite_all=True))
        if report.repeated_files:
            self.done["listed twice"] += 1
            self.states[self.head("main")] = self.main_before
        elif report.changed:
            parent = self.snapshot(self.head("main"))["parent-snapshot-id"]
            self.states[self.head("main")] = self.states[parent]

    def icefold_while_spark_acts(self) -> None:
        ours = self.rng.choice([*POINTS])
        if ours == "resolve" and not self.waiting:
            raise Skipped
        acted = self.act_inside(self.rng.choice(POINTS[ours]))
        try:
            getattr(self, ours)()
        except tf.TableError as error:
            if not acted:
                raise
            if "\n" in str(error):
                raise
            self.refusals[f"{ours} beside {acted[0]}: " + str(error)[:60]] += 1
        finally:
            self.table.environment.runtime.fail_points.armed.clear()
            self.inside = None
        self.settle()
        if acted:
            self.done[f"{ours} / {acted[0]}"] += 1

    def note_published(self) -> None:
        """What a cycle has published before somebody acts in its middle."""
        head = self.head("main")
        if head is None or head in self.states:
            return
        named = self.snapshot(head)["summary"].get("equality-convert-staging-snapshot")
        ids = [each.snapshot_id for each in self.log]
        before = self.main_before
        if named is None or int(named) not in ids[before.cursor :]:
            return
        cursor, rows = ids.index(int(named)) + 1, dict(before.rows)
        for each in self.log[before.cursor : cursor]:
            if each.snapshot_id not in before.picked:
                rows = {k: r for k, r in rows.items() if k not in each.deletes} | by_key(each.rows)
        self.states[head] = State(rows, cursor, before.picked - {*ids[:cursor]})

    def act_inside(self, point: str) -> list[str]:
        acted: list[str] = []
        name = self.chosen(SPARK_STEPS | INSIDE_ONLY)

        def act() -> None:
            self.table.environment.runtime.fail_points.armed.clear()
            self.table.refresh()
            self.note_published()
            self.all_new_are_same()  # equality deletes that were live there, converted
            self.main_before, self.staging_before = self.main, self.staging or self.main
            self.statements.append(f"at {point}: {name}")
            acted.append(name)
            try:
                getattr(self, name)()
            except Skipped:
                self.statements[-1] += ": skipped"
            if self.is_away:
                self.inside = self.main_before
                return
            self.inside = self.main_before = self.main
            self.staging_before = self.staging or self.main

        interrupt(self.table, point, act)
        return acted

    def chosen(self, weights: dict[str, float]) -> str:
        return self.rng.choices([*weights], [*weights.values()])[0]


def added(row: Row, more: int) -> Row:
    """With a greater amount, if it has one."""
    return {**row, 3: None if row.get(3) is None else row[3] + more}


def run(shared: SharedTable, gate: CommitGate, seed: int, steps: int) -> TableHistory:
    """As any history, with the gate."""
    return table_histories.run(lambda *given: CrossedHistory(gate, *given), shared, seed, steps)
