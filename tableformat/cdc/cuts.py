"""Cuts: versions of several tables that show one state of the stream that feeds them.

A stream is split into numbered batches, and a group publish brings all its tables to one batch n:
no table shows less of the stream up to n, none shows more. The publish is named QUERY/n in a
snapshot of each table that had something to publish; the others are at n as they were. So the state
at n is, for each table, its newest snapshot whose batch is not after n (`Cut.snapshots`).

Commits of anything else between two cuts (compaction, a statement) belong to the cut below them.
A table is in no cut whose batches it lacks: it was set aside, its branches were moved back, it was
made anew or restored. All snapshots of all tables are witnesses of what it had, also those that no
branch leads to any more.

Tables are loaded one after the other, while others publish. Whoever has seen a cut anywhere sees it
on all its tables in what is loaded from then on, and all cuts before it. So tables are loaded
twice, and cuts that the first look does not show are left for the next time (`seen`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import Catalog, Identifier, TableState
from tableformat.cdc.batch_commit import CommittedBatch, batch_in
from tableformat.cdc.many.set_aside import LeftOut, left_out
from tableformat.commit.branch_history import branch_history, is_first, summary_of
from tableformat.errors import CorruptDataError, NotFoundError
from tableformat.side_by_side import run_ahead
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import (
    BATCH_TABLES,
    CUT,
    CUT_TABLES,
    MAIN_BRANCH,
    SOURCE_OFFSETS,
    SOURCE_TRANSACTION,
)
from tableformat.store.locations import requests_of

Offsets = Mapping[str, Mapping[str, int]]
"""The next offset to read, by topic and partition."""


@dataclass(frozen=True, slots=True, order=True)
class CutName:
    """`query/batch`, as summaries hold it. On disk: never change."""

    query: str
    batch: int

    def __str__(self) -> str:
        return f"{self.query}/{self.batch}"

    @staticmethod
    def parse(text: str) -> CutName:
        """Of a summary.

        Raises:
            CorruptDataError: It is none.
        """
        query, _, number = text.rpartition("/")
        batch = parse_decimal(number)
        if not query or batch is None:
            raise CorruptDataError("not the name of a cut", key=CUT, value=repr(text[:80]))
        return CutName(query, batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One cut that all its tables show.

    Attributes:
        name: Of the query and its last batch.
        published_ms: When the last table was published, by the wall clock of who did it; where that
            snapshot has expired, when the oldest one was made that repeats the cut.
        tables: Those that were published with it, dotted.
        snapshots: The snapshot of every table that the stream feeds, dotted names.
        offsets: Where it ends in the source.
        transaction: The last transaction of the source in it, if batches end with transactions.
    """

    name: CutName
    published_ms: int
    tables: tuple[str, ...]
    snapshots: Mapping[str, int]
    offsets: Offsets = field(default_factory=dict)
    transaction: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """A snapshot of the target: the cut that it belongs to, and the batches that it shows."""

    snapshot: Snapshot
    cut: CutName | None
    tables: tuple[str, ...]
    batches: Mapping[str, CommittedBatch]

    def shows(self, query: str) -> int:
        """The newest batch of a query in it; -1: none."""
        found = self.batches.get(query)
        return -1 if found is None else found.number


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """The target of a table, newest first.

    `is_whole`: nothing of the target has expired. `gaps`: batches for which the stream has left it
    out.
    """

    table: str
    versions: tuple[_Version, ...]
    is_whole: bool
    gaps: Sequence[LeftOut] = ()

    def at(self, cut: CutName) -> _Version | None:
        """The table as the cut has it."""
        return next((v for v in self.versions if v.shows(cut.query) <= cut.batch), None)

    def is_at(self, cut: CutName, version: _Version, said: _Said) -> bool:
        """Whether a version of the table has all batches up to the cut, as far as anybody says."""
        if any(gap.covers(cut.query, cut.batch) for gap in self.gaps):
            return False
        if cut.query not in version.batches and not self.is_whole:
            return False  # what told its batch has expired
        own = version.cut
        cut_shown = own.batch if own is not None and own.query == cut.query else -1
        shown = version.shows(cut.query)
        return not (
            any(shown < each <= cut.batch for each in said.batches[self.table])
            or any(max(shown, cut_shown) < each <= cut.batch for each in said.cuts[self.table])
        )

    def shown(self, cut: CutName) -> _Version | None:
        """The publish with the cut, or what repeats it."""
        return next((v for v in reversed(self.versions) if v.cut == cut), None)

    def lacks(self, cut: CutName) -> bool:
        """Whether it was not published with the cut, as far as anybody can tell."""
        if self.shown(cut) is not None:
            return False
        oldest = self.versions[-1] if self.versions else None
        return self.is_whole or oldest is None or oldest.shows(cut.query) < cut.batch


