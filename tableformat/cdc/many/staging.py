"""One batch over many tables: staged on each exactly once, in parallel, the tables apart.

1. prepare: each table's events are parsed and its files written. A table whose events cannot be
   taken falls out here, before anything of the batch is committed anywhere;
2. commit: each table that is left, with the batch's marker, the names of all of them, and the
   offsets where the batch ends. A table's commit lands only on the offsets that its events begin
   at, so two processes of one query cannot mix their batches.

A crash in 1 leaves files that nothing names; a crash in 2 a batch that some tables lack: whoever
comes next does exactly that batch again for those (`positions.unfinished`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.events import Decoder
from tableformat.cdc.ingest import IngestResult, PreparedBatch, commit_written, prepare_batch
from tableformat.cdc.many.buffers import is_one_partition
from tableformat.cdc.many.positions import (
    Offsets,
    Place,
    TablePosition,
    UnfinishedBatch,
    batch_summary,
    known_letters,
    read_position,
    topic_made_anew,
)
from tableformat.cdc.many.table_making import NoRowYetError, make_table, plan_table
from tableformat.cdc.many.table_options import TableOptions
from tableformat.cdc.sink import SinkPlan, plan_sink
from tableformat.commit.retry import backoff_ms
from tableformat.environment import Environment
from tableformat.errors import (
    AccessRefusedError,
    AlreadyExistsError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    TableError,
    UnsupportedError,
)
from tableformat.runtime import Runtime
from tableformat.side_by_side import AT_ONCE
from tableformat.store.locations import tables_of

logger = logging.getLogger("icefold.ingest")
PARSED_AT_ONCE = 2  # tables: their events are in memory, 25 MB each
SMALL_BYTES = 8 << 20  # messages of a batch: all of them parsed are some 60 MB
# What is wrong with one table or its events; all else (store, catalog, lost races) is not its own.
OF_ONE_TABLE = (
    InvalidInputError,
    UnsupportedError,
    NotFoundError,
    CorruptDataError,
    AlreadyExistsError,
)
# An object that the store denies or gives wrongly may be there a moment later: a restarted gateway.
OBJECT_RETRIES, RETRY_MIN_MS, RETRY_MAX_MS = 3, 500, 4_000

In = TypeVar("In")
Out = TypeVar("Out")
Prepare = Callable[["StreamTable", Any], tuple["StreamTable", PreparedBatch]]
"""Writes the files of one table's events, which are the engine's: Arrow or a Spark frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTable:
    """A table of a stream.

    Attributes:
        identifier: The table.
        topics: Topics that it is fed by.
        options: Its own.
        position: How far it has got.
        ids: Kafka's ids of its topics, as far as they are known.
        exists: It was there when the stream looked, or has been made since.
        plan: Its sink; None: not planned yet, or the table does not exist.
    """

    identifier: Identifier
    topics: tuple[str, ...]
    options: TableOptions
    position: TablePosition = field(default_factory=TablePosition)
    ids: Mapping[str, str] = field(default_factory=dict)
    exists: bool = False
    plan: SinkPlan | None = None

    @property
    def name(self) -> str:
        """Dotted, for people and for summaries."""
        return ".".join(self.identifier)

    @property
    def own(self) -> dict[Place, int]:
        """The offsets of its own topics."""
        return self.position.of_topics(self.topics)

    @property
    def begun(self) -> set[str]:
        """Its topics of which something is staged."""
        return {topic for (topic, _), end in self.own.items() if end > 0}

    @property
    def made_anew(self) -> str | None:
        """Why it cannot go on in its topics as its snapshots tell of them; see there."""
        return topic_made_anew(self.position.ids, self.ids, self.begun)

    def silent(self, partitions: Mapping[str, int], read: Offsets) -> dict[Place, int]:
        """How far partitions are read of which its snapshots say nothing: they had no message.

        Who comes next begins there: what Kafka deletes until then would be skipped unseen.
        """
        own = self.own
        places = (each for each in self.places(partitions) if each not in own)
        return {each: at for each in places if (at := read.get(each, -1)) >= 0}

    def came(self, partitions: Mapping[str, int]) -> list[Place]:
        """Partitions of which its snapshots say nothing."""
        own = self.own
        return [place for place in self.places(partitions) if place not in own]

    def places(self, partitions: Mapping[str, int]) -> list[Place]:
        """The partitions of its topics; `partitions`: how many each topic has."""
        return [
            (topic, number) for topic in self.topics for number in range(partitions.get(topic, 0))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBatch:
    """Events of one batch, by table.

    Attributes:
        batch: Its query and number.
        events: Of each table, in the order of their offsets within a partition; messages in Arrow,
            or what `prepare` takes.
        ends: Where the batch ends in every partition that it moves.
        transaction: The last source transaction in it, if it ends with one.
        tables: All tables of the batch, where it is done again for some of them; None: of `events`.
        ids: Kafka's ids of topics in `ends` that are no table's.
    """

    batch: BatchId
    events: Mapping[str, Any]
    ends: Offsets
    transaction: str | None = None
    tables: tuple[str, ...] | None = None
    ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """What became of a batch.

    Attributes:
        tables: The tables that have it, as they are by now.
        results: What was staged on each.
        failed: Tables that could not take their events, and why; nothing of them is committed.
    """

    tables: Mapping[str, StreamTable]
    results: Mapping[str, IngestResult]
    failed: Mapping[str, TableError]


def stage_batch(
    environment: Environment,
    tables: Mapping[str, StreamTable],
    batch: StreamBatch,
    *,
    prepare: Prepare,
) -> StagedBatch:
    """Stage one batch on all its tables; see the module's text.

    Args:
        environment: Catalog, store, clock.
        tables: Every table that the batch has events for, by name.
        batch: The events.
        prepare: Writes the files of one table's events.

    Raises:
        FencedError: Another process of the same query has got ahead.
        TableError: The store or the catalog failed, or a commit's outcome is unknown. Doing the
            same again (`positions.unfinished`) is safe.

    Effects: makes tables that do not exist, changes columns as `schema-evolution` says, then one
    commit per table.
    """

    def prepared(table: StreamTable) -> _Prepared:
        return _Prepared(*prepare(table, batch.events[table.name]))

    wanted = {name: tables[name] for name in sorted(batch.events)}
    each = partial(_each, environment.runtime)
    parsed_at_once, at_once = _lanes(wanted.values(), batch)
    ready, failed = each(prepared, wanted, at_once=parsed_at_once)
    environment.runtime.fail_point("ingest.many.prepared")
    names = tuple(ready) if batch.tables is None else batch.tables
    commit = partial(_commit, environment, batch=batch, names=names)
    results, too_late = each(commit, ready, at_once=at_once)
    done = {
        name: replace(
            ready[name].table,
            plan=ready[name].batch.plan,
            position=_position_after(ready[name].table, batch, names),
        )
        for name in results
    }
    failed |= too_late
    for name in [each for each, error in failed.items() if isinstance(error, NoRowYetError)]:
        # Nothing is lost: whoever begins anew reads them again, before the row that comes first.
        logger.info("%s", failed.pop(name))
    return StagedBatch(tables=done, results=results, failed=failed)


def _lanes(tables: Iterable[StreamTable], batch: StreamBatch) -> tuple[int, int]:
    """For how many tables at a time files are written, and commits made."""
    metadata = (each.plan.writer.metadata for each in tables if each.plan is not None)
    at_once = tables_of(next((each.location for each in metadata), ""))
    events = batch.events.values()
    is_small = all(isinstance(each, pa.Table) for each in events) and (
        sum(each.nbytes for each in events) <= SMALL_BYTES
    )
    return at_once if is_small and at_once > AT_ONCE else PARSED_AT_ONCE, at_once


@dataclass(frozen=True, slots=True)
class _Prepared:
    table: StreamTable
    batch: PreparedBatch


def _each(
    runtime: Runtime, step: Callable[[In], Out], given: Mapping[str, In], *, at_once: int
) -> tuple[dict[str, Out], dict[str, TableError]]:
    """What a step gave for each table, and what is wrong with one table alone.

    All tables are tried before an error of another kind is raised. Steps are repeated where an
    object cannot be read.
    """

    def attempt(name: str, failures: int = 1) -> Out | TableError:
        try:
            return step(given[name])
        except AccessRefusedError:
            raise
        except OF_ONE_TABLE as error:
            if failures > OBJECT_RETRIES or not _is_of_object(error):
                return error.with_context(table=name)
        wait_ms = backoff_ms(failures, min_ms=RETRY_MIN_MS, max_ms=RETRY_MAX_MS, runtime=runtime)
        runtime.clock.sleep_ms(wait_ms)
        return attempt(name, failures + 1)

    answers = dict(zip(given, runtime.each(attempt, list(given), at_once=at_once), strict=True))
    failed = {name: each for name, each in answers.items() if isinstance(each, TableError)}
    done = {name: each for name, each in answers.items() if not isinstance(each, TableError)}
    return done, failed


def _is_of_object(error: TableError) -> bool:
    return isinstance(error, NotFoundError | CorruptDataError) and "location" in error.context


def within_topics(
    found: UnfinishedBatch, tables: Mapping[str, StreamTable], begins: Offsets, ends: Offsets
) -> UnfinishedBatch:
    """A batch that ends where the topics of the tables that lack it can have it end.

    A table that was dropped begins anew in its topics. Those may have been made anew, too, and be
    shorter than the batch was, or have fewer partitions; or they begin behind it by now.

    Args:
        found: The batch.
        tables: Those that lack it, by name.
        begins: Where the partitions of their topics begin now.
        ends: Where they end.
    """
    new = {
        place
        for place in found.ends
        for table in tables.values()
        if place[0] in table.topics and place not in table.own
    }
    capped = {
        place: max(min(found.ends[place], ends.get(place, 0)), begins.get(place, 0))
        for place in new
    }
    return replace(found, ends={**found.ends, **capped})


def prepare_messages(
    environment: Environment,
    table: StreamTable,
    messages: pa.Table,
    *,
    branch: str,
    decoder: Decoder | None = None,
) -> tuple[StreamTable, PreparedBatch]:
    """Write the files of one table's messages in this process; see `prepare_batch`.

    Effects: makes the table if it does not exist.
    """
    table = planned(environment, table, lambda: messages, branch=branch, decoder=decoder)
    assert table.plan is not None
    in_order = is_one_partition(messages)
    return table, prepare_batch(table.plan.refreshed(), messages, in_order=in_order)


def planned(
    environment: Environment,
    table: StreamTable,
    first: Callable[[], pa.Table],
    *,
    branch: str,
    decoder: Decoder | None = None,
) -> StreamTable:
    """The table with its sink; made from its first events if it does not exist."""
    if table.plan is not None:
        return table
    if not table.exists:
        make_table(environment, plan_table(table.name, first(), table.options, decoder))
        environment.runtime.fail_point("ingest.many.made")
    plan = plan_sink(
        environment,
        table.identifier,
        format_name=table.options.choice.identifier,
        options=table.options.sink,
        branch=branch,
        decoder=decoder,
    )
    return replace(table, plan=plan, exists=True)


def _commit(
    environment: Environment, ready: _Prepared, *, batch: StreamBatch, names: Collection[str]
) -> IngestResult:
    table, plan = ready.table, ready.batch.plan
    query = batch.batch.query_id
    begin, after = table.own, _position_after(table, batch, names)

    def check(state: TableState) -> None:
        found = read_position(state, plan.branch, query)
        if found.of_topics(table.topics) != begin:
            raise _overtaken(table, batch.batch, found)

    result = commit_written(
        plan,
        ready.batch.written,
        batch.batch,
        batch_summary(after),
        known_letters=partial(known_letters, begin),
        check=check,
        is_mark=True,
    )
    if result is None:
        # It is there: our own commit, whose answer was lost, or another process's.
        state = environment.catalog.load_table(table.identifier)
        found = read_position(state, plan.branch, query)
        if found != after:
            raise _overtaken(table, batch.batch, found)
    return ready.batch.result(result)


def _position_after(
    table: StreamTable, batch: StreamBatch, names: Collection[str]
) -> TablePosition:
    return TablePosition(
        batch=batch.batch.number,
        offsets={**table.own, **batch.ends},
        tables=tuple(sorted(names)),
        ids={**table.ids, **batch.ids},
        transaction=batch.transaction,
    )


def _overtaken(table: StreamTable, batch: BatchId, found: TablePosition) -> FencedError:
    if found.batch < table.position.batch:
        return FencedError(
            "the table no longer has what this stream has staged on it: the catalog was restored "
            "from a backup, or the staging branch was moved back",
            action="run it again: it goes on from what the table has",
            table=table.name,
            query_id=batch.query_id,
            batch_id=table.position.batch,
            committed=found.batch,
        )
    return FencedError(
        "another process of this stream has staged on the table meanwhile",
        action="stop the other one, or give each its own --query-id",
        table=table.name,
        query_id=batch.query_id,
        batch_id=batch.number,
        committed=found.batch,
    )
