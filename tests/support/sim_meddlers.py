"""Actors who move branches and rewrite files beside the resolver: icefold's own commands, and other
tools', which share no code with it (`foreign_table`).

What another tool reads it reads at once; its swaps are as slow, lost or late as everybody's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tableformat.commit.cherry_pick import cherry_pick
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import fast_forward, rollback
from tableformat.errors import AlreadyExistsError, CommitUnknownError
from tests.support.foreign_table import (
    DATA,
    POSITIONS,
    Entry,
    ForeignCommit,
    ForeignTable,
    edited,
    expire_snapshots,
    moved_branch,
    write_rows,
    write_vector,
)
from tests.support.sim_draw import ARROW, as_table
from tests.support.sim_files import View, is_of, spec_of
from tests.support.sim_housekeepers import fork, switch, tidy, undo
from tests.support.sim_main_tools import audit, change_main
from tests.support.sim_movers import MOVER, move_staging
from tests.support.sim_operation import Operation
from tests.support.sim_schema import AMOUNT, ID, Row, TableSchema, moved, read_schema
from tests.support.sim_seams import SimPointers
from tests.support.sim_settings_tools import prune, tag
from tests.support.sim_upserts import upsert
from tests.support.sim_world import Actor
from tests.support.table_checker import check_snapshot

if TYPE_CHECKING:
    from tests.support.sim_run import Simulation

KEPT_MS = 3_000  # snapshots are kept for longer, where nobody rolls main back
MAX_REF_AGE = "history.expire.max-ref-age-ms"
QUERY, EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
RETENTION = ("max-ref-age-ms", "max-snapshot-age-ms", "min-snapshots-to-keep")


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one partition under a schema, and a file of that partition; none: yet to come."""

    epoch: int
    schema: TableSchema | None = None
    found: tuple[Entry, list[Row]] | None = None


