"""Many topics into many tables in this process, without Spark.

1. The tables say how far they are (`stream_tables`). If the newest batch is not on all of its
   tables, those that lack it get exactly that batch again, before anything new is read.
2. Every partition is read from where its own table stands.
3. What was read is cut into a batch: everything, or with `Cut.TRANSACTION` what ends with a source
   transaction in every partition (`transactions`). The batch is staged on each of its tables.

Durable: after 3, table by table. Killed at any instant, 1 finishes what was begun: every event is
in its table once. Topics that come while it runs join it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

import pyarrow as pa

from tableformat.cdc.events import ORDINAL, VALUE, EventBatch
from tableformat.cdc.many.buffers import PLACED_SCHEMA, MessageBuffers, by_table, next_offset
from tableformat.cdc.many.planned_tables import plan_new_tables
from tableformat.cdc.many.positions import (
    Offsets,
    Place,
    UnfinishedBatch,
    without_transactions,
)
from tableformat.cdc.many.source import (
    EARLIEST,
    POLL_MESSAGES,
    POLL_S,
    STILL_MS,
    MessageSource,
    Polled,
)
from tableformat.cdc.many.staging import StreamBatch, StreamTable, within_topics
from tableformat.cdc.many.stream_tables import (
    StreamListener,
    StreamSettings,
    StreamTables,
    open_tables,
)
from tableformat.cdc.many.table_making import NewTable
from tableformat.cdc.many.transaction_reading import TransactionReading, plan_cut
from tableformat.cdc.many.transaction_topic import boundaries_place
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, StoreUnavailableError
from tableformat.memory import release_unused

# Bounds of a batch: about a second of work of one core, and of memory a small multiple.
BATCH_EVENTS = 100_000
BATCH_BYTES = 32 << 20
RELEASE_EVENTS = 10_000  # after larger batches memory is given back: 40 of 300 MB, in milliseconds
REFRESH_MS = 5_000  # how soon a new topic joins
TELL_MS = 1_000
ASK_AGAIN_MS = 2_000  # a schema registry that did not answer
HELD_MS = 1_000  # a batch for a publish: side by side both take longer than one after the other
SETTLE_MS = 5_000  # what one partition shows later than another, at most
WITHOUT_THEM = "if they never come, one run with --cut batch goes on without them"
logger = logging.getLogger("icefold.ingest")


class Cut(StrEnum):
    """Where a batch may end."""

    BATCH = "batch"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much a batch holds at most, how often there is one, and how soon a topic joins.

    `settle_ms`: by how much Kafka may show what one partition was sent later than what others were
    sent after it.
    """

    batch_events: int = BATCH_EVENTS
    batch_bytes: int = BATCH_BYTES
    interval_ms: float = 1_000
    refresh_ms: float = REFRESH_MS
    settle_ms: float = SETTLE_MS


