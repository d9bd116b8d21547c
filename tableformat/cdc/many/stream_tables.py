"""The tables of a stream while it runs: which there are, how far each has got, which stand aside.

Shared by both engines. What is remembered here is in the tables' snapshots and properties as well:
a process that starts reads it there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.events import Decoder
from tableformat.cdc.ingest import IngestResult, PreparedBatch
from tableformat.cdc.many.positions import (
    Offsets,
    Place,
    TablePosition,
    UnfinishedBatch,
    next_batch,
    read_position,
    topic_made_anew,
    unfinished,
)
from tableformat.cdc.many.routing import Routed, Routing, TopicPattern
from tableformat.cdc.many.set_aside import (
    REASON_CHARS_MAX,
    SetAside,
    end_set_aside,
    read_set_aside,
    resume,
    set_aside,
)
from tableformat.cdc.many.staging import (
    Prepare,
    StreamBatch,
    StreamTable,
    prepare_messages,
    stage_batch,
)
from tableformat.cdc.many.table_options import StreamOptions
from tableformat.cdc.truncation import check_one_partition
from tableformat.environment import Environment
from tableformat.errors import CorruptDataError, InvalidInputError, NotFoundError
from tableformat.spec.names import STAGING_BRANCH
from tableformat.store.locations import tables_of
from tableformat.table_definition import parse_table_name

LAGS = "lacks events of transactions that other tables have published"
NOT_READ = "a run of the stream reads none of its topics"
logger = logging.getLogger("icefold.ingest")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream is.

    Attributes:
        query_id: Its name in the tables' histories: the same one goes on where it stood.
        routing: Which topic goes where.
        options: Of the tables.
        branch: The staging branch.
        decoder: Makes JSON of messages that are none; None: they are.
    """

    query_id: str
    routing: Routing
    options: StreamOptions
    branch: str = STAGING_BRANCH
    decoder: Decoder | None = None


class StreamListener:
    """Is told what a stream does. Does nothing itself."""

    def staged(self, number: int, results: Mapping[str, IngestResult]) -> None:
        """A batch is on its tables."""

    def set_aside(self, table: str, reason: str) -> None:
        """A table, or a topic that makes none, stands aside."""

    def resumed(self, table: str) -> None:
        """It does no longer."""

    def backlog(self, waiting: Mapping[str, Mapping[tuple[str, int], int]]) -> None:
        """Messages that are not staged, by table and partition."""

    def is_publishing(self) -> bool:
        """Whether what was staged is being published in this process."""
        return False


