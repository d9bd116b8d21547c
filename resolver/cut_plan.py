"""Which staged snapshots of each table go into the next cut: a pure function of all tables.

The cut is the newest batch n of the stream that is whole: every table that it, or a batch before
it, names has it staged or published. On each table it covers the staged snapshots up to the last
one of the stream that is not after n, those that others have staged in between included, and
nothing that was staged later.

A table that was set aside and has caught up since is in no cut before the batch with which it did.

A cut that somebody began to publish, one table after the other, is finished first, as it was. A
table that was published by itself beyond n waits for a batch that reaches it.

Tables are loaded one after the other while the stream goes on: what is loaded first may lack a
batch that others show. The stream begins a batch when the one before is whole. So where a batch was
seen on any table before all were loaded, all before it is there; `seen` bounds the cut.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from pyiceberg.table.snapshots import Snapshot

from resolver.cursor import plan_backlog, staged_changes
from resolver.lost_batches import lost_batches
from resolver.number_text import plural
from tableformat.catalog.base import TableState
from tableformat.cdc.batch_commit import batch_in, committed_batch
from tableformat.cdc.cuts import CutName, cut_of
from tableformat.cdc.many.positions import decode_offsets, transactions_end
from tableformat.cdc.many.set_aside import left_out
from tableformat.commit.branch_history import branch_history, snapshots_by_id, summary_of
from tableformat.commit.carried_properties import load_carried
from tableformat.errors import CorruptDataError, InvalidInputError, error_context
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import (
    BATCH_ID,
    BATCH_STANDS_ON,
    BATCH_TABLES,
    MAIN_BRANCH,
    QUERY_ID,
    SOURCE_OFFSETS,
    SOURCE_TRANSACTION,
    STAGING_BRANCH,
)

MAX_BATCH = (1 << 63) - 1  # of who is not waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPlan:
    """The next cut.

    Attributes:
        cut: Its name; None: there is none to publish.
        covered: By table that has something to publish: the last staged snapshot of it in the cut.
        waits_for: What stops a later batch from being published; empty: nothing does.
        change_count: Rows and equality deletes of the cut, as its batches' snapshots count them.
    """

    cut: CutName | None = None
    covered: Mapping[str, int] = field(default_factory=dict)
    waits_for: str = ""
    change_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShare:
    """What a table has of streams into several tables.

    Attributes:
        waiting: Queries with batches that wait on it.
        tables: All tables that those batches touch, dotted.
        published: The query whose batch its target shows; None: of no such stream.
        cut: The newest cut that it was published with.
    """

    waiting: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()
    published: str | None = None
    cut: CutName | None = None

    @property
    def queries(self) -> frozenset[str]:
        """All streams that are known to feed it."""
        return self.waiting if self.published is None else self.waiting | {self.published}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A batch of several tables, and the snapshot that says so.

    Attributes:
        transaction: The last of the source in it; None: it does not end with one.
        end: Where that one ends in the transaction topic.
    """

    name: CutName
    tables: tuple[str, ...]
    snapshot: Snapshot
    transaction: str | None
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A table, and the batches that wait on it, in staging order.

    Attributes:
        is_streamed: Nothing else waits.
        may_have_lost: Some of them stand on what staging lacks.
    """

    state: TableState
    staging: str
    target: str
    waiting: tuple[_Batch, ...]
    is_streamed: bool
    may_have_lost: bool

    @property
    def name(self) -> str:
        return self.state.name

    def staged(self, query: str) -> int:
        """The newest batch that was staged, published or not; -1: none was."""
        found = committed_batch(self.state, self.staging, query)
        return -1 if found is None else found

    def published(self, query: str) -> _Batch | None:
        """The newest published batch of several tables."""
        head = self.state.head(self.target)
        if head is None:
            return None
        carried = load_carried(snapshots_by_id(self.state.metadata), head.snapshot_id)
        found = batch_in(carried.writers, query, head.snapshot_id)
        if found is None or BATCH_TABLES not in found.source:
            return None
        return _batch(query, found.number, found.source, head, self.name)

    def cut(self, query: str) -> int:
        """The last cut that it was published with; -1: none. It may show an older batch."""
        found = cut_of(branch_history(self.state, self.target))
        return -1 if found is None or found.query != query else found.batch

    def lost(self, until: CutName | None = None) -> str:
        """What it has lost that its batches up to a cut, or all, stand on; empty: nothing."""
        if not self.may_have_lost:
            return ""
        shown = (
            each.snapshot
            for each in self.waiting
            if until is None or (each.name.query == until.query and each.name.batch <= until.batch)
        )
        found = lost_batches(self.state, shown, target=self.target)
        return next((e.describe(self.name) for e in found if not e.is_staged_again), "")

    def lacks(self, cut: CutName) -> bool:
        """Whether the stream has left it out there, or it would show less than the cut."""
        gaps = left_out(self.state.metadata.properties)
        return any(gap.covers(cut.query, cut.batch) for gap in gaps) or bool(self.lost(cut))

    def covered(self, cut: CutName) -> list[Snapshot]:
        """The staged snapshots of the stream that are not after the cut, in staging order."""
        if self.lacks(cut):
            return []
        return [
            each.snapshot
            for each in self.waiting
            if each.name.query == cut.query and each.name.batch <= cut.batch
        ]


def staged_batches(
    states: Iterable[TableState], *, staging: str = STAGING_BRANCH
) -> dict[str, int]:
    """The newest batch of each query that some tables show at the head of staging. Pure.

    A newer one below it, of another query, is not looked for: the bound is lower then.
    """
    newest: dict[str, int] = {}
    for state in states:
        for snapshot in branch_history(state, staging):
            batch = _batch_of(snapshot, state.name)
            if batch is not None:
                name = batch.name
                newest[name.query] = max(name.batch, newest.get(name.query, -1))
                break
    return newest


def stream_share(
    state: TableState, waiting: Iterable[Snapshot], target: str = MAIN_BRANCH
) -> StreamShare:
    """What the metadata of a table says of its streams. Pure.

    Args:
        state: The table.
        waiting: The staged snapshots that are not published.
        target: The branch that they are published to.

    Raises:
        CorruptDataError: A summary cannot be read.
    """
    batches = [batch for each in waiting if (batch := _batch_of(each, state.name)) is not None]
    head = state.head(target)
    published, cut = None, None
    if head is not None:
        writers = load_carried(snapshots_by_id(state.metadata), head.snapshot_id).writers
        published = writers.get(QUERY_ID) if BATCH_TABLES in writers else None
    if published is not None:
        cut = cut_of(branch_history(state, target))
    return StreamShare(
        waiting=frozenset(batch.name.query for batch in batches),
        tables=frozenset(name for batch in batches for name in batch.tables),
        published=published,
        cut=cut,
    )


def plan_cut(
    states: Iterable[TableState],
    *,
    seen: Mapping[str, int],
    set_aside: Collection[str] = (),
    limit: int | None = None,
    staging: str = STAGING_BRANCH,
    target: str = MAIN_BRANCH,
) -> CutPlan:
    """What to publish next.

    Args:
        states: The tables that are published together; all loaded after `seen` was.
        seen: `staged_batches` of an earlier look.
        set_aside: Tables, dotted, that may lack batches: they are not waited for.
        limit: At most so many batches.
        staging: The branch with staged changes.
        target: The branch that they are published to.

    Raises:
        InvalidInputError: The first batch names a table that is not among those, or the position of
            a table is lost (`LostCursorError`); names the table.
        CorruptDataError: A summary cannot be read.
    """
    members = [_member(state, staging, target) for state in states]
    waiting = [b for member in members for b in member.waiting if not member.lacks(b.name)]
    # What a table caught up with while it was in no cut may go with the cut that is there.
    in_gaps = [b for member in members for b in member.waiting]
    if not in_gaps:
        return CutPlan(waits_for=_unstreamed(members))
    # An older stream into the same tables ends below a newer one.
    query = min(
        waiting or in_gaps, key=lambda each: (each.snapshot.timestamp_ms, each.name)
    ).name.query
    begun = CutName(query, max(member.cut(query) for member in members))
    ahead = [batch for member in members if (batch := member.published(query)) is not None]
    least = max([begun.batch, *(batch.name.batch for batch in ahead)])
    # The newest published one, too: what it touches may be published, and others wait below.
    found_in = [*waiting, *(batch for batch in ahead if batch.name.batch == least)]
    batches = sorted((b for b in found_in if b.name.query == query), key=lambda b: b.name)
    torn = _torn(batches)
    is_unfinished = any(member.covered(begun) for member in members)
    number = begun.batch if is_unfinished and begun.batch not in torn else None
    waits_for = lost = next((text for member in members if (text := member.lost())), "")
    if number is None and not waiting:
        return CutPlan(waits_for=lost or _unstreamed(members))
    if number is None:
        known = {member.name: member.staged(query) for member in members}
        known |= dict.fromkeys(set_aside, MAX_BATCH)
        number, waits_for = _newest_whole(
            batches, known, seen=seen.get(query, -1), least=least, limit=limit, torn=torn
        )
    waits_for = lost or waits_for
    if number is None:
        return CutPlan(waits_for=waits_for)
    cut = CutName(query, number)
    found = {m.name: snapshots for m in members if (snapshots := m.covered(cut))}
    return CutPlan(
        cut=cut if found else None,
        covered={name: found[name][-1].snapshot_id for name in sorted(found)},
        waits_for=waits_for,
        change_count=sum(staged_changes(each) for one in found.values() for each in one),
    )


def _unstreamed(members: Iterable[_Member]) -> str:
    """That changes wait which are of no batch, and the way."""
    names = [member.name for member in members if not member.is_streamed]
    if not names:
        return ""
    more = f" and {plural(len(names) - 1, 'more table')}" if names[1:] else ""
    return (
        f"changes of {names[0]}{more} are of no stream into several tables, so they are in no cut: "
        f"icefold resolve {names[0]} publishes them, and icefold maintain those of all tables"
    )


def _newest_whole(
    batches: Sequence[_Batch],
    staged: Mapping[str, int],
    *,
    seen: int,
    least: int,
    limit: int | None,
    torn: Collection[int],
) -> tuple[int | None, str]:
    """The newest batch, none before which is incomplete; and why not a later one."""
    whole: int | None = None
    count = 0
    why = ""
    for batch in batches:
        number = batch.name.batch
        unknown = [table for table in batch.tables if table not in staged]
        lacking = [table for table in batch.tables if staged.get(table, number) < number]
        if unknown and whole is None:
            raise InvalidInputError(
                "a batch of the stream touches a table that is not published with the others",
                table=unknown[0],
                batch=batch.name,
                action="name it, too, or set it aside",
            )
        if unknown:
            return _at_least(whole, least, f"batch {batch.name} touches {unknown[0]}, too")
        if lacking:
            return _at_least(whole, least, f"batch {batch.name} is not staged on {lacking[0]} yet")
        if number > seen:
            break
        if number in torn:
            why = f"batch {batch.name} was staged in two ways; the stream mends it when it starts"
            continue
        count += number > least and number != whole
        if limit is not None and count > limit:
            break
        whole, why = number, ""
    return _at_least(whole, least, why)


def _at_least(whole: int | None, least: int, why: str) -> tuple[int | None, str]:
    if whole is None or whole >= least:
        return whole, why
    return None, why or f"a table was published by itself up to batch {least}"


def _member(state: TableState, staging: str, target: str) -> _Member:
    backlog: Sequence[Snapshot] = []
    if state.head(staging) is not None:
        with error_context(table=state.name):
            backlog = plan_backlog(state, staging=staging, target=target)
    found = (_batch_of(snapshot, state.name) for snapshot in backlog)
    waiting = tuple(batch for batch in found if batch is not None)
    return _Member(
        state=state,
        staging=staging,
        target=target,
        waiting=waiting,
        is_streamed=len(waiting) == len(backlog),
        may_have_lost=any(BATCH_STANDS_ON in summary_of(each.snapshot) for each in waiting),
    )


def _batch_of(snapshot: Snapshot, table: str) -> _Batch | None:
    """The batch of several tables that a staged snapshot is part of."""
    summary = summary_of(snapshot)
    if BATCH_TABLES not in summary or QUERY_ID not in summary:
        return None
    number = parse_decimal(summary.get(BATCH_ID, ""))
    return _batch(summary[QUERY_ID], number, summary, snapshot, table)


def _batch(
    query: str, number: int | None, source: Mapping[str, str], snapshot: Snapshot, table: str
) -> _Batch:
    transaction = source.get(SOURCE_TRANSACTION)
    try:
        tables = json.loads(source[BATCH_TABLES])
        end = -1
        if transaction is not None:
            end = transactions_end(decode_offsets(source.get(SOURCE_OFFSETS)))
    except (ValueError, TypeError, AttributeError):
        tables = None
    if number is None or not isinstance(tables, list):
        raise CorruptDataError(
            "what a snapshot says of its batch cannot be read",
            table=table,
            snapshot_id=snapshot.snapshot_id,
        )
    return _Batch(
        name=CutName(query, number),
        tables=tuple(map(str, tables)),
        snapshot=snapshot,
        transaction=transaction,
        end=end,
    )


def _torn(batches: Sequence[_Batch]) -> frozenset[int]:
    """Numbers at which tables are not at one transaction.

    Two processes of one stream, or a commit that landed late, may leave two batches of one number,
    each on some tables, or one that reaches beyond those after it. The stream brings the tables to
    where the furthest is with its next start, as a later batch.
    """
    furthest, torn = -1, set()
    for number, those in groupby(batches, key=lambda each: each.name.batch):
        of_one = [each for each in those if each.transaction is not None]
        ends = [each.end for each in of_one]
        if len({each.transaction for each in of_one}) > 1 or (ends and min(ends) < furthest):
            torn.add(number)
        furthest = max([furthest, *ends])
    return frozenset(torn)
