"""A join kept as a table: each round stages what the changes of its tables change in the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.batch_commit import BatchId, CommittedBatch, commit_batch, committed
from tableformat.cdc.cuts import Cut, newest_cut
from tableformat.cdc.rowkind import RowKind
from tableformat.changelog.pairing import KIND, pair_rows
from tableformat.commit.changeset import CommitKind
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, NotFoundError
from tableformat.join.evaluate import result_rows, touched_roots
from tableformat.join.fetch import fetch
from tableformat.join.plan import JoinPlan
from tableformat.join.side import Side
from tableformat.lookup.session import Lookup
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import MAIN_BRANCH, SNAPSHOTS_MAX, SOURCE_OFFSETS, STAGING_BRANCH
from tableformat.table_definition import parse_table_name
from tableformat.write.delete_scope import check_delete_scope, delete_spec
from tableformat.write.stage import check_stageable, write_staged

CACHE_BYTES = 128 << 20  # decoded values that a table's lookups keep


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRound:
    """What a round did.

    Attributes:
        snapshot_id: The staged commit; None: no table has moved, or another process was faster.
        batch: Its number among the rounds of the join.
        snapshots: The tables' snapshots that the result has now, by alias; None: an empty table.
        cut: The cut that they are of; None: they are the heads.
        changes: Changed rows of each table, by alias; the first round, which reads all, has none.
        before_images: How many of them are images of rows that left or were replaced.
        upserts: Rows staged.
        deletes: Keys whose rows go.
        scanned: Tables that were scanned for want of an index that can be used, and why.
        duration_ms: How long it took.
    """

    snapshot_id: int | None
    batch: int
    snapshots: Mapping[str, int | None]
    cut: str | None = None
    changes: Mapping[str, int] = field(default_factory=dict)
    before_images: int = 0
    upserts: int = 0
    deletes: int = 0
    scanned: Mapping[str, str] = field(default_factory=dict)
    duration_ms: float = 0.0


class DeltaJoin:
    """Keeps the result of a join. Made by `TableCatalog.delta_join`; for one thread.

    Args:
        environment: Catalog, store, clock.
        plan: The join, checked.
        cuts: What cuts there are, newest first: rounds go to the newest; None: to the heads.
    """

    def __init__(
        self,
        environment: Environment,
        plan: JoinPlan,
        *,
        cuts: Callable[[], Sequence[Cut]] | None = None,
    ) -> None:
        self.plan = plan
        self.identifier: Identifier = parse_table_name(plan.definition.into)
        self._environment = environment
        self._cuts = cuts
        self._lookups = {
            alias: Lookup(environment, parse_table_name(side.table), cache_bytes=CACHE_BYTES)
            for alias, side in plan.sides.items()
        }

    def run(self) -> JoinRound:
        """One round: from the snapshots of the last one to the heads of the tables, or to a cut.

        The first round reads all of the first table and looks the others up; each later one reads
        what changed in the tables since the one before, with before-images.

        Raises:
            InvalidInputError: The result has rows of others, or of another definition of the join.
            NotFoundError: A snapshot of the last round has expired, or no cut has all tables.

        Effects: data files, delete files, then one staged commit that says which snapshots it has
        brought in, at most once whoever runs it. A crash before it leaves files for orphan removal,
        and the next round does the same again.
        """
        clock = self._environment.runtime.clock
        begin_ms = clock.monotonic_ms()
        state = self._environment.catalog.load_table(self.identifier)
        check_stageable(state, STAGING_BRANCH)
        query = self.plan.definition.query
        done = committed(state, STAGING_BRANCH, query)
        last = self._last(state, done)
        cut = None if self._cuts is None else newest_cut(self._cuts(), self.plan.tables)
        sides = self._sides(last, cut)
        name = None if cut is None else str(cut.name)
        heads = {alias: side.new for alias, side in sides.items()}
        now = {alias: None if new is None else new.snapshot_id for alias, new in heads.items()}
        if done is not None and now == last:
            return JoinRound(snapshot_id=None, batch=done.number, snapshots=now, cut=name)
        batch = BatchId(query, 0 if done is None else done.number + 1)
        spec, state = delete_spec(self._environment, state)
        written = _Written(self._environment, state, spec, are_new=last is None)
        if last is not None:
            fetch(self.plan, sides)
        for tree in self.plan.trees:
            for roots in touched_roots(tree, sides):
                old, new = result_rows(self.plan, tree, sides, roots)
                written.add(self.plan, old, new)
        self._environment.runtime.fail_point("join.before_commit")
        offsets: dict[str, object] = {
            "definition": self.plan.definition.fingerprint,
            "snapshots": now,
            **({} if name is None else {"cut": name}),
        }
        commit = commit_batch(
            self._environment,
            self.identifier,
            branch=STAGING_BRANCH,
            kind=CommitKind.ROW_DELTA,
            batch=batch,
            data_files=written.data_files,
            delete_files=written.delete_files,
            summary={SOURCE_OFFSETS: json.dumps(offsets)},
            check=lambda table: check_delete_scope(table, spec),
            is_mark=True,
        )
        self._environment.runtime.fail_point("join.after_commit")
        later = {} if last is None else sides
        return JoinRound(
            snapshot_id=None if commit is None else commit.snapshot.snapshot_id,
            batch=batch.number,
            snapshots=now,
            cut=name,
            changes={alias: side.changes.num_rows for alias, side in later.items()},
            before_images=sum(side.before.num_rows for side in later.values()),
            upserts=written.upserts,
            deletes=written.deletes,
            scanned={alias: side.scans[-1] for alias, side in sides.items() if side.scans},
            duration_ms=clock.monotonic_ms() - begin_ms,
        )

    def close(self) -> None:
        """Release the indexes."""
        for lookup in self._lookups.values():
            lookup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last(self, state: TableState, done: CommittedBatch | None) -> dict[str, int | None] | None:
        """The snapshots of the last round; None before the first."""
        if done is None:
            if state.head(MAIN_BRANCH) is not None or state.head(STAGING_BRANCH) is not None:
                raise InvalidInputError(
                    "the result's table has commits that are not of this join",
                    table=state.name,
                    query_id=self.plan.definition.query,
                    action="name a table with 'into' that does not exist",
                )
            return None
        offsets = json.loads(done.source.get(SOURCE_OFFSETS, "{}"))
        if offsets.get("definition") != self.plan.definition.fingerprint:
            raise InvalidInputError(
                "the result is of another definition of the join, or another query has written it",
                table=state.name,
                query_id=self.plan.definition.query,
                action="name a new table with 'into'; it is filled by its first round",
            )
        found: dict[str, int | None] = offsets["snapshots"]
        return found

    def _sides(self, last: Mapping[str, int | None] | None, cut: Cut | None) -> dict[str, Side]:
        load = self._environment.catalog.load_table
        states = {name: load(parse_table_name(name)) for name in self.plan.tables}
        sides = {}
        for alias, side in self.plan.sides.items():
            state = states[side.table]
            old_id = None if last is None else last[alias]
            old = None if old_id is None else state.metadata.snapshot_by_id(old_id)
            if old_id is not None and old is None:
                raise NotFoundError(
                    "the snapshot of the last round has expired, so what changed is unknown",
                    table=state.name,
                    snapshot_id=old_id,
                    action="name a new table with 'into', and keep snapshots for longer than the "
                    f"join may pause (history.expire.max-snapshot-age-ms, {SNAPSHOTS_MAX})",
                )
            sides[alias] = Side(
                self._environment,
                side,
                self._lookups[alias],
                state,
                old,
                state.head(MAIN_BRANCH) if cut is None else _in_cut(state, cut),
                is_first=last is None,
            )
        return sides


def _in_cut(state: TableState, cut: Cut) -> Snapshot:
    found = state.metadata.snapshot_by_id(cut.snapshots[state.name])
    if found is None:
        raise NotFoundError(
            "the table's snapshot of the cut has expired since", table=state.name, cut=cut.name
        )
    return found


@dataclass(slots=True)
class _Written:
    """Files of a round. A result row belongs to one root, so no key is in two slices."""

    environment: Environment
    state: TableState
    spec: PartitionSpec
    are_new: bool
    data_files: list[DataFile] = field(default_factory=list)
    delete_files: list[DataFile] = field(default_factory=list)
    upserts: int = 0
    deletes: int = 0

    def add(self, plan: JoinPlan, old: pa.Table, new: pa.Table) -> None:
        """Write what makes the new result rows of the old ones."""
        key = [(name,) for name in plan.key]
        changes = pair_rows(old, new, key=key, values=plan.schema.names)
        kind = changes[KIND]
        came = pc.is_in(kind, pa.array([RowKind.INSERT, RowKind.UPDATE_AFTER], kind.type))
        upserts = changes.filter(came).drop_columns([KIND])
        deletes = changes.filter(pc.equal(kind, int(RowKind.DELETE))).drop_columns([KIND])
        if not (upserts.num_rows or deletes.num_rows):
            return
        data_files, delete_files = write_staged(
            self.environment,
            self.state,
            self.spec,
            upserts=upserts,
            deletes=deletes,
            are_new=self.are_new,
        )
        self.data_files += data_files
        self.delete_files += delete_files
        self.upserts += upserts.num_rows
        self.deletes += deletes.num_rows
