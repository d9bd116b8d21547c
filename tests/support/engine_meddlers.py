"""Spark steps that meddle with branches, the catalog and cycles: see `engine_histories`."""

from __future__ import annotations

import copy
from typing import Any

import tableformat as tf
from resolver import resolve
from tableformat.errors import CommitConflictError
from tests.support.engine_histories import WEIGHTS, EngineHistory
from tests.support.foreign_histories import IN_THE_CYCLE
from tests.support.interruptions import interrupt
from tests.support.java_iceberg import JavaIcebergError
from tests.support.table_histories import Row, Skipped, Staged, State, by_key, local_path

# What tells the table's state, beside the metadata file: brought back with an older one.
TOLD = ("states", "log", "wap", "is_believed", "lost", "was_replaced", "version")


class MeddledHistory(EngineHistory):
    """All of Spark's steps, and those with which somebody pulls the rug away."""

    weights = WEIGHTS | {
        "roll_back_in_time": 1, "forward_staging": 1, "drop_staging": 1, "move_staging_back": 0.7,
        "upsert_by_equality": 2.5, "same_column_anew": 0.5, "rewrite_some_files": 1.5,
        "rewrite_staging": 0.3, "audit_staging": 1, "back_up": 1.5, "register_again": 0.7,
        "resolve_while_spark_acts": 4, "compact_while_spark_acts": 1,
    }  # fmt: skip

    def create(self) -> None:
        super().create()
        self.backups: list[tuple[str, dict[str, Any]]] = []
        self.has_lost = False  # a rollback may bring back what stands on expired history

    # -- branches ----------------------------------------------------------------------------------

    def rollback(self) -> None:
        super().rollback()
        self.lost = self.lost or self.has_lost

    def roll_back_in_time(self) -> None:
        """Several snapshots may have one time: whichever Java takes, its rows are known."""
        at = self.snapshot(self.older_head())["timestamp-ms"] + 1
        self.call("rollback_to_timestamp", timestamp=f"TIMESTAMP_MILLIS({at})")
        self.lost = self.lost or self.has_lost

    def forward_staging(self) -> None:
        """Of staging onto main, which Java does where nothing was staged since."""
        if self.staging is None:
            raise Skipped
        try:
            self.call("fast_forward", branch="'staging'", to="'main'")
        except JavaIcebergError as error:
            if "is not an ancestor" not in str(error):
                raise
            self.refusals["forward staging"] += 1

    def drop_staging(self) -> None:
        """With what waits `resolve` stops and names the snapshot where the branch has to be."""
        if self.staging is None:
            raise Skipped
        waiting, head, before = self.waiting, self.head("staging"), self.main
        self.spark("ALTER TABLE T DROP BRANCH staging")
        if not waiting:
            self.log = self.log[: before.cursor]
            self.forget_staged(before.cursor)
            return
        self.told_as_dropped(waiting, before)
        self.spark(f"ALTER TABLE T CREATE BRANCH staging AS OF VERSION {head}")

    def told_as_dropped(self, waiting: list[Staged], before: State) -> None:
        """`resolve` does, where something tells that there was a branch."""
        told = ""
        try:
            resolve(self.table.refresh())
        except tf.TableError as error:
            told = str(error)
        is_known = before.cursor or any(each.snapshot_id in self.own for each in waiting)
        may_be_told = is_known and not (self.lost or self.was_replaced)
        if may_be_told and str(waiting[-1].snapshot_id) not in told:
            raise AssertionError(f"nothing says that staged changes are gone: {told}")

    @property
    def own(self) -> set[int]:
        """Snapshots that icefold has staged."""
        return {
            s["snapshot-id"]
            for s in self.metadata()["snapshots"]
            if s["summary"].get("icefold.branch") == "staging"
        }

    def forget_staged(self, count: int) -> None:
        """What was staged after the first `count` changes is on no branch."""
        self.states = {k: s for k, s in self.states.items() if s.cursor <= count}

    def move_staging_back(self) -> None:
        """To an older staged snapshot that was not published: what came after is given up."""
        waiting, cursor = self.waiting, self.main.cursor
        if len(waiting) < 2:
            raise Skipped
        left = self.rng.randint(1, len(waiting) - 1)
        known = {s["snapshot-id"] for s in self.metadata()["snapshots"]}
        if waiting[left - 1].snapshot_id not in known or self.main.picked:
            raise Skipped
        self.spark(
            f"ALTER TABLE T REPLACE BRANCH staging AS OF VERSION {waiting[left - 1].snapshot_id}"
        )
        self.log = self.log[: cursor + left]
        self.forget_staged(cursor + left)

    # -- writers -----------------------------------------------------------------------------------

    def upsert_by_equality(self) -> None:
        """As Flink does it: rows and equality deletes in one commit, on staging or on main."""
        if self.current_spec():
            raise Skipped  # a delete reaches its own partition only
        on_staging = self.rng.random() < 0.6 and self.staging is not None
        keys = self.draw(1, 3)
        gone = keys | self.draw(0, 2)
        unwritten = {c.field_id for c in self.columns if c.type not in ("long", "int", "string")}
        rows: list[Row] = [
            {k: None if k in unwritten else value for k, value in row.items()}
            for row in self.fresh(keys)
        ]
        self.statements.append(f"equality {on_staging} {sorted(keys)} {sorted(gone)}")
        self.shared.java.row_delta(
            self.shared.java_name,
            rows=rows,
            deleted=[{1: key} for key in sorted(gone)],
            equality_ids=[1],
            branch="staging" if on_staging else None,
        )
        self.note_upsert(on_staging, gone, rows)

    def note_upsert(self, on_staging: bool, gone: set[int], rows: list[Row]) -> None:
        """These keys went from a branch, and these rows came."""
        state = self.staging_before if on_staging else self.main_before
        left = {**{k: r for k, r in state.rows.items() if k not in gone}, **by_key(rows)}
        if on_staging:
            self.on_staging(left, gone, rows)
        else:
            self.on_main(left)

    def audit_staging(self) -> None:
        """Statements that name no branch, in a session that writes to staging."""
        if self.staging is None:
            raise Skipped
        self.spark("ALTER TABLE T SET TBLPROPERTIES ('write.wap.enabled'='true')")
        kind = self.rng.choice(["insert", "delete", "update", "merge"])
        text, new, gone = self.statement(kind, self.staging.rows, "T")
        left = {k: r for k, r in self.staging.rows.items() if k not in gone}
        self.shared.java.configure({"spark.wap.branch": "staging"})
        try:
            self.spark(text)
        finally:
            self.shared.java.configure({"spark.wap.branch": None})
        self.on_staging({**left, **new}, gone, new.values())

    def same_column_anew(self) -> None:
        """Another column of the name, whose values are none."""
        sources = {each["source-id"] for each in self.current_spec()}
        extra = [each for each in self.columns[3:] if each.field_id not in sources]
        if not extra:
            raise Skipped
        name = self.rng.choice(extra).name
        self.spark(
            f"ALTER TABLE T DROP COLUMN {name}",
            f"ALTER TABLE T ADD COLUMN {name} {self.rng.choice(['bigint', 'string'])}",
        )
        self.read_columns()

    # -- rewrites ----------------------------------------------------------------------------------

    def rewrite_some_files(self) -> None:
        options = self.rng.choice(
            [
                "'delete-file-threshold', '1'",
                "'min-input-files', '2'",
                "'delete-ratio-threshold', '0.1'",
                "'min-input-files', '1', 'max-file-group-size-bytes', '1000'",
            ]
        )
        self.call("rewrite_data_files", options=f"map({options})")
        self.all_new_are_same()

    def rewrite_staging(self) -> None:
        """A compaction of the branch is refused by `resolve`; moving it back is the way on."""
        before = self.head("staging")
        if before is None or not self.waiting:
            raise Skipped
        try:
            self.call(
                "rewrite_data_files", options="map('rewrite-all', 'true')", branch="'staging'"
            )
        except JavaIcebergError as error:
            self.refusals["rewrite staging: " + str(error)[:60]] += 1
            raise Skipped from None
        if self.head("staging") == before:
            return
        try:
            resolve(self.table.refresh())
        except tf.TableError as error:
            self.refusals["after rewrite of staging: " + str(error)[:60]] += 1
        else:
            raise AssertionError("a compaction of staging was published")
        self.spark(f"ALTER TABLE T REPLACE BRANCH staging AS OF VERSION {before}")

    # -- the catalog -------------------------------------------------------------------------------

    def back_up(self) -> None:
        told = {name: copy.copy(getattr(self, name)) for name in TOLD}
        self.backups.append((self.table.refresh().metadata_location, told))

    def register_again(self) -> None:
        """The table is dropped, and registered with its metadata file or an older one."""
        now = [] if self.rng.random() < 0.6 else None
        if now is None:
            self.back_up()
        if not self.backups:
            raise Skipped
        location, told = self.backups.pop()
        if not local_path(location).exists():
            raise Skipped
        self.spark("DROP TABLE T")
        self.shared.java.sql(
            f"CALL {self.shared.prefix}.system.register_table(table => '{self.shared.name}', "
            f"metadata_file => '{location}')"
        )
        self.statements.append(f"register {location}")
        for name, value in told.items():
            setattr(self, name, copy.copy(value))
        # As a process that starts: one that knows the newer version waits for a minute.
        catalog = self.shared.catalog.environment.catalog
        catalog._seen.forget(self.table.identifier)
        self.table = self.shared.load()
        self.read_columns()

    # A file that a backup needs may be gone after any of these.

    def spark_expires(self) -> None:
        self.backups.clear()
        super().spark_expires()
        self.has_lost = True

    def spark_removes_orphans(self) -> None:
        self.backups.clear()
        super().spark_removes_orphans()

    def expire(self) -> None:
        self.backups.clear()
        super().expire()

    def other_maintenance(self) -> None:
        self.backups.clear()
        super().other_maintenance()

    # -- in the middle -----------------------------------------------------------------------------

    def resolve_while_spark_acts(self) -> None:
        if not self.waiting:
            raise Skipped
        acted = self.act_inside(self.rng.choice(IN_THE_CYCLE))
        try:
            self.resolve()
        except CommitConflictError as error:  # main went back, or has what was to be published
            self.refusals["inside: " + str(error)[:60]] += 1
            if not {"rollback", "cherrypick"} & {*acted}:
                raise
        finally:
            self.table.environment.runtime.fail_points.armed.clear()
            self.inside = None
        self.statements.append(f"inside: {acted}")

    def compact_while_spark_acts(self) -> None:
        acted = self.act_inside("commit.before_swap")
        try:
            self.compact()
        except tf.TableError as error:
            self.refusals["compact: " + str(error)[:60]] += 1
        finally:
            self.table.environment.runtime.fail_points.armed.clear()
            self.inside = None
        self.statements.append(f"inside: {acted}")

    def act_inside(self, point: str) -> list[str]:
        """Arm a fail point with a step of Spark; its name is in the list once it was done."""
        acted: list[str] = []
        names = ["spark_on_main"] * 3 + [
            "rewrite_data_files", "spark_on_staging", "insert_overwrite", "upsert_by_equality",
            "cherrypick", "rollback", "rewrite_position_delete_files", "change_partitions",
            "change_columns",
        ]  # fmt: skip
        name = self.rng.choice(names)

        def act() -> None:
            self.table.refresh()
            self.all_new_are_same()  # equality deletes that were live there, converted
            self.main_before, self.staging_before = self.main, self.staging or State()
            self.statements.append(f"at {point}: {name}")
            acted.append(name)
            try:
                getattr(self, name)()
            except Skipped:
                self.statements[-1] += ": skipped"
            self.inside = self.main_before = self.main

        interrupt(self.table, point, act)
        return acted