@dataclass(frozen=True, slots=True)
class _Said:
    """What snapshots say of one query: by table, batches that touch it, and cuts that it was in."""

    batches: Mapping[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    cuts: Mapping[str, set[int]] = field(default_factory=lambda: defaultdict(set))


def load_all(
    catalog: Catalog, identifiers: Sequence[Identifier], known: Iterable[TableState] = ()
) -> list[TableState]:
    """The current versions of tables; those of `known` are not loaded again.

    In a bucket several are loaded at once.

    Raises:
        NotFoundError: There is no such table.
    """
    at = {(each.identifier, each.metadata_location): each for each in known}
    locations = (catalog.metadata_locations(identifiers) if at else None) or {}

    def load(each: Identifier) -> TableState:
        return at.get((each, locations.get(each, ""))) or catalog.load_table(each)

    found = [load(each) for each in identifiers[:1]]
    at_once = requests_of(found[0].metadata_location) if found else 1
    return found + list(run_ahead(load, identifiers[1:], at_once=at_once))


def published_cuts(states: Iterable[TableState]) -> dict[str, int]:
    """The newest cut of each query that any of some tables shows on main. Pure."""
    newest: dict[str, int] = {}
    for state in states:
        name = cut_of(branch_history(state, MAIN_BRANCH))
        if name is not None:
            newest[name.query] = max(name.batch, newest.get(name.query, -1))
    return newest


def load_cuts(catalog: Catalog, identifiers: Sequence[Identifier]) -> list[Cut]:
    """The cuts of some tables on main, newest first: see `read_cuts`.

    Raises:
        NotFoundError: There is no such table.
    """
    first = load_all(catalog, identifiers)
    return read_cuts(load_all(catalog, identifiers, first), seen=published_cuts(first))


def cut_of(history: Iterable[Snapshot]) -> CutName | None:
    """The cut that the newest snapshot belongs to. Other tools' commits repeat nothing."""
    texts = (summary_of(each).get(CUT) for each in history)
    return next((CutName.parse(text) for text in texts if text is not None), None)


def read_cuts(states: Iterable[TableState], *, seen: Mapping[str, int] | None = None) -> list[Cut]:
    """The cuts on main that all their tables show and still hold, newest first. Pure.

    A publish that was cut short, where the catalog has no group commits, is none until it is done.

    Args:
        states: The tables; a table of a cut that is not among them is not looked at.
        seen: The newest cut of each query that may be named; None: any.

    Raises:
        CorruptDataError: A summary cannot be read.
    """
    states = list(states)
    histories = [_history(state) for state in states]
    names = {v.cut for each in histories for v in each.versions if v.cut is not None}
    allowed = [n for n in names if seen is None or n.batch <= seen.get(n.query, -1)]
    said = {query: _said(states, query) for query in {name.query for name in allowed}}
    cuts = (_cut(name, histories, said[name.query]) for name in allowed)
    found = [cut for cut in cuts if cut is not None]
    last_ms: dict[str, int] = {}
    for cut in found:
        query = cut.name.query
        last_ms[query] = max(cut.published_ms, last_ms.get(query, 0))
    # Of one stream by their batches: clocks go wrong, and a publish that has expired tells no time.
    return sorted(found, key=lambda cut: (last_ms[cut.name.query], cut.name), reverse=True)


def newest_cut(cuts: Iterable[Cut], tables: Sequence[str]) -> Cut:
    """The newest cut of the stream that feeds some tables. Pure.

    Args:
        cuts: Newest first.
        tables: Dotted names.

    Raises:
        NotFoundError: No stream feeds all of them, or it has set one aside since.
    """
    found = list(cuts)
    fits = (each for each in found if {*tables} <= each.snapshots.keys())
    query = next((each.name.query for each in fits), None)
    newest = next((each for each in found if query in (None, each.name.query)), None)
    lacking = [name for name in tables if newest is None or name not in newest.snapshots]
    if newest is None or lacking:
        raise NotFoundError(
            "no cut has all these tables" if query is None else "the newest cut lacks a table",
            tables=lacking,
            action="publish them together (icefold resolve --cut); icefold cuts lists the cuts",
            **({} if newest is None else {"cut": newest.name}),
        )
    return newest


def _history(state: TableState) -> _History:
    chain = list(branch_history(state, MAIN_BRANCH))
    versions: list[_Version] = []
    cut: CutName | None = None
    tables: tuple[str, ...] = ()
    batches: Mapping[str, CommittedBatch] = {}
    queries = {name.query for each in chain if (name := cut_of([each])) is not None}
    for snapshot in reversed(chain):
        summary = summary_of(snapshot)
        if CUT in summary:
            cut = CutName.parse(summary[CUT])
            tables = _tables(summary.get(CUT_TABLES), state.name, CUT_TABLES)
        said = ((q, batch_in(summary, q, snapshot.snapshot_id)) for q in queries)
        batches = {**batches, **{query: batch for query, batch in said if batch is not None}}
        versions.append(_Version(snapshot=snapshot, cut=cut, tables=tables, batches=batches))
    return _History(
        table=state.name,
        versions=tuple(reversed(versions)),
        is_whole=not chain or is_first(chain[-1]),
        gaps=left_out(state.metadata.properties),
    )


def _said(states: Iterable[TableState], query: str) -> _Said:
    said, tables_of = _Said(), cache(_tables)
    for state in states:
        for snapshot in state.metadata.snapshots:
            summary = summary_of(snapshot)
            batch = batch_in(summary, query, snapshot.snapshot_id)
            if batch is not None:
                tables = tables_of(batch.source.get(BATCH_TABLES), state.name, BATCH_TABLES)
                for table in {*tables, state.name}:
                    said.batches[table].add(batch.number)
            cut = cut_of([snapshot])
            if cut is not None and cut.query == query:
                for table in tables_of(summary.get(CUT_TABLES), state.name, CUT_TABLES):
                    said.cuts[table].add(cut.batch)
    return said


def _tables(text: str | None, own: str, key: str) -> tuple[str, ...]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise CorruptDataError("not a list of tables", key=key, table=own)
    return tuple(found) or (own,)


def _cut(name: CutName, histories: Sequence[_History], said: _Said) -> Cut | None:
    """None: a table lacks it, or has expired it."""
    published = {h.table: v for h in histories if (v := h.shown(name)) is not None}
    tables = {table for version in published.values() for table in version.tables}
    if any(each.lacks(name) for each in histories if each.table in tables):
        return None
    pins: dict[str, _Version] = {}
    for each in histories:
        if all(name.query not in v.batches for v in each.versions):
            continue  # not fed by the query
        at = each.at(name)
        if at is not None and each.is_at(name, at, said):
            pins[each.table] = at
        if at is None and not each.is_whole:
            return None
    return Cut(
        name=name,
        published_ms=max(v.snapshot.timestamp_ms for v in published.values()),
        tables=tuple(sorted(tables)),
        snapshots={table: pins[table].snapshot.snapshot_id for table in sorted(pins)},
        offsets=_offsets(v.batches.get(name.query) for v in pins.values()),
        transaction=_transaction(name, pins.values()),
    )


def _offsets(batches: Iterable[CommittedBatch | None]) -> Offsets:
    """The farthest that any table says, by topic and partition."""
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for text in (each.source.get(SOURCE_OFFSETS, "{}") for each in batches if each is not None):
        try:
            said = json.loads(text)
            for topic, partitions in said.items():
                for partition, end in partitions.items():
                    ends[topic][partition] = max(int(end), ends[topic].get(partition, 0))
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptDataError(
                "not offsets of a source", key=SOURCE_OFFSETS, value=repr(text[:80])
            ) from error
    return dict(ends)


def _transaction(name: CutName, pins: Collection[_Version]) -> str | None:
    at_end = (v.batches[name.query] for v in pins if v.shows(name.query) == name.batch)
    return next((t for b in at_end if (t := b.source.get(SOURCE_TRANSACTION)) is not None), None)
