"""What is read for cuts at transactions: events, the transaction topic, and where both began.

Beside the messages of its tables a stream reads the transaction topic, from where its batches have
ended in it. Where nothing says what was read of transactions, partitions and topic are looked at
twice, some seconds apart (`Backlog`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tableformat.cdc.events import ORDINAL
from tableformat.cdc.many.buffers import next_offset
from tableformat.cdc.many.positions import Offsets, Place
from tableformat.cdc.many.routing import Routing
from tableformat.cdc.many.source import EARLIEST, MessageSource
from tableformat.cdc.many.staging import StreamTable
from tableformat.cdc.many.stream_tables import StreamTables
from tableformat.cdc.many.transaction_topic import (
    boundaries_place,
    boundaries_staged,
    is_cut_otherwise,
    transaction_prefix,
)
from tableformat.cdc.many.transactions import (
    KNOWN_MAX,
    Backlog,
    Boundary,
    TransactionCut,
    boundaries_of,
    runs_of,
)

OPEN_TRANSACTIONS_MAX = 50_000  # ENDs that wait for their events; about 30 MB
REMEMBERED_MAX = 2 * KNOWN_MAX  # messages of the transaction topic: a BEGIN and an END of each


@dataclass(frozen=True, slots=True)
class FirstLook:
    """Where partitions and the transaction topic ended, of a `Backlog`."""

    at_ms: float
    ends: Offsets
    boundaries_end: int
    is_left: bool


@dataclass(slots=True, kw_only=True)
class TransactionReading:
    """What a cut is told of what is read. `take_in` what comes after `begin`.

    Attributes:
        cut: Grows.
        tables: Of the stream.
        source: Asked where partitions end; this reads nothing itself.
        now_ms: The monotonic clock.
        settle_ms: From a first look to the second.
        values: Decodes the values of messages.
    """

    cut: TransactionCut
    tables: StreamTables
    source: MessageSource
    now_ms: Callable[[], float]
    settle_ms: float
    values: Callable[[pa.Table], pa.Array]
    _looks: list[FirstLook] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """The partition of the transaction topic."""
        return boundaries_place(self.cut)

    @property
    def is_looking(self) -> bool:
        """Whether a second look is still to come."""
        return bool(self._looks)

    def begin(
        self,
        begin: dict[Place, int],
        tables: Collection[StreamTable],
        partitions: Mapping[str, int],
        read: Collection[Place],
    ) -> None:
        """Add topics to the cut; the first time, the transaction topic to what is read.

        Args:
            begin: Where reading of partitions begins; may grow.
            tables: Those that the partitions are of.
            partitions: How many each topic has.
            read: Partitions that are read already.
        """
        newest = boundaries_staged(self.tables, self.place)
        for table in tables:
            for topic in table.topics:
                self.cut.partitions[topic] = partitions.get(topic, 0)
        ends_of = {
            p: 0 if begin[p] == EARLIEST or t.name in self.tables.resumed
            else t.position.offsets.get(self.place, 0)
            for t in tables for p in t.places(partitions) if p in begin
        }  # fmt: skip
        behind = {p for p, end in ends_of.items() if end < newest or begin[p] == EARLIEST}
        self.cut.let_join(ends_of)
        boundaries_end, is_left = 0, False
        if self.place not in read:
            begin[self.place] = newest if newest > 0 else EARLIEST
            is_left = is_cut_otherwise(self.tables, self.place)
            if newest <= 0 or is_left:
                behind = set(begin) - {self.place}
                boundaries_end = self.source.ends([self.place])[self.place]
        for each, at in begin.items():
            self.cut.read_to(each, max(at, 0))
        ends = self.source.ends(sorted(behind))
        if any(ends.values()):
            self._looks.append(FirstLook(self.now_ms(), ends, boundaries_end, is_left))

    def look_again(self, read: Collection[Place]) -> None:
        """The second look at what has had the time to arrive, of partitions that are read."""
        now_ms = self.now_ms()
        due = [each for each in self._looks if now_ms - each.at_ms >= self.settle_ms]
        for first in due:
            self._looks.remove(first)
            places = [each for each in first.ends if each in read]
            later_end = self.source.ends([self.place])[self.place]
            self.cut.backlogs |= {
                each: Backlog(first.ends[each], first.boundaries_end, end, later_end, first.is_left)
                for each, end in self.source.ends(places).items()
            }

    def remember(self, between: Callable[[Offsets, Offsets], Mapping[Place, pa.Table]]) -> None:
        """Read again which transactions the last batches hold; `between` reads messages."""
        end = boundaries_staged(self.tables, self.place)
        begin = max(self.source.begins([self.place])[self.place], end - REMEMBERED_MAX)
        if begin < end:
            for messages in between({self.place: begin}, {self.place: end}).values():
                self.cut.remember(self._boundaries(messages))

    def taken_end(self, messages: pa.Table) -> int | None:
        """The offset after those of a partition that are of remembered transactions, or of none.

        None: all are.
        """
        end = -1
        for run in runs_of(self.values(messages), messages.column(ORDINAL).to_numpy()):
            if not self.cut.has_taken(run):
                return end
            end = run.end
        return None

    def take_in(self, place: Place, messages: pa.Table) -> pa.Table | None:
        """Messages of a partition have come.

        Returns:
            Those that are to be buffered. None, and nothing is taken in: a truncate is among them
            that is in no transaction, and its table would apply it.

        Raises:
            InvalidInputError: See `TransactionCut.add_boundaries`.
        """
        if place == self.place:
            self.cut.add_boundaries(self._boundaries(messages), next_offset(messages))
            return messages.slice(0, 0)
        runs = runs_of(self.values(messages), messages.column(ORDINAL).to_numpy())
        if any(run.truncates for run in runs) and self._applies_truncates(place[0]):
            return None
        is_new = self.cut.add_events(place, runs)
        return messages if is_new.all() else messages.filter(pa.array(is_new))

    def ends(self, last: Boundary | None) -> dict[Place, int]:
        """Where a batch ends in the transaction topic; `last`: the last END in it.

        Where no END has been taken it is 0: batches that end anywhere say nothing.
        """
        end = boundaries_staged(self.tables, self.place) if last is None else last.offset + 1
        return {self.place: max(end, 0)}

    def read_to(self, place: Place, at: int) -> None:
        """Nothing of a partition before an offset is still to come."""
        if place == self.place:
            self.cut.add_boundaries((), at)
        else:
            self.cut.read_to(place, at)

    def to_pause(self, read: Collection[Place], wanted: str | None, *, is_full: bool) -> set[Place]:
        """Where too much waits, all but what the oldest open transaction waits for."""
        full = {place for place in read if is_full and place[0] != wanted}
        full.discard(self.place)
        if self.cut.open_count >= OPEN_TRANSACTIONS_MAX:
            full.add(self.place)
        return full

    def _boundaries(self, messages: pa.Table) -> list[Boundary]:
        offsets = messages.column(ORDINAL).to_numpy()
        return boundaries_of(self.values(messages).to_pylist(), offsets)

    def _applies_truncates(self, topic: str) -> bool:
        return self.tables.tables[self.tables.table_of[topic]].options.choice.truncates


def plan_cut(
    tables: StreamTables,
    topics: Callable[[], Mapping[str, int]],
    routing: Routing,
    *,
    may_wait: bool,
) -> TransactionCut | None:
    """How a stream is cut; None: the transaction topic may still come.

    Args:
        tables: Of the stream.
        topics: Gives all topics that there are by now, with their number of partitions.
        routing: Which topics the stream takes.
        may_wait: Whether the transaction topic may still come.

    Raises:
        InvalidInputError: See `transaction_prefix`.
    """
    prefix = transaction_prefix(tables, topics(), routing, may_wait=may_wait)
    if prefix is None:
        return None
    return TransactionCut(
        prefix=prefix,
        expects=lambda topic: (
            routing.takes(topic) and not routing.route([*topics(), topic]).refused
            and not any(topic in t.topics for t in tables.standing.values())
        ),
    )  # fmt: skip