class Meddlers:
    """The bodies of these actors, by their names in `Profile.meddlers`."""

    def __init__(self, simulation: Simulation, identifier: tuple[str, ...]) -> None:
        self.simulation = simulation
        self.identifier = identifier
        self.oracle = simulation.oracle
        self.batches: dict[str, Batch] = {}  # by query: in its checkpoint, not yet noted as done
        self.bodies: Mapping[str, Callable[[Actor], None]] = {
            "adder": self.add,
            "ager": self.age,
            "auditor": partial(audit, self),
            "cdc": self.stage_elsewhere,
            "copier": self.copy,
            "foreign-compactor": self.compact,
            "foreign-expirer": self.expire,
            "forker": partial(fork, self),
            "forwarder": self.forward,
            "main-row-level": partial(change_main, self),
            MOVER: partial(move_staging, self),
            "picker": self.pick,
            "pruner": partial(prune, self),
            "retrier": self.stage_again,
            "row-level": self.change_staged_rows,
            "streamer": self.stream,
            "switcher": partial(switch, self),
            "tagger": partial(tag, self),
            "tidier": partial(tidy, self),
            "undoer": partial(undo, self),
            "upserter": partial(upsert, self),
        }

    # What other tools see and do.

    def table(self) -> ForeignTable:
        location = self.simulation.pointers.read(self.identifier)
        assert location is not None
        return ForeignTable(self.simulation.store.get, location)

    def put(self, location: str, data: bytes) -> None:
        self.simulation.world.unchecked.add(location)
        try:
            self.simulation.store.put(location, data)
        except AlreadyExistsError:
            assert self.simulation.store.get(location) == data

    def now_ms(self, actor: Actor) -> int:
        return int(self.simulation.world.now_ms) + actor.skew_ms

    def swap(self, actor: Actor, table: ForeignTable, new: str) -> None:
        """Make a version the table's; it may be there although the answer says otherwise."""
        self.oracle.foreign_swaps.add(new)
        pointers = SimPointers(actor, self.simulation.pointers)
        try:
            is_there = pointers.swap(self.identifier, expected=table.location, new=new)
        except (TimeoutError, ConnectionResetError) as error:
            raise CommitUnknownError("simulated: no answer for another tool") from error
        if not is_there:
            raise CommitUnknownError("simulated: another tool was overtaken")

    def commit(
        self, actor: Actor, table: ForeignTable, branch: str, operation: str, **summary: str
    ) -> ForeignCommit:
        """A commit to fill; its snapshot id is drawn as all are."""
        snapshot_id = actor.new_runtime().ids.snapshot_id()
        now_ms = self.now_ms(actor)
        return ForeignCommit(
            table,
            branch,
            operation,
            snapshot_id,
            now_ms,
            dict(summary),
            parent_branch="main",
            is_terse=snapshot_id % 3 == 0,
        )

    def land(self, actor: Actor, commit: ForeignCommit) -> None:
        self.swap(actor, commit.table, commit.write(self.put))

    def path(self, commit: ForeignCommit, what: str) -> str:
        return f"{commit.table.metadata['location']}/data/{commit.snapshot_id}-{what}"

    def view(self, table: ForeignTable, snapshot: dict[str, Any]) -> View:
        """The rows of a snapshot, under the current schema."""
        checked = check_snapshot(
            table.read, table.metadata, snapshot, repeated=self.oracle.repeated, has_totals=False
        )
        return self.oracle.files.view(checked, table.metadata, self.schema(table))

    def schema(self, table: ForeignTable) -> TableSchema:
        current = table.metadata["current-schema-id"]
        return next(
            read_schema(each) for each in table.metadata["schemas"] if each["schema-id"] == current
        )

    def waiting(self, table: ForeignTable) -> list[dict[str, Any]]:
        """Staged snapshots in staging's history that main does not have, newest first."""
        if self.oracle.waiting == 0 or table.head("staging") is None:
            return []
        ids = set(self.oracle.staged[-self.oracle.waiting :])
        history = table.ancestors(table.metadata["refs"]["staging"]["snapshot-id"])
        return [each for each in history if each["snapshot-id"] in ids]

    def staged_before(self, actor: Actor, table: ForeignTable) -> list[dict[str, Any]]:
        """All staged snapshots that the table has, published ones, too, as long as main says so:
        icefold's expiry keeps a publish that was young when a repeat was staged."""
        profile, oracle, ids = self.simulation.world.profile, self.oracle, set(self.oracle.staged)
        if profile.expires:
            since = self.now_ms(actor) - KEPT_MS
            head = (table.head("main") or {}).get("snapshot-id")
            young = [e for e in table.ancestors(head) if e["timestamp-ms"] > since]
            if profile.skew or "foreign-expirer" in profile.meddlers or not young:
                return self.waiting(table)
            ids = set(
                oracle.staged[oracle.state_of(young[-1].get("parent-snapshot-id")).published :]
            )
        return [each for each in table.metadata["snapshots"] if each["snapshot-id"] in ids]

    def on_main(self) -> frozenset[str]:
        """Staged data files that main has, or had: who adds one again makes it come twice."""
        return self.oracle.state_of(self.oracle.refs.get("main")).ever

    def has_row_ids(self, path: str) -> bool:
        """Whether a file brings rows under ids that other rows may have."""
        return any(each is not None for each in self.oracle.files.file(path).row_ids)

    def rows_like(
        self, actor: Actor, table: ForeignTable, branch: str
    ) -> tuple[Entry, list[Row]] | None:
        """Some new rows of one partition, and a file of that partition."""
        snapshot = table.head(branch) or table.head("main")
        schema, default = self.schema(table), table.metadata["default-spec-id"]
        likes = [e for e in table.entries(snapshot) if e.spec_id == default]
        given = self.simulation.rows_of(actor, [schema.by_id[f] for f in schema.fields])
        if not likes or not given:
            return None
        like = actor.rng.choice(likes)
        where = tuple((like.file["partition"] or {}).values())
        spec = spec_of(table.metadata, default)
        rows = [row for row in given if is_of(row, where, spec)]
        return (like, rows) if rows else None

    def insert(
        self, actor: Actor, branch: str, found: tuple[Entry, list[Row]], table: ForeignTable
    ) -> None:
        """Stage rows in an append, as a tool without keys does."""
        like, rows = found
        schema = self.schema(table)
        bound = (schema, tuple(rows))
        operation = Operation(actor.name, "stage", branch=branch, bound=bound, is_foreign=True)
        with self.simulation.operation(actor, operation):
            commit = self.commit(actor, table, branch, "append")
            commit.add(like, write_rows(self.put, self.path(commit, "0.parquet"), schema, rows))
            self.land(actor, commit)

    # The actors.

    def pick(self, actor: Actor) -> None:
        """Cherry-picks staged snapshots onto main; stages some that only append, to pick them."""
        environment = self.simulation.environment(actor)
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            table = self.table()
            if actor.rng.random() < 0.3:
                found = self.rows_like(actor, table, "staging")
                if found is not None:
                    self.insert(actor, "staging", found, table)
                continue
            waiting = self.waiting(table)
            if not waiting:
                continue
            source = actor.rng.choice(waiting)
            if actor.rng.random() < 0.5:
                operation = Operation(actor.name, "pick", source=source["snapshot-id"])
                with self.simulation.operation(actor, operation):
                    cherry_pick(environment, self.identifier, snapshot_id=source["snapshot-id"])
            else:
                self.pick_as_java(actor, table, source)

    def pick_as_java(self, actor: Actor, table: ForeignTable, source: dict[str, Any]) -> None:
        """A snapshot on top of the head is the new head; else only appends can be picked."""
        head, source_id = table.head("main"), source["snapshot-id"]
        if head is not None and source.get("parent-snapshot-id") == head["snapshot-id"]:
            self.move_main(actor, table, source_id, "forward")
            return
        entries = table.added(source)
        if source["summary"]["operation"] != "append" or any(
            entry.file["content"] != DATA or entry.path in self.on_main() for entry in entries
        ):
            return
        operation = Operation(actor.name, "pick", source=source_id, is_foreign=True)
        with self.simulation.operation(actor, operation):
            summary = {"source-snapshot-id": str(source_id)}
            commit = self.commit(actor, table, "main", "append", **summary)
            for entry in entries:
                commit.add(entry, {})
            self.land(actor, commit)

    def move_main(self, actor: Actor, table: ForeignTable, to: int, kind: str) -> None:
        with self.simulation.operation(actor, Operation(actor.name, kind, is_foreign=True)):
            self.swap(actor, table, moved_branch(self.put, table, "main", to, self.now_ms(actor)))

    def forward(self, actor: Actor) -> None:
        """Fast-forwards main to staging, and often rolls it back, to where it was or further."""
        environment = self.simulation.environment(actor)
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            table = self.table()
            old, new = table.head("main"), table.head("staging")
            if new is None:
                continue
            before = [] if old is None else list(table.ancestors(old["snapshot-id"]))
            after = [each["snapshot-id"] for each in table.ancestors(new["snapshot-id"])]
            if actor.rng.random() < 0.5:
                with self.simulation.operation(actor, Operation(actor.name, "forward")):
                    fast_forward(environment, self.identifier, "main", to="staging")
            elif before and before[0]["snapshot-id"] in after[1:]:
                self.move_main(actor, table, new["snapshot-id"], "forward")
            if before and actor.rng.random() < 0.6:
                actor.sleep(actor.rng.random() * 3_000)
                back = before[0] if actor.rng.random() < 0.7 else actor.rng.choice(before[:4])
                self.back(actor, back["snapshot-id"])

    def back(self, actor: Actor, to: int) -> None:
        table = self.table()
        head = table.head("main")
        if head is None or head["snapshot-id"] == to:
            return
        if actor.rng.random() < 0.5:
            environment = self.simulation.environment(actor)
            with self.simulation.operation(actor, Operation(actor.name, "rollback")):
                rollback(environment, self.identifier, snapshot_id=to)
        elif any(each["snapshot-id"] == to for each in table.ancestors(head["snapshot-id"])):
            self.move_main(actor, table, to, "rollback")

    def add(self, actor: Actor) -> None:
        """Another tool adds a staged data file to main, in an append of its own."""
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            table = self.table()
            known = self.on_main()
            entries = [
                entry
                for snapshot in self.waiting(table)
                for entry in table.added(snapshot)
                if entry.file["content"] == DATA
                and entry.path not in known
                and not self.has_row_ids(entry.path)
            ]
            if not entries:
                continue
            entry = actor.rng.choice(entries)
            operation = Operation(actor.name, "pick", paths=(entry.path,), is_foreign=True)
            with self.simulation.operation(actor, operation):
                commit = self.commit(actor, table, "main", "append")
                commit.add(entry, {})
                self.land(actor, commit)

    def stage_again(self, actor: Actor) -> None:
        """A staging writer that was not told that its commit landed, and commits its file again."""
        while True:
            actor.sleep(actor.rng.random() * 5_000)
            table = self.table()
            staged = self.staged_before(actor, table)
            if not staged:
                continue
            source, schema = actor.rng.choice(staged), self.schema(table)
            if actor.rng.random() < 0.2:  # as Flink's sink does when nothing has come
                self.commit_again(actor, table, source, [], schema)
                continue
            entries = [e for e in table.added(source) if e.file["content"] != POSITIONS]
            data = [e for e in entries if e.file["content"] == DATA]
            if not data or any(e.path in self.oracle.repeated for e in entries):
                continue
            if actor.rng.random() < 0.5:
                entries = data = [actor.rng.choice(data)]
            self.commit_again(actor, table, source, entries, schema)

    def commit_again(
        self,
        actor: Actor,
        table: ForeignTable,
        source: dict[str, Any],
        entries: Sequence[Entry],
        schema: TableSchema,
    ) -> None:
        data = [e for e in entries if e.file["content"] == DATA]
        has_deletes = len(data) < len(entries)
        rows = [row for e in data for row in self.oracle.files.rows_of(e.path, schema)]
        keys = self.oracle.stages[source["snapshot-id"]].keys if has_deletes else frozenset()
        operation = Operation(
            actor.name,
            "stage",
            keys=keys,
            bound=(schema, tuple(rows)),
            again=tuple(e.path for e in entries),
            is_foreign=True,
        )
        with self.simulation.operation(actor, operation):
            kind = "overwrite" if has_deletes else "append"
            commit = self.commit(actor, table, "staging", kind)
            for entry in entries:
                commit.add(entry, {})
            self.land(actor, commit)

    def stream(self, actor: Actor) -> None:
        """Two queries append their batches to staging, as Iceberg's writer on Spark does: it looks
        for the last one on main. What was not noted as done comes again, in another file.
        """
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            table, query = self.table(), actor.rng.choice("ab")
            batch = self.batches.get(query, Batch(0))
            if batch.found is None:
                found = self.rows_like(actor, table, "staging")
                batch = replace(batch, schema=self.schema(table), found=found)
                self.batches[query] = batch
            history = table.ancestors((table.head("main") or {}).get("snapshot-id"))
            epochs = (e["summary"][EPOCH] for e in history if e["summary"].get(QUERY) == query)
            is_done = int(next(epochs, -1)) >= batch.epoch or self.append_batch(
                actor, table, query, batch
            )
            if is_done and actor.rng.random() < 0.6:
                self.batches[query] = Batch(batch.epoch + 1)

    def append_batch(self, actor: Actor, table: ForeignTable, query: str, batch: Batch) -> bool:
        """Whether it is said to have landed."""
        if batch.found is None or batch.schema is None:
            return False
        (like, old), schema = batch.found, self.schema(table)
        rows = [moved(row, batch.schema, schema) for row in old]
        operation = Operation(
            actor.name,
            "stage",
            bound=(schema, tuple(rows)),
            epoch=(query, batch.epoch),
            is_foreign=True,
        )
        with self.simulation.operation(actor, operation):
            said = {QUERY: query, EPOCH: str(batch.epoch)}
            commit = self.commit(actor, table, "staging", "append", **said)
            commit.add(like, write_rows(self.put, self.path(commit, "0.parquet"), schema, rows))
            self.land(actor, commit)
        return operation.outcome == "ok"

    def age(self, actor: Actor) -> None:
        """For a while refs age at once; expiry runs meanwhile."""
        environment = self.simulation.environment(actor)
        while True:
            actor.sleep(actor.rng.random() * 6_000)
            self.set_ref_age(actor, "1")
            actor.sleep(actor.rng.random() * 2_000)
            policy = ExpiryPolicy(max_snapshot_age_ms=4_000, min_snapshots_to_keep=2)
            with self.simulation.operation(actor, Operation(actor.name, "expire")):
                apply_expiry(environment, self.identifier, policy, fence=None)
            if actor.rng.random() < 0.7:
                self.set_ref_age(actor, None)

    def set_ref_age(self, actor: Actor, value: str | None) -> None:
        def change(metadata: dict[str, Any]) -> None:
            kept = {k: v for k, v in metadata["properties"].items() if k != MAX_REF_AGE}
            metadata["properties"] = kept if value is None else kept | {MAX_REF_AGE: value}

        with self.simulation.operation(actor, Operation(actor.name, "set", is_foreign=True)):
            table = self.table()
            self.swap(actor, table, edited(self.put, table, change, self.now_ms(actor)))

    def expire(self, actor: Actor) -> None:
        """Expiry with Java's rules, which knows of staging what its ref says."""
        while True:
            actor.sleep(actor.rng.random() * 8_000)
            if actor.rng.random() < 0.15:
                self.strip(actor)
            table, now_ms = self.table(), self.now_ms(actor)
            age_ms, least = actor.rng.choice([0, 0, 4_000]), actor.rng.choice([1, 1, 3])
            expired = expire_snapshots(
                self.put, table, now_ms=now_ms, older_than_ms=now_ms - age_ms, retain_last=least
            )
            if expired is None:
                continue
            if set(expired.refs) - self.oracle.kept_branches:
                # What icefold never saw it cannot keep; nothing of it would be left to check.
                self.simulation.world.outcomes["branch spared by foreign expiry"] += 1
                continue
            with self.simulation.operation(actor, Operation(actor.name, "expire", is_foreign=True)):
                self.swap(actor, table, expired.location)
                self.simulation.store.delete(list(expired.files))

    def strip(self, actor: Actor) -> None:
        """Somebody makes the staging branch anew, without retention."""
        table = self.table()
        if table.head("staging") is None:
            return

        def change(metadata: dict[str, Any]) -> None:
            ref = metadata["refs"]["staging"]
            metadata["refs"]["staging"] = {k: v for k, v in ref.items() if k not in RETENTION}

        with self.simulation.operation(actor, Operation(actor.name, "set", is_foreign=True)):
            new = edited(self.put, table, change, self.now_ms(actor))
            self.oracle.strips.add(new)
            self.swap(actor, table, new)

    def compact(self, actor: Actor) -> None:
        """Another tool's compaction of a partition: it drops vectors with their files."""
        keeps = self.simulation.world.profile.keeps_row_ids
        while True:
            actor.sleep(actor.rng.random() * 5_000)
            table = self.table()
            head = table.head("main")
            if head is None:
                continue
            entries = table.entries(head)
            groups: dict[str, list[Entry]] = {}
            for entry in entries:
                if entry.file["content"] == DATA:
                    groups.setdefault(f"{entry.spec_id} {entry.file['partition']}", []).append(
                        entry
                    )
            if not groups:
                continue
            group = groups[actor.rng.choice(sorted(groups))]
            chosen = [each for each in group if actor.rng.random() < 0.8] or group
            operation = Operation(actor.name, "rewrite", is_foreign=True, is_lossy=not keeps)
            with self.simulation.operation(actor, operation):
                self.land(actor, self.compacted(actor, table, head, entries, chosen, keeps))

    def compacted(
        self,
        actor: Actor,
        table: ForeignTable,
        head: dict[str, Any],
        entries: Sequence[Entry],
        chosen: Sequence[Entry],
        keeps: bool,
    ) -> ForeignCommit:
        """The new file is as old as the head, so that deletes which come later reach it."""
        commit, view = self.commit(actor, table, "main", "replace"), self.view(table, head)
        paths = {entry.path for entry in chosen}
        ids = [row_id for (path, _), row_id in view.places.items() if path in paths]
        if ids:
            file = write_rows(
                self.put,
                self.path(commit, "0.parquet"),
                self.schema(table),
                [view.identities[i][0] for i in ids],
                ids if keeps else None,
                [view.identities[i][1] for i in ids] if keeps else None,
            )
            commit.add(chosen[0], file, sequence_number=head["sequence-number"])
        for entry in entries:
            if entry.path in paths or entry.file["referenced_data_file"] in paths:
                commit.remove(entry)
        return commit

    def change_staged_rows(self, actor: Actor) -> None:
        """Deletes or updates one row of staging by its position, as Spark does on a branch."""
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            table = self.table()
            head = table.head("staging") or table.head("main")
            if head is None:
                continue
            view = self.view(table, head)
            if not view.places:
                continue
            place = actor.rng.choice(list(view.places))
            row_id, schema = view.places[place], self.schema(table)
            row = view.identities[row_id][0]
            rows: tuple[Row, ...] = ()
            if actor.rng.random() < 0.6:
                at = schema.fields.index(AMOUNT)
                rows = ((*row[:at], self.simulation.serial.next(), *row[at + 1 :]),)
            repeats_dead = actor.rng.random() < 0.3
            operation = Operation(actor.name, "stage", bound=(schema, rows), is_foreign=True)
            with self.simulation.operation(actor, operation):
                dead = self.dead_rows(table, head, view, place[0]) if repeats_dead else set()
                self.land(actor, self.row_delta(actor, table, head, place, dead, row_id, rows))

    def copy(self, actor: Actor) -> None:
        """Copy-on-write on staging, as Spark does it: a file of which a row is deleted or updated
        is written anew, with the ids of its rows; at times a file is deleted, or its rows are only
        moved into another one, under a sequence number of its own."""
        while True:
            actor.sleep(actor.rng.random() * 6_000)
            table = self.table()
            head = table.head("staging") or table.head("main")
            if head is None:
                continue
            view = self.view(table, head)
            if not view.places:
                continue
            path, position = actor.rng.choice(list(view.places))
            schema = self.schema(table)
            ids = {at: row_id for (each, at), row_id in view.places.items() if each == path}
            rows = {at: view.identities[row_id] for at, row_id in ids.items()}
            old, _ = rows.pop(position)
            kind = actor.rng.choice(["update", "update", "delete", "drop", "same"])
            if kind == "same":
                rows[position] = view.identities[ids[position]]
            if kind == "update":
                at = schema.fields.index(AMOUNT)
                new = (*old[:at], self.simulation.serial.next(), *old[at + 1 :])
                rows[position] = new, None
            rows = {} if kind == "drop" else rows
            given = tuple(row for row, _ in rows.values())
            operation = Operation(
                actor.name, "stage", bound=(schema, given), is_foreign=True, copies=True
            )
            with self.simulation.operation(actor, operation):
                what = "replace" if kind == "same" else "overwrite" if rows else "delete"
                commit = self.commit(actor, table, "staging", what)
                for entry in table.entries(head):
                    if entry.path == path and rows:
                        updates = [updated for _, updated in rows.values()]
                        stored = write_rows(
                            self.put,
                            self.path(commit, "0.parquet"),
                            schema,
                            given,
                            [ids[at] for at in rows],
                            updates,
                        )
                        commit.add(entry, stored)
                    if path in (entry.path, entry.file["referenced_data_file"]):
                        commit.remove(entry)
                self.land(actor, commit)

    def dead_rows(
        self, table: ForeignTable, head: dict[str, Any], view: View, path: str
    ) -> set[int]:
        """Positions of rows of a file that staging does not show, whatever deleted them."""
        [count] = [e.file["record_count"] for e in table.entries(head) if e.path == path]
        return set(range(count)) - {at for file, at in view.places if file == path}

    def row_delta(
        self,
        actor: Actor,
        table: ForeignTable,
        head: dict[str, Any],
        place: tuple[str, int],
        dead: set[int],
        row_id: int,
        rows: Sequence[Row],
        branch: str = "staging",
    ) -> ForeignCommit:
        """One vector per file: with the positions of the one before it, and of position deletes,
        which readers leave out beside a vector; and with those of dead rows, as of a tool that
        turns equality deletes into vectors.
        """
        commit, (path, position) = self.commit(actor, table, branch, "overwrite"), place
        entries = table.entries(head)
        file = next(e for e in entries if e.path == path)
        positions = {position} | dead
        for entry in entries:
            if entry.is_vector and entry.file["referenced_data_file"] == path:
                start, size = entry.file["content_offset"], entry.file["content_size_in_bytes"]
                positions |= set(self.oracle.files.bitmap(entry.path, start, size))
                commit.remove(entry)
            elif entry.is_position_file:
                positions |= self.oracle.files.position_file(entry.path).get(path, set())
        vector = write_vector(self.put, self.path(commit, "0.puffin"), path, sorted(positions))
        commit.add(file, vector)
        if rows:
            stored = write_rows(
                self.put, self.path(commit, "0.parquet"), self.schema(table), rows, [row_id], [None]
            )
            commit.add(file, stored)
        return commit

    def stage_elsewhere(self, actor: Actor) -> None:
        """A second staging branch, of two tools."""
        simulation = self.simulation
        load = simulation.table(simulation.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            if "main" not in self.oracle.refs:
                continue  # only main may begin with a publish
            if actor.rng.random() < 0.3:
                table = self.table()
                found = self.rows_like(actor, table, "cdc")
                if found is not None:
                    self.insert(actor, "cdc", found, table)
                continue
            schema = simulation.known(actor)
            typed, rows = simulation.fresh_rows(actor, schema)
            gone = actor.rng.sample(range(simulation.world.profile.keys), actor.rng.randint(0, 1))
            if not rows and not gone:
                continue
            key = schema.by_id[ID]
            typed = typed if rows else {key.name: key.kind}
            keys = frozenset([row[0] for row in rows] + gone)
            operation = Operation(actor.name, "stage", rows, keys, typed, branch="cdc")
            with simulation.operation(actor, operation):
                deletes = pa.table({key.name: pa.array(gone, ARROW[key.kind])}) if gone else None
                load().stage(upserts=as_table(typed, rows), deletes=deletes, branch="cdc")