@dataclass(slots=True)
class StreamTables:
    """The tables of a stream. Made by `open_tables`.

    Attributes:
        tables: By name; those that stand aside are not among them.
        aside: Tables and topics that stand aside, with the reason.
        number: Of the next batch.
        standing: Tables that stand aside.
        resumed: Why tables did that have been taken up again, and have not caught up yet; and why
            those did that were left out, or are read later than others.
        recorded: Positions of all tables of the namespace that the query has written.
        partitions: How many each topic has.
        told: What stood aside before an outage, with the reason that was told.
        ids_of: Asks for Kafka's ids of topics; see `MessageSource.ids`.
        ids: What it has answered.
        boundaries: The transaction topic, if batches end with transactions; its id is in each.
    """

    environment: Environment
    settings: StreamSettings
    listener: StreamListener
    tables: dict[str, StreamTable] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)
    number: int = 0
    recorded: dict[str, TablePosition] = field(default_factory=dict)
    standing: dict[str, StreamTable] = field(default_factory=dict)
    resumed: dict[str, SetAside] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    ids_of: Callable[[Collection[str]], Mapping[str, str]] = lambda _: {}
    ids: dict[str, str] = field(default_factory=dict)
    boundaries: str = ""

    @property
    def table_of(self) -> dict[str, str]:
        """The table of each topic that is read."""
        return {topic: name for name, table in self.tables.items() for topic in table.topics}

    def join(self, topics: Mapping[str, int], *, with_resumed: bool = True) -> list[str]:
        """Take up topics that have come since, and tables that need no longer stand aside.

        Args:
            topics: All topics, with their number of partitions.
            with_resumed: Whether tables may come back that stood aside.

        Returns:
            The tables that are new, or have new topics.
        """
        self.partitions |= topics
        routed = self.settings.routing.route(topics)
        for topic, reason in routed.refused.items():
            self._note(topic, reason)
        changed = self._resumed() if with_resumed else []
        for name, members in routed.tables.items():
            known = self.standing.get(name) or self.tables.get(name)
            if known is not None and set(known.topics) >= set(members):
                continue
            self.ask_ids(members)
            if known is None:
                self._load([name], routed)
            elif name in self.tables:
                now, before = self._ids(members, known.position), known.position.ids
                # What was read, or is begun at offsets of before, is told by the id that it had.
                ids = {topic: before.get(topic, now[topic]) for topic in now} | dict(known.ids)
                self.tables[name] = replace(known, topics=members, ids=ids)
            else:
                self.standing[name] = replace(known, topics=members)
            if name in self.tables:
                changed.append(name)
        return changed

    def ask_ids(self, topics: Collection[str]) -> None:
        """Learn the ids of topics, as they are now."""
        self.ids |= self.ids_of(sorted(topics))

    def renew(self, topics: Collection[str]) -> list[StreamTable]:
        """Tables with topics, among some, that were made anew since they began to be read.

        Those of which something is staged are set aside; the others are to be read anew.
        """
        self.ask_ids(topics)
        found = []
        for name, table in list(self.tables.items()):
            if topic_made_anew(table.ids, self.ids, table.topics) is None:
                continue
            found.append(table)
            reason = topic_made_anew(table.ids, self.ids, table.begun)
            if reason is None:
                self.tables[name] = replace(table, ids=self._ids(table.topics, table.position))
            else:
                self.set_aside(name, reason)
        return found

    def tell_unread(
        self, tables: Collection[StreamTable], begins: Callable[[Collection[Place]], Offsets]
    ) -> None:
        """Warn of partitions that no batch of the stream has noted and that have lost messages.

        Before its first batch that is how a stream begins.
        """
        came = {place: t.name for t in tables for place in t.came(self.partitions) if self.number}
        for place, at in (begins(sorted(came)) if came else {}).items():
            if at > 0:
                logger.warning(
                    "%s: topic %s has partition %d, which no batch has noted yet, and Kafka has "
                    "deleted all before offset %d of it: if that was sent after the stream began, "
                    "the table lacks it; then drop the table and load it anew",
                    came[place], *place, at,
                )  # fmt: skip

    def begin_boundaries(self, topic: str) -> None:
        """Batches end with transactions that this topic tells.

        Where they ended in one of its name that was made anew since says nothing of it: what is in
        no batch is taken as after `--cut batch`.
        """
        self.boundaries = topic
        self.ask_ids([topic])
        for name, position in list(self.recorded.items()):
            self.recorded[name] = kept = self._within_boundaries(position)
            for known in (self.tables, self.standing):
                if name in known:
                    known[name] = replace(known[name], position=kept)
            if kept is not position:
                logger.warning("%s: topic %s was deleted and made anew", name, topic)

    def _within_boundaries(self, position: TablePosition) -> TablePosition:
        topic = self.boundaries
        if topic_made_anew(position.ids, self.ids, [topic]) is None:
            return position
        offsets = {place: at for place, at in position.offsets.items() if place[0] != topic}
        return replace(position, offsets=offsets)

    def _ids(self, topics: Collection[str], position: TablePosition) -> dict[str, str]:
        """What is known of the ids of topics; of brokers that tell none, what was known before."""
        known = {**position.ids, **self.ids}
        return {topic: known[topic] for topic in topics if topic in known}

    def unfinished(self) -> UnfinishedBatch | None:
        """The newest batch, if tables lack it that can take it."""
        found = unfinished(self.recorded)
        if found is None:
            return None
        lacking = tuple(name for name in found.lacking if name in self.tables)
        for name in set(found.lacking) - set(lacking) - set(self.aside):
            logger.warning(
                "%s: batch %d is not on table %s, which no topic goes to any more",
                self.settings.query_id, found.number, name,
            )  # fmt: skip
        return replace(found, lacking=lacking) if lacking else None

    def stage(self, batch: StreamBatch, prepare: Prepare | None = None) -> list[StreamTable]:
        """Stage a batch.

        Args:
            batch: Its events.
            prepare: See `stage_batch`; None: `prepare_messages`.

        Returns:
            The tables that were set aside by it.

        Raises:
            TableError: See `stage_batch`.
        """
        staged = stage_batch(
            self.environment,
            self.tables,
            replace(batch, ids=self._noted_ids(batch)),
            prepare=partial(self._prepared, prepare or self._prepare_messages),
        )
        self.tables |= staged.tables
        self.recorded |= {name: table.position for name, table in staged.tables.items()}
        if staged.tables:
            self.number = max(self.number, batch.batch.number + 1)
            self.listener.staged(batch.batch.number, staged.results)
        return [
            self.set_aside(name, str(error), batch.batch.number)
            for name, error in staged.failed.items()
        ]

    def _noted_ids(self, batch: StreamBatch) -> dict[str, str]:
        """Ids that each table of a batch notes beside its own.

        Those of topics that no batch was of before, too: if a table lacks this one, nothing else
        tells what it began in.
        """
        tables = [self.tables[name] for name in batch.events]
        known = {
            topic: told for t in tables for topic, told in t.ids.items() if topic not in t.begun
        }
        return known | {t: self.ids[t] for t in [self.boundaries] if t in self.ids}

    def stage_again(
        self, found: UnfinishedBatch, events: Mapping[str, Any], prepare: Prepare | None = None
    ) -> None:
        """Stage a batch on the tables that lack it; see `stage`.

        Warns where its messages went with their topic. Who dropped a table knows.
        """
        for table in (self.tables[name] for name in found.lacking if name in self.tables):
            for topic in sorted(set(table.topics) - table.begun if table.exists else ()):
                if topic_made_anew(found.ids, self.ids, [topic]) is not None:
                    logger.warning(
                        "%s: topic %s was deleted and made anew before batch %d, which had "
                        "messages of it, was on the table, which lacks them: drop the table and "
                        "load it anew", table.name, topic, found.number,
                    )  # fmt: skip
        batch = StreamBatch(
            batch=BatchId(self.settings.query_id, found.number),
            events=events,
            ends=found.ends,
            transaction=found.transaction,
            tables=found.tables,
        )
        self.stage(batch, prepare)

    def _prepared(
        self, prepare: Prepare, table: StreamTable, events: Any
    ) -> tuple[StreamTable, PreparedBatch]:
        """`prepare`, and a truncate refused where nothing says what comes before it."""
        is_made = not table.exists
        table, batch = prepare(table, events)
        if is_made and table.name in self.resumed:
            set_aside(self.environment, table.identifier, self.resumed[table.name])
        if batch.written.truncation is not None:
            check_one_partition(sum(self.partitions.get(topic, 1) for topic in table.topics))
        return table, batch

    @property
    def _prepare_messages(self) -> Prepare:
        branch, decoder = self.settings.branch, self.settings.decoder
        return partial(prepare_messages, self.environment, branch=branch, decoder=decoder)

    def batch_id(self) -> BatchId:
        """Of the next batch."""
        return BatchId(self.settings.query_id, self.number)

    def set_aside(self, name: str, reason: str, number: int | None = None) -> StreamTable:
        """Set a table aside, for this process and for those after it."""
        table = self.tables.pop(name)
        self.standing[name] = replace(table, plan=None)
        number = self.number if number is None else number
        before = self.resumed.pop(name, None)
        record = SetAside(
            query=self.settings.query_id,
            batch=number if before is None else min(number, before.batch),
            reason=reason,
            at_ms=self.environment.runtime.clock.now_ms(),
        )
        set_aside(self.environment, table.identifier, record)
        self._note(name, reason)
        return table

    def leave_out(self) -> None:
        """Note on tables that the stream has fed that this run reads none of their topics.

        They are in no cut from the next batch on, until a run has read what they lack. Those whose
        topics Kafka does not have any more hold all that there is.

        Effects: one metadata commit for each.
        """
        # A glob of all names, and routes as they are: which topics would go where.
        everywhere = replace(self.settings.routing, include=[TopicPattern.of("*")], exclude=())
        tables = everywhere.route(self.partitions).tables
        begun = unfinished(self.recorded)
        for name in sorted(self.recorded.keys() & tables.keys()):
            if name in self.tables or name in self.standing or name in self.aside:
                continue
            try:
                state = self.environment.catalog.load_table(parse_table_name(name))
            except NotFoundError:
                continue  # dropped since
            if read_set_aside(state.metadata.properties) is not None:
                continue
            lacks = begun is not None and name in begun.lacking
            record = SetAside(
                query=self.settings.query_id,
                batch=self.number - 1 if lacks else self.number,
                reason=NOT_READ,
                at_ms=self.environment.runtime.clock.now_ms(),
                resumed=True,
            )
            set_aside(self.environment, state.identifier, record)
            logger.warning("%s: %s; it is in no cut until one has brought it up", name, NOT_READ)

    def lags(self, name: str) -> None:
        """A table lacks events of what others have: it is in no cut until it has caught up.

        Effects: one metadata commit; of a table that does not exist, when it is made.
        """
        self._resume(self.tables[name], None, LAGS)
        logger.info("%s %s; it catches up", name, LAGS)

    def caught_up(self, name: str) -> None:
        """A table that was resumed, or lagged, is in cuts again, from the newest batch on.

        Effects: one metadata commit.
        """
        record = self.resumed[name]
        state = self.environment.catalog.load_table(self.tables[name].identifier)
        end_set_aside(self.environment, state, record, batch=max(self.number - 1, record.batch))
        del self.resumed[name]
        logger.info("%s has caught up", name)

    def _note(self, name: str, reason: str) -> None:
        if self.aside.get(name) == reason:
            return
        self.aside[name] = reason
        if self.told.get(name) != reason:
            logger.error("%s is set aside: %s", name, reason)
            self.listener.set_aside(name, reason)

    def _resumed(self) -> list[str]:
        """Tables that stood aside and are asked back or whose property is gone, or that are new."""
        back = []
        for name, table in list(self.standing.items()):
            try:
                state = self.environment.catalog.load_table(table.identifier)
            except NotFoundError:
                continue
            record = read_set_aside(state.metadata.properties)
            if record is None or record.is_asked_back:
                del self.standing[name]
                reason = self.aside.pop(name, "")
                self.told.pop(name, None)
                self.ask_ids(table.topics)
                self._take_up(name, table.topics, state, reason)
                if name in self.tables:
                    back.append(name)
                    self.listener.resumed(name)
        return back

    def _resume(self, table: StreamTable, record: SetAside | None, reason: str = "resumed") -> None:
        """Note what a table that comes back lacks: it is in no cut until it has caught up."""
        if record is None or not record.resumed:
            record = SetAside(
                query=self.settings.query_id,
                batch=table.position.batch + 1,
                reason=reason,
                at_ms=self.environment.runtime.clock.now_ms(),
                resumed=True,
            )
            set_aside(self.environment, table.identifier, record)
        self.resumed[table.name] = record

    def _load(self, names: Collection[str], routed: Routed) -> None:
        states = _load_states(self.environment, [parse_table_name(name) for name in names])
        for name in names:
            self._take_up(name, routed.tables[name], states.get(parse_table_name(name)))

    def _take_up(
        self,
        name: str,
        topics: tuple[str, ...],
        state: TableState | None,
        stood_aside: str | None = None,
    ) -> None:
        """Add a table; one that stands aside, or cannot be right, among those.

        `stood_aside`: the reason why it has until now, if it is taken up again.
        """
        try:
            table = StreamTable(
                identifier=parse_table_name(name),
                topics=topics,
                options=self.settings.options.of(name),
            )
            if state is not None:
                position = read_position(state, self.settings.branch, self.settings.query_id)
                position = self._within_boundaries(position)
                table = replace(table, position=position, exists=True)
                self.recorded[name] = position
            table = replace(table, ids=self._ids(topics, table.position))
        except (InvalidInputError, CorruptDataError) as error:
            self._note(name, str(error))
            return
        record = None if state is None else read_set_aside(state.metadata.properties)
        if record is None or record.is_asked_back:
            self.tables[name] = table
            why = table.made_anew
            if why is not None and why[:REASON_CHARS_MAX] not in (
                stood_aside, None if record is None else record.reason
            ):  # fmt: skip
                if record is not None:
                    self.resumed[name] = record
                self.set_aside(name, why)
            elif record is not None or (stood_aside is not None and table.position.batch >= 0):
                self._resume(table, record)
        else:
            self.standing[name] = table
            self._note(name, record.reason)