@dataclass(slots=True, kw_only=True)
class LocalEngine:
    """One run of a stream. Made, then `run` once; `open` before it, to look first.

    Args:
        environment: Catalog, store, clock.
        source: The messages.
        settings: The stream.
        cut: Where batches end.
        pace: How large batches are.
        listener: Is told what happens.
        resume_tables: Tables that need no longer stand aside.

    Attributes:
        batches_staged: By this run.
    """

    environment: Environment
    source: MessageSource
    settings: StreamSettings
    cut: Cut = Cut.BATCH
    pace: Pace = field(default_factory=Pace)
    listener: StreamListener = field(default_factory=StreamListener)
    resume_tables: Collection[str] = ()
    batches_staged: int = 0
    _before: StreamTables | None = None
    _listed_before: Mapping[str, int] = field(default_factory=dict)
    _listed_until_ms: float = 0.0
    _opened: StreamTables | None = None
    _topics: Mapping[str, int] = field(default_factory=dict)
    _buffers: MessageBuffers = field(default_factory=MessageBuffers)
    _read: dict[Place, int] = field(default_factory=dict)
    _paused: set[Place] = field(default_factory=set)
    _goal: dict[Place, int] | None = None
    _transactions: TransactionReading | None = None
    _held: Polled | None = None
    _ask_again_ms: float = 0.0
    _more_waits: bool = False
    _last_batch_ms: float = float("-inf")
    _refreshed_ms: float = 0.0
    _catching_up: dict[str, Offsets] = field(default_factory=dict)
    _brokers_gone: bool = False
    _told_ms: float = 0.0
    _moved_ms: float = 0.0

    @property
    def _tables(self) -> StreamTables:
        assert self._opened is not None, "the stream is not open"
        return self._opened

    @property
    def aside(self) -> Mapping[str, str]:
        """Tables and topics that stand aside, with the reason."""
        return self._tables.aside

    def run(self, *, follow: bool, stop: Callable[[], bool] = lambda: False) -> None:
        """Stage what there is, or go on until `stop` says so.

        Args:
            follow: Go on with what arrives.
            stop: Asked often; what is read and not staged then is read again the next time.

        Raises:
            NotFoundError, InvalidInputError: See `open_tables`; or the transactions of the source
                are not told and batches shall end with them.
            StoreUnavailableError: No broker answers, or the store or catalog does not.
            FencedError: Another process runs the same stream.

        Effects: see the module's text.
        """
        if self._opened is None:
            self.open(follow=follow)
        self._tables.leave_out()
        if self._lacks_transactions and not self._wait_for_transactions(stop):
            return
        if self._transactions is not None and not self._read:
            self._transactions.remember(self._between)
        self._finish()
        self._begin(list(self._tables.tables.values()))
        now_ms = self._now_ms()
        self._refreshed_ms = self._told_ms = self._moved_ms = now_ms
        if not follow:
            self._goal = dict(self.source.ends(list(self._read)))
        while not stop():
            self._take_in(self._next(follow=follow))
            if self._is_due(follow=follow):
                self._stage()
            is_done = self._goal is not None and self._is_at_goal()
            if is_done:
                self._stage()
                is_looking = self._transactions is not None and self._transactions.is_looking
                is_done = not (is_looking and self._buffers.events)
            self._check_caught_up()
            if is_done:
                self._tell_left()
                return
            self._look_around(follow=follow)

    def open(self, *, follow: bool = False) -> StreamTables:
        """The tables of the stream, without reading a message.

        Args:
            follow: `run` may wait for a transaction topic that is not there yet.
        """
        topics = dict(self.source.topics())
        missing = self._listed_before.keys() - topics.keys()
        if missing and self._now_ms() < self._listed_until_ms:
            raise StoreUnavailableError("Kafka does not list all topics yet", topic=min(missing))
        self._topics = topics
        self._opened = open_tables(
            self.environment,
            self.settings,
            self._topics,
            self.listener,
            ids_of=self.source.ids,
            resume_tables=self.resume_tables,
            before=self._before,
        )
        if self.cut is Cut.TRANSACTION:
            self._transactions = self._plan_cut(may_wait=follow)
        return self._tables

    @property
    def is_open(self) -> bool:
        """Whether `open` has been called."""
        return self._opened is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was read waits to be staged."""
        return not (self._buffers.events or self._more_waits)

    def leave(self) -> None:
        """Read nothing any more; the source stays open."""
        self.source.unpause(sorted(self._paused))
        self.source.unassign(list(self._read))
        self._paused.clear()
        self._read.clear()

    def again(self) -> LocalEngine:
        """An engine that begins where the tables stand, after `leave`.

        Brokers that have just started may not list every topic: for a while that is waited for.
        """
        tables = self._before if self._opened is None else self._opened
        topics = self._listed_before if self._opened is None else self._topics
        has_listed = self._opened is not None
        return LocalEngine(
            environment=self.environment,
            source=self.source,
            settings=self.settings,
            cut=self.cut,
            pace=self.pace,
            listener=self.listener,
            _before=tables,
            _listed_before=topics,
            _listed_until_ms=self._now_ms() + STILL_MS if has_listed else self._listed_until_ms,
        )

    def lag(self) -> int:
        """Messages that are not staged. After `open`; asks the brokers."""
        begin = self._offsets(self._tables.tables.values())
        ends = self.source.ends(list(begin))
        return sum(max(ends[place] - max(at, 0), 0) for place, at in begin.items())

    def plan_tables(self) -> dict[str, NewTable | str]:
        """Tables that the stream would make, or why it cannot. After `open`; nothing is written.

        Reads the first messages of topics whose tables do not exist.
        """
        return plan_new_tables(self._tables, self.source, self._topics, self._now_ms)

    def _now_ms(self) -> float:
        return self.environment.runtime.clock.monotonic_ms()

    def _room(self) -> int:
        if self._transactions is not None:
            return POLL_MESSAGES  # what is missing may come after more than fits into a batch
        return max(min(self.pace.batch_events - self._buffers.events, POLL_MESSAGES), 1)

    def _offsets(self, tables: Collection[StreamTable]) -> dict[Place, int]:
        """Where tables begin in each partition of their topics."""
        return {
            place: table.own.get(place, EARLIEST)
            for table in tables
            for place in table.places(self._topics)
        }

    def _begin(self, tables: Collection[StreamTable]) -> None:
        """Read the topics of tables, from where the tables stand."""
        begin = {p: at for p, at in self._offsets(tables).items() if p not in self._read}
        self._tables.tell_unread(tables, lambda came: self.source.begins(begin.keys() & set(came)))
        if self._transactions is not None:
            self._transactions.begin(begin, tables, self._topics, self._read)
        self._read |= begin
        self.source.assign(begin)
        for name in self._tables.resumed.keys() - self._catching_up.keys():
            table = self._tables.tables[name]
            self._catching_up[name] = self.source.ends(table.places(self._topics))

    def _finish(self) -> None:
        """Do a batch again for those of its tables that lack it."""
        before: UnfinishedBatch | None = None
        while (found := self._tables.unfinished()) not in (None, before):
            assert found is not None
            self._finish_one(found)
            before = found  # a table that waits for its first row lacks it still

    def _finish_one(self, found: UnfinishedBatch) -> None:
        tables = {name: self._tables.tables[name] for name in found.lacking}
        lacking = list(tables.values())
        topics = {topic for table in lacking for topic in table.topics}
        places = [place for table in lacking for place in table.places(self._topics)]
        begins, ends = self.source.begins(places), self.source.ends(places)
        found = within_topics(found, tables, begins, ends)
        if self._transactions is None:  # others than it moved may lack events of its transactions
            found = without_transactions(found)
        else:
            unmoved = self._unmoved_ends(lacking, found, begins, ends)
            found = replace(found, ends={**unmoved, **found.ends})
        ends = {place: end for place, end in found.ends.items() if place[0] in topics}
        begin = {p: at for p, at in self._offsets(lacking).items() if p in ends and at < ends[p]}
        found_again = self._between(begin, ends)
        events = {p: found_again[p] for p in found_again if p[0] in self._tables.table_of}
        nothing = PLACED_SCHEMA.empty_table()
        there = {table.name: nothing for table in lacking if table.name in self._tables.tables}
        there |= by_table(events, self._tables.table_of.__getitem__)
        self.environment.runtime.fail_point("ingest.many.read_again")
        self._tables.stage_again(found, there)
        self.batches_staged += 1
        logger.info("batch %d is whole again: it lacked on %s", found.number,
                    ", ".join(found.lacking))  # fmt: skip

    def _unmoved_ends(
        self,
        lacking: Collection[StreamTable],
        found: UnfinishedBatch,
        begins: Mapping[Place, int],
        ends: Mapping[Place, int],
    ) -> dict[Place, int]:
        """Where partitions end that a batch has not moved, but batches before it, lacked as well.

        The batch is one state of the source, and what its table would then seem to have is left out
        as sent again. Of a new table's partition whose first messages Kafka has deleted nothing is
        said, so that it is warned of.
        """
        own = self._offsets(lacking)
        begin = {p: at if at >= 0 else 0 for p, at in own.items() if p not in found.ends}
        known = {p: at for p, at in begin.items() if own[p] >= 0 or not begins[p]}
        return {place: self._taken_end(place, at, ends[place]) for place, at in known.items()}

    def _taken_end(self, place: Place, at: int, end: int) -> int:
        """The offset after what a partition has of transactions that are in batches."""
        assert self._transactions is not None
        while at < end:
            stop = min(at + POLL_MESSAGES, end)
            messages = self._between({place: at}, {place: stop}).get(place)
            taken = None if messages is None else self._transactions.taken_end(messages)
            if taken is not None:
                return max(at, taken)
            at = stop
        return at

    def _between(
        self, begin: Mapping[Place, int], ends: Mapping[Place, int]
    ) -> dict[Place, pa.Table]:
        """The messages between offsets."""
        self.source.assign(begin)
        left = dict.fromkeys(begin)
        try:
            return self._poll_between(left, ends)
        finally:
            self.source.unassign(list(left))

    def _poll_between(
        self, left: dict[Place, None], ends: Mapping[Place, int]
    ) -> dict[Place, pa.Table]:
        found: dict[Place, list[pa.Table]] = {}
        moved_ms = self._now_ms()
        while left:
            polled = self.source.poll(POLL_MESSAGES, POLL_S)
            self._set_aside_gone(polled, left)
            if polled.read:
                moved_ms = self._now_ms()
            for place, messages in polled.messages.items():
                if place in left:
                    offsets = messages.column(ORDINAL).to_numpy()
                    found.setdefault(place, []).append(
                        messages.slice(0, int((offsets < ends[place]).sum()))
                    )
            for place, at in polled.read.items():
                if place in left and at >= ends[place]:
                    del left[place]
                    self.source.unassign([place])
            self._check_moves(moved_ms)
        return {place: pa.concat_tables(tables) for place, tables in found.items()}

    def _set_aside_gone(self, polled: Polled, left: dict[Place, None]) -> None:
        for place, reason in polled.gone.items():
            name = self._tables.table_of.get(place[0])
            if name is not None:
                self._leave(self._tables.set_aside(name, _gone(place, reason)), left)

    def _leave(self, table: StreamTable, left: dict[Place, None] | None = None) -> None:
        """Read the topics of a table no longer."""
        of = self._read if left is None else left
        places = [place for place in of if place[0] in table.topics]
        self.source.unassign(places)
        for place in places:
            del of[place]
            self._paused.discard(place)
            if self._goal is not None:
                self._goal.pop(place, None)
        self._buffers.drop(table.topics)
        if self._transactions is not None:
            self._transactions.cut.forget(table.topics)

    def _next(self, *, follow: bool) -> Polled:
        """What comes next, once all that decoding it takes is known.

        What a registry that is down holds up is kept, and asked for again; nothing of it has been
        taken in.
        """
        decoder = self.settings.decoder
        if self._held is None:
            polled = self.source.poll(self._room(), POLL_S)
        elif self._now_ms() < self._ask_again_ms:
            self.environment.runtime.clock.sleep_ms(POLL_S * 1e3)
            return Polled()
        else:
            polled = self._held
        if decoder is None:
            return polled
        try:
            decoder.learn(polled.messages.values())
        except StoreUnavailableError as error:
            if not follow:
                raise
            if self._held is None:
                logger.warning("%s; the stream waits for it", error)
            self._held, self._ask_again_ms = polled, self._now_ms() + ASK_AGAIN_MS
            return Polled()
        if self._held is not None:
            self._held = None
            logger.info("the schema registry answers again")
        return polled

    def _values(self, messages: pa.Table) -> pa.Array:
        """The values of messages, decoded."""
        if self.settings.decoder is None:
            return messages.column(VALUE).combine_chunks()
        (batch,) = EventBatch.split(messages.combine_chunks(), max(len(messages), 1))
        return self.settings.decoder.decode(batch).required(VALUE)

    def _take_in(self, polled: Polled) -> None:
        for place, reason in polled.gone.items():
            name = self._tables.table_of.get(place[0])
            if name is not None and place in self._read:
                self._leave(self._tables.set_aside(name, _gone(place, reason)))
            elif place in self._read:
                raise InvalidInputError(_gone(place, reason), action="use --cut batch")
        if polled.read:
            self._moved_ms = self._now_ms()
        brought = sum(map(len, polled.messages.values()))
        self._more_waits = brought >= POLL_MESSAGES // 2  # full, but for the ends of partitions
        reading = self._transactions
        for place, messages in polled.messages.items():
            if place not in self._read:
                continue  # left a moment ago
            wanted = messages if reading is None else reading.take_in(place, messages)
            if wanted is None:
                self._refuse_truncate(place[0])
            elif len(wanted):
                self._buffers.add(place, wanted)
        for place, at in polled.read.items():
            if place in self._read:
                self._read[place] = at
                if reading is not None:
                    reading.read_to(place, at)
        if reading is not None and reading.cut.lagging:
            self._let_lag(reading.cut.lagging)

    def _let_lag(self, topics: set[str]) -> None:
        """Tables of which older events come than of the others are in no cut until they are there.

        Before any of these events is staged: a process after this one takes them for new, too.
        """
        table_of = self._tables.table_of
        for name in {table_of[topic] for topic in topics if topic in table_of}:
            if name not in self._tables.resumed:
                self._tables.lags(name)
                table = self._tables.tables[name]
                self._catching_up[name] = self.source.ends(table.places(self._topics))
        topics.clear()

    def _is_due(self, *, follow: bool) -> bool:
        if not self._buffers.events:
            return False
        pace = self.pace
        is_full = (
            self._buffers.events >= pace.batch_events
            or self._buffers.size_bytes >= pace.batch_bytes
        )
        # What waits already goes into this batch: a late stream that cut one as often as others
        # would pay for commits of all its tables with a few events, and never catch up.
        if is_full or self._more_waits or not follow:
            return is_full
        late_ms = self._now_ms() - self._last_batch_ms - pace.interval_ms
        return late_ms >= 0 and (late_ms >= HELD_MS or not self.listener.is_publishing())

    def _leave_made_anew(self) -> None:
        """Of what waits, leave what may have been sent to a topic that has been made anew since.

        Of brokers that do not answer it was read before they went: only the first batch waits.
        """
        if self._brokers_gone or not self._buffers.events:
            return
        with suppress(StoreUnavailableError):
            for table in self._tables.renew({topic for topic, _ in self._buffers.counts()}):
                self._leave(table)

    def _stage(self) -> None:
        """Cut a batch of what waits, and stage it."""
        self._leave_made_anew()
        ends: dict[Place, int] = {}
        transaction = None
        if self._transactions is None:
            counts = self._buffers.counts()
        else:
            counts, last = self._transactions.cut.take()
            ends = self._transactions.ends(last)
            transaction = None if last is None else last.text
        if not counts:
            return
        self._last_batch_ms = self._now_ms()
        taken = self._buffers.take(counts)
        ends |= {place: next_offset(messages) for place, messages in taken.items()}
        table_of = self._tables.table_of
        waiting = self._buffers.counts().keys() | ends.keys()
        read = {place: at for place, at in self._read.items() if place not in waiting}
        for name in {table_of[topic] for topic, _ in taken}:
            ends |= self._tables.tables[name].silent(self._topics, read)
        batch = StreamBatch(
            batch=self._tables.batch_id(),
            events=by_table(taken, table_of.__getitem__),
            ends=ends,
            transaction=transaction,
        )
        for table in self._tables.stage(batch):
            self._leave(table)
        self.batches_staged += 1
        if sum(counts.values()) >= RELEASE_EVENTS:
            release_unused()

    def _check_caught_up(self) -> None:
        """Tables that were resumed and have all that their topics held then are in cuts again."""
        for name in list(self._catching_up):
            table = self._tables.tables.get(name)
            if table is None:
                del self._catching_up[name]  # set aside again
            elif table.made_anew is None and all(
                self._is_staged(table, *each) for each in self._catching_up[name].items()
            ):
                del self._catching_up[name]
                self._tables.caught_up(name)

    def _is_staged(self, table: StreamTable, place: Place, end: int) -> bool:
        """Whether nothing before an offset waits; what Kafka counts beside messages does not."""
        is_read = self._read.get(place, 0) >= end and place not in self._buffers.counts()
        return is_read or table.own.get(place, 0) >= end

    def _is_at_goal(self) -> bool:
        assert self._goal is not None
        return all(self._read.get(place, 0) >= end for place, end in self._goal.items())

    def _tell_left(self) -> None:
        """At the end: what is not staged because its transaction is not whole."""
        waits = None if self._transactions is None else self._transactions.cut.waits_for()
        if waits is not None and self._buffers.events:
            logger.warning(
                "%d messages are not staged: transaction %s waits for events in topic %s; "
                + WITHOUT_THEM,
                self._buffers.events, waits[0].text, waits[1],
            )  # fmt: skip

    def _look_around(self, *, follow: bool) -> None:
        """What is done now and then: new topics, what waits, whether anything moves."""
        now_ms = self._now_ms()
        reading = self._transactions
        cut = None if reading is None else reading.cut
        waits = None if cut is None or not self._buffers.events else cut.waits_for()
        is_new = waits is not None and cut is not None and waits[1] not in cut.partitions
        soon_ms = TELL_MS if is_new else self.pace.refresh_ms
        if (follow or is_new) and now_ms - self._refreshed_ms >= min(soon_ms, self.pace.refresh_ms):
            self._refreshed_ms = now_ms
            self._refresh()
        if reading is not None:
            reading.look_again(self._read)
            self._balance(reading, None if waits is None else waits[1])
        if now_ms - self._told_ms >= TELL_MS:
            self._told_ms = now_ms
            self.listener.backlog(self._waiting())
        if now_ms - self._moved_ms >= STILL_MS:
            if not follow:
                self._check_moves(self._moved_ms)
            if waits is not None:
                logger.warning(
                    "transaction %s waits for events in topic %s: were they filtered, or was the "
                    "topic renamed or made anew, after Debezium had counted them? " + WITHOUT_THEM,
                    waits[0].text, waits[1],
                )  # fmt: skip
            self._moved_ms = now_ms

    def _joined(self) -> set[str]:
        """Tables that are new, or have topics or partitions that have come since."""
        try:
            topics = dict(self.source.topics())
            renewed = self._tables.renew(self._tables.table_of)
        except StoreUnavailableError as error:
            if not self._brokers_gone:
                logger.warning("%s; the stream waits for it", error)
            self._brokers_gone = True
            return set()
        if self._brokers_gone:
            logger.info("a Kafka broker answers again")
        self._brokers_gone = False
        self._topics = topics
        for table in renewed:
            self._leave(table)
        names = set(self._tables.join(topics))
        # By what is read: the brokers may have left a topic out of their last answer.
        return names | {
            table.name
            for table in self._tables.tables.values()
            if any(place not in self._read for place in table.places(self._topics))
        }

    def _refresh(self) -> None:
        """Let topics and partitions join that have come since."""
        names = self._joined()
        if not names:
            return
        before = set(self._read)
        self._begin([self._tables.tables[name] for name in sorted(names)])
        for topic in sorted({p[0] for p in set(self._read) - before} & {p[0] for p in before}):
            logger.warning(
                "topic %s has more partitions: a key may have changed its partition, and nothing "
                "orders its changes in the old one and the new one but the option sequence",
                topic,
            )
        if self._goal is not None:
            self._goal |= self.source.ends(list(set(self._read) - before))

    def _waiting(self) -> dict[str, dict[Place, int]]:
        ends = self.source.known_ends(list(self._read))
        waiting: dict[str, dict[Place, int]] = {}
        buffered = self._buffers.counts()
        for name, table in self._tables.tables.items():
            for place in table.places(self._topics):
                if place in ends:
                    passed = 0 if place in buffered else self._read.get(place, 0)
                    count = max(ends[place] - max(table.own.get(place, 0), passed), 0)
                    waiting.setdefault(name, {})[place] = count
        return waiting

    def _check_moves(self, moved_ms: float) -> None:
        if self._now_ms() - moved_ms >= STILL_MS:
            raise StoreUnavailableError(
                "Kafka brings no more messages, and there are more",
                seconds=round(STILL_MS / 1e3),
                action="check the brokers, then run the same again",
            )

    def _refuse_truncate(self, topic: str) -> None:
        """Set a table aside that applies truncates, where they are in no transaction."""
        reason = (
            f"{topic} has a TRUNCATE, which is in no transaction of this source, so that one "
            "which Debezium sends again would empty the table once more; use --cut batch, or "
            "on-truncate=ignore"
        )
        self._leave(self._tables.set_aside(self._tables.table_of[topic], reason))

    @property
    def _lacks_transactions(self) -> bool:
        return self.cut is Cut.TRANSACTION and self._transactions is None

    def _wait_for_transactions(self, stop: Callable[[], bool]) -> bool:
        """Wait for the transaction topic; whether it is there, and no stop came first.

        Debezium makes it with the first transaction after the snapshot. Nothing is read before:
        where a batch may end is not known.
        """
        logger.warning(
            "the stream waits for the topic PREFIX.transaction, which comes with the first "
            "transaction after the snapshot; Debezium's connector needs "
            "provide.transaction.metadata=true for it"
        )
        looked_ms = self._now_ms()
        while not stop():
            if self._now_ms() - looked_ms >= self.pace.refresh_ms:
                looked_ms = self._now_ms()
                self._joined()
                self._transactions = self._plan_cut(may_wait=True)
                if self._transactions is not None:
                    logger.info("the source tells its transactions now")
                    return True
            self.environment.runtime.clock.sleep_ms(POLL_S * 1e3)
        return False

    def _plan_cut(self, *, may_wait: bool) -> TransactionReading | None:
        """How the stream is cut; None: the transaction topic may still come."""
        cut = plan_cut(self._tables, lambda: self._topics, self.settings.routing, may_wait=may_wait)
        if cut is None:
            return None
        self._tables.begin_boundaries(boundaries_place(cut)[0])
        return TransactionReading(
            cut=cut,
            tables=self._tables,
            source=self.source,
            now_ms=self._now_ms,
            settle_ms=self.pace.settle_ms,
            values=self._values,
        )

    def _balance(self, reading: TransactionReading, wanted: str | None) -> None:
        """Where too much waits, bring only what the oldest open transaction waits for."""
        is_full = self._buffers.size_bytes >= 2 * self.pace.batch_bytes
        full = reading.to_pause(self._read, wanted, is_full=is_full)
        self.source.pause(sorted(full - self._paused))
        self.source.unpause(sorted(self._paused - full))
        self._paused = full


def _gone(place: Place, reason: str) -> str:
    return f"Kafka no longer has what comes next in {place[0]}-{place[1]}: {reason}"