def open_tables(
    environment: Environment,
    settings: StreamSettings,
    topics: Mapping[str, int],
    listener: StreamListener,
    *,
    ids_of: Callable[[Collection[str]], Mapping[str, str]],
    resume_tables: Collection[str] = (),
    before: StreamTables | None = None,
) -> StreamTables:
    """The tables of a stream that starts.

    Args:
        environment: Catalog, store, clock.
        settings: The stream.
        topics: All topics that there are, with their number of partitions.
        listener: Is told what happens.
        ids_of: Asks for Kafka's ids of topics; see `MessageSource.ids`.
        resume_tables: Tables that need no longer stand aside.
        before: Of the same stream before an outage: what stood aside has been told. A topic that
            has come since and makes no table is told, too, and the others go on.

    Raises:
        NotFoundError: No topic is read; or a table to resume is none of the stream's.
        InvalidInputError: Topics have no table, or the options of a table cannot be right.

    Effects: notes on tables that are resumed that they are.
    """
    routed = settings.routing.route(topics)
    if routed.refused and before is None:
        topic, reason = next(iter(routed.refused.items()))
        raise InvalidInputError(f"topic '{topic}' has no table: {reason}")
    if not routed.tables:
        raise NotFoundError(
            "no topic fits",
            topics=", ".join(one.text for one in settings.routing.include),
            known=", ".join(sorted(topics)[:5]) or "none",
        )
    for name in resume_tables:
        if name not in routed.tables:
            raise NotFoundError(f"no topic goes to table '{name}'", tables=list(routed.tables))
    for name in routed.tables:
        settings.options.of(name)
    namespaces = {parse_table_name(name)[:-1] for name in routed.tables}
    listed = {one for space in namespaces for one in environment.catalog.list_tables(space)}
    states = _load_states(environment, sorted(listed))
    for name in resume_tables:
        state = states.get(parse_table_name(name))
        if state is not None:
            states[state.identifier] = resume(environment, state)
    stream = StreamTables(environment, settings, listener, partitions=dict(topics), ids_of=ids_of)
    stream.ask_ids(routed.table_of)
    if before is not None:
        stream.told = before.told | before.aside
        for topic, reason in routed.refused.items():
            stream._note(topic, reason)  # noqa: SLF001
    for identifier, state in states.items():
        position = _position_of_query(state, settings)
        if position is not None:
            stream.recorded[".".join(identifier)] = position
    stream.number = next_batch(stream.recorded.values())
    for name, members in routed.tables.items():
        stream._take_up(name, members, states.get(parse_table_name(name)))  # noqa: SLF001
    if before is not None:
        for name in before.aside.keys() - stream.aside.keys():
            listener.resumed(name)
    return stream


def _position_of_query(state: TableState, settings: StreamSettings) -> TablePosition | None:
    """Where a table of the namespace stands, if the stream has written it."""
    try:
        position = read_position(state, settings.branch, settings.query_id)
    except (InvalidInputError, CorruptDataError):
        return None  # told where the table is taken up, if it is one of the stream's
    return position if position.batch >= 0 else None


def _load_states(
    environment: Environment, identifiers: Sequence[Identifier]
) -> dict[Identifier, TableState]:
    """The tables that there are."""

    def load(identifier: Identifier) -> TableState | None:
        try:
            return environment.catalog.load_table(identifier)
        except NotFoundError:
            return None

    first = [load(each) for each in identifiers[:1]]
    at_once = tables_of(next((each.metadata_location for each in first if each), ""))
    found = first + environment.runtime.each(load, identifiers[1:], at_once=at_once)
    return {each: state for each, state in zip(identifiers, found, strict=True) if state}
