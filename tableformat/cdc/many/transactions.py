"""Batches that end where source transactions end (Debezium's `provide.transaction.metadata`).

Each event says which transaction it is of, and its number among the transaction's events of its
table (`data_collection_order`). Debezium's transaction topic has a BEGIN and an END of each, END
with the number of events per table. Debezium writes transactions in the order of their commits, so:

* in a partition the events of transactions up to any one are a prefix;
* a transaction is complete when its END is there, and of each table that END counts the events are:
  in a topic of one partition when the last number is seen, else when all numbers are;
* a batch takes the longest run of complete transactions, in the order of the ENDs, and in every
  partition the prefix that belongs to them. Events without a transaction (of snapshots, tombstones)
  go with what stands before them.

Debezium sends events again when it restarts: of some transaction and then of those after it. What
comes again would show an older state until all of it has come, so it is left out: events of a
transaction that was taken, and numbers that were seen. Transactions that were taken stay known for
a while; a process that begins reads them in the transaction topic. A tombstone that comes again is
left out with what stands before it; snapshots' rows, an incremental one's too, are always new. An
END of a known transaction that is later than the one that is known is of another: the ids of the
source have begun again, and which events are repeats cannot be told (`InvalidInputError`). A
partition that joins late holds events of transactions taken before that its table has not seen:
those are taken at once. A batch that is staged again holds what comes again, too, but all of it: it
ends with what is new.

TRUNCATE is in no transaction of MySQL's and MariaDB's, so nothing says whether it is sent again; it
goes with what stands before it, and whoever applies truncates has to refuse it (`Run.truncates`).
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.array_types import Bools, Int64s
from tableformat.cdc.connect_schema import split_payloads
from tableformat.cdc.json_objects import JsonLayout, parse_json_objects, utf8_rows
from tableformat.cdc.many.positions import Place
from tableformat.errors import InvalidInputError

TRANSACTION = "transaction"
_ID, _ORDER = "id", "data_collection_order"
_OP, _SOURCE, _CONNECTOR = "op", "source", "connector"
_EVENT = JsonLayout(
    schema=pa.schema(
        [
            (TRANSACTION, pa.struct([(_ID, pa.string()), (_ORDER, pa.int64())])),
            (_OP, pa.string()),
            (_SOURCE, pa.struct([(_CONNECTOR, pa.string())])),
        ]
    ),
    alternatives={(TRANSACTION, _ORDER): (pa.string(),)},
)
# Debezium's for MariaDB tells a BEGIN of a TRUNCATE all the same, and never an END.
_TRUNCATE_ALONE = ("mysql", "mariadb")
# PostgreSQL's is TXID:LSN, and the LSN is that of each event, not of the transaction.
_POSTGRESQL = re.compile(r"(\d+):\d+")
_UNFIT_FOR_TOPIC = re.compile(r"[^a-zA-Z0-9._-]")
_NO_TRANSACTION, _BEFORE = "", "\0"  # of events of none: alone, and with what stands before them
KNOWN_MAX = 100_000  # transactions that were taken and are still known


def transaction_id(text: str) -> str:
    """What is the same in all events of a transaction."""
    found = _POSTGRESQL.fullmatch(text)
    return text if found is None else found[1]


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring events of one partition that are of one transaction.

    Attributes:
        transaction: Its id; None: they are of none.
        orders: Of each its number among the transaction's events of its table; 0: none.
        end: The offset after the last one.
        count: How many; those without a transaction among them too.
        truncates: Whether a truncate is among them that is in no transaction.
        goes_along: They are of none, and come again if what stands before them does.
    """

    transaction: str | None
    orders: tuple[int, ...]
    end: int
    count: int
    truncates: bool = False
    goes_along: bool = False

    def without_repeats(
        self, seen: dict[tuple[str, str], int], topic: str, taken: Mapping[str, Taken], lacks: range
    ) -> tuple[Bools, Run | None]:
        """What of it has not come before; `seen` grows by that.

        Args:
            seen: Numbers that have come, as bits, by transaction and topic.
            topic: Of the run.
            taken: Transactions that batches hold.
            lacks: Where ended those of them that are new here nevertheless.

        Returns:
            Shape (count,), and the run of those; None: nothing is new.
        """
        everything = np.ones(self.count, np.bool_)
        if self.transaction is None:
            return everything, self
        ended = taken.get(self.transaction)
        if ended is not None:
            return (everything, self) if ended.offset in lacks else (~everything, None)
        mine = (self.transaction, topic)
        before, bits = seen.get(mine, 0), _bits(self.orders)
        seen[mine] = before | bits
        numbered = self.count - self.orders.count(0)
        if not before & bits and bits.bit_count() == numbered:
            return everything, self
        is_new = _first_of_each(self.orders, before)
        orders = tuple(order for order, new in zip(self.orders, is_new, strict=True) if new)
        run = replace(self, orders=orders, count=len(orders)) if orders else None
        return np.array(is_new, np.bool_), run


@dataclass(frozen=True, slots=True)
class Boundary:
    """A BEGIN or END; `counts` of an END: events by collection (`public.orders`).

    `at_ms`: when the source says that it was, which is the same where it is sent again.
    """

    transaction: str
    offset: int
    text: str
    counts: Mapping[str, int] | None = None
    at_ms: int | None = None


class Taken(NamedTuple):
    """The END of a transaction that a batch holds."""

    offset: int
    at_ms: int | None


def runs_of(values: pa.Array, offsets: Sequence[int]) -> list[Run]:
    """The runs of a partition's messages.

    Args:
        values: Messages, shape (n,), n > 0: Debezium's envelope, with or without its schema.
        offsets: Theirs.
    """
    ids, orders, truncates = _transactions(values)
    goes_along = pc.or_(values.is_null(), pa.array(truncates))
    named = pc.if_else(pc.or_(ids.is_valid(), goes_along), ids, _NO_TRANSACTION)
    filled = pc.fill_null(pc.fill_null_forward(named), _BEFORE)
    codes = filled.dictionary_encode()
    numbers = codes.indices.to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    stops = np.r_[starts[1:], len(numbers)]
    names = codes.dictionary.to_pylist()
    return [
        Run(
            transaction=_transaction_of(names[numbers[start]]),
            orders=tuple(orders[start:stop].tolist()),
            end=int(offsets[stop - 1]) + 1,
            count=int(stop - start),
            truncates=bool(truncates[start:stop].any()),
            goes_along=names[numbers[start]] == _BEFORE,
        )
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]


def _transaction_of(name: str) -> str | None:
    return None if name in (_NO_TRANSACTION, _BEFORE) else name


def boundaries_of(values: Iterable[bytes | None], offsets: Sequence[int]) -> list[Boundary]:
    """The BEGIN and END events of the transaction topic; what is neither is left out."""
    found = []
    for value, offset in zip(values, offsets, strict=True):
        event = _payload(value)
        text = str(event.get("id", ""))
        counts = None
        if event.get("status") == "END":
            listed = event.get("data_collections") or ()
            counts = {str(one["data_collection"]): int(one["event_count"]) for one in listed}
        elif event.get("status") != "BEGIN":
            continue
        at_ms = event.get("ts_ms")
        at_ms = at_ms if isinstance(at_ms, int) else None
        found.append(Boundary(transaction_id(text), int(offset), text, counts, at_ms))
    return found


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a partition held when reading began where nothing says what was read of transactions.

    Kafka may show what one partition was sent later than what others were sent after it. So there
    are two looks, some seconds apart, each at the partition and at the transaction topic:

    * of an event before `end` the BEGIN is there at the second look, or its END is gone;
    * of a transaction whose END was there at the first look, the events stand before `later_end`,
      or other batches have read them, or they are gone.

    Attributes:
        end: Where the partition ended at the first look.
        boundaries_end: Where the transaction topic ended at the first; 0: ENDs say nothing here.
        later_end: Where the partition ended at the second.
        later_boundaries_end: Where the transaction topic ended at the second.
        is_left: A batch that ends anywhere came after those that end with transactions: somebody
            goes on without what does not come.
    """

    end: int
    boundaries_end: int
    later_end: int
    later_boundaries_end: int
    is_left: bool = False


@dataclass(slots=True, kw_only=True)
class TransactionCut:
    """What is buffered, by transaction; no I/O.

    Attributes:
        prefix: `topic.prefix`, which the topics' names begin with.
        partitions: Partitions of each topic that is read.
        expects: Whether a topic that is not read yet will be: a transaction waits for it.
        backlogs: Of partitions that are read from where no batch of this kind has ended, after the
            second look.
        lagging: Topics of which events have come that their tables lack of what had been taken.
    """

    prefix: str
    partitions: dict[str, int] = field(default_factory=dict)
    expects: Callable[[str], bool] = lambda _: False
    backlogs: dict[Place, Backlog] = field(default_factory=dict)
    lagging: set[str] = field(default_factory=set)
    _runs: dict[Place, deque[Run]] = field(default_factory=dict)
    _read: dict[Place, int] = field(default_factory=dict)
    _found: dict[Place, int] = field(default_factory=dict)  # messages
    _begun: set[str] = field(default_factory=set)
    _ended: OrderedDict[str, Boundary] = field(default_factory=OrderedDict)
    _lacks: dict[Place, range] = field(default_factory=dict)
    _taken: OrderedDict[str, Taken] = field(default_factory=OrderedDict)
    _seen: dict[tuple[str, str], int] = field(default_factory=dict)
    _boundaries_read: int = 0
    _ends_with_repeat: dict[Place, bool] = field(default_factory=dict)

    def remember(self, boundaries: Iterable[Boundary]) -> None:
        """What earlier batches hold: transactions that have ended before the last one."""
        for each in boundaries:
            if each.counts is not None:
                self._taken.setdefault(each.transaction, Taken(each.offset, each.at_ms))

    def has_taken(self, run: Run) -> bool:
        """Whether a batch holds its transaction; or it is of none."""
        return run.transaction is None or run.transaction in self._taken

    def let_join(self, ends: Mapping[Place, int]) -> None:
        """Partitions whose tables lack events of what has been taken until now.

        Args:
            ends: Where the last batch of each one's table ended in the transaction topic; 0: it has
                none of this partition.
        """
        last = next(reversed(self._taken.values()), None)
        stop = 0 if last is None else last.offset + 1
        self._lacks |= {place: range(end, stop) for place, end in ends.items()}

    def read_to(self, place: Place, offset: int) -> None:
        """Nothing of a partition before an offset is still to come."""
        self._read[place] = max(self._read.get(place, 0), offset)

    def add_events(self, place: Place, runs: Sequence[Run]) -> Bools:
        """Messages of a partition, in the order of their offsets.

        Returns:
            Shape (messages,): which are waited with; the others have come before.
        """
        queue = self._runs.setdefault(place, deque())
        lacks = self._lacks.get(place, range(0))
        kept = []
        for each in runs:
            if each.goes_along and self._ends_with_repeat.get(place):
                kept.append(np.zeros(each.count, np.bool_))
                continue
            is_new, run = each.without_repeats(self._seen, place[0], self._taken, lacks)
            kept.append(is_new)
            self._ends_with_repeat[place] = not is_new[-1]
            if run is None:
                continue
            if run.transaction in self._taken:
                self.lagging.add(place[0])
            if run.transaction is None and queue:
                run = replace(run, transaction=queue[-1].transaction)
            queue.append(run)
        if runs:
            self.read_to(place, runs[-1].end)
            self._found[place] = self._found.get(place, 0) + sum(run.count for run in runs)
        return np.concatenate([*kept, np.empty(0, np.bool_)])

    def add_boundaries(self, boundaries: Sequence[Boundary], read: int) -> None:
        """Events of the transaction topic; `read`: the offset after them.

        Raises:
            InvalidInputError: A transaction ends again, later: it is another one.
        """
        for each in boundaries:
            self._check_is_no_other(each)
            if each.transaction in self._taken or each.transaction in self._ended:
                continue
            if each.counts is None:
                self._begun.add(each.transaction)
            else:
                self._begun.discard(each.transaction)
                self._ended[each.transaction] = each
        self._boundaries_read = max(self._boundaries_read, read)

    def _check_is_no_other(self, end: Boundary) -> None:
        known = self._taken.get(end.transaction) or self._ended.get(end.transaction)
        if known is None or known.at_ms is None or end.at_ms is None or end.counts is None:
            return
        if end.at_ms > known.at_ms:
            raise InvalidInputError(
                "the transaction ids of the source have begun again (RESET MASTER, a restored "
                "backup, another server?): what is new cannot be told from what is sent again",
                action="give the connector another topic.prefix, so that it begins with a new "
                "snapshot, and the stream those topics",
                transaction=end.text,
                topic=f"{self.prefix}.{TRANSACTION}",
                offset=end.offset,
            )

    def forget(self, topics: Collection[str]) -> None:
        """Topics that are no longer read: no transaction waits for them."""
        for place in [place for place in self._runs if place[0] in topics]:
            del self._runs[place]
            self._ends_with_repeat.pop(place, None)
        for mine in [mine for mine in self._seen if mine[1] in topics]:
            del self._seen[mine]
        for topic in topics:
            self.partitions.pop(topic, None)

    @property
    def open_count(self) -> int:
        """Transactions that have ended and are not taken."""
        return len(self._ended)

    def waits_for(self) -> tuple[Boundary, str] | None:
        """The oldest transaction that has ended and is not whole, and the topic it waits for."""
        for end in self._ended.values():
            topic = self._missing(end)
            if topic is not None:
                return end, topic
        return None

    def take(self) -> tuple[dict[Place, int], Boundary | None]:
        """Take what a batch may hold.

        Returns:
            How many of the buffered messages of each partition, and the END of the last transaction
            in it; None: none has become whole.
        """
        whole: list[Boundary] = []
        for end in self._ended.values():
            if self._missing(end) is not None:
                break
            whole.append(end)
        for end in whole:
            del self._ended[end.transaction]
            self._taken[end.transaction] = Taken(end.offset, end.at_ms)
            for topic in self.partitions:
                self._seen.pop((end.transaction, topic), None)
        counts = {place: self._take(place) for place in self._runs}
        while len(self._taken) > KNOWN_MAX:
            self._taken.popitem(last=False)
        return {place: n for place, n in counts.items() if n}, whole[-1] if whole else None

    def _take(self, place: Place) -> int:
        queue, count = self._runs[place], 0
        is_passed = self._last_end(place) is not None
        while queue and self._may_go(queue[0], place, is_passed=is_passed):
            count += queue.popleft().count
            is_passed = is_passed and self._last_end(place) is not None
        return count

    def _may_go(self, run: Run, place: Place, *, is_passed: bool) -> bool:
        name, backlog = run.transaction, self.backlogs.get(place)
        if name is None or name in self._taken:
            return True
        if backlog is None or run.end > backlog.end or name in self._begun or name in self._ended:
            return False
        # Its END is older than what is read of the transaction topic.
        return is_passed or self._boundaries_read >= backlog.later_boundaries_end

    def _missing(self, end: Boundary) -> str | None:
        """The topic that a transaction waits for; None: it is whole."""
        for collection, count in (end.counts or {}).items():
            topic = f"{self.prefix}.{_UNFIT_FOR_TOPIC.sub('_', collection)}"
            if topic not in self.partitions:
                if self.expects(topic):
                    return topic
            elif not self._has(end, topic, count):
                return topic
        return None

    def _has(self, end: Boundary, topic: str, count: int) -> bool:
        seen = self._seen.get((end.transaction, topic), 0)
        number = self.partitions[topic]
        if (seen.bit_length() if number == 1 else seen.bit_count()) >= count:
            return True
        return all(self._is_past(end, (topic, partition)) for partition in range(number))

    def _is_past(self, end: Boundary, place: Place) -> bool:
        """Whether nothing more of a transaction can come in a partition, whatever END counts."""
        last = self._last_end(place)
        if last is not None and last.offset > end.offset:
            return True
        backlog, read = self.backlogs.get(place), self._read.get(place, 0)
        if backlog is None or read < backlog.later_end:
            return False
        # Where every message from the first one on was read, nothing is gone.
        may_lack = backlog.is_left or self._found.get(place, 0) < read
        return end.offset < backlog.boundaries_end and may_lack

    def _last_end(self, place: Place) -> Boundary | None:
        """The END of the last transaction in a partition's buffer that has one."""
        queue = self._runs.get(place, ())
        found = (self._ended.get(run.transaction or "") for run in reversed(queue))
        return next((end for end in found if end is not None), None)


def _transactions(values: pa.Array) -> tuple[pa.StringArray, Int64s, Bools]:
    """Of each message its transaction (null: none), its number in it (0), if it truncates alone."""
    ids: list[str | None] = [None] * len(values)
    orders = np.zeros(len(values), np.int64)
    truncates = np.zeros(len(values), np.bool_)
    bad: dict[int, str] = {}
    for group in split_payloads(utf8_rows(values, bad), bad):
        for rows, table in parse_json_objects(group.payloads, _EVENT).pieces:
            found = table.column(TRANSACTION).combine_chunks()
            is_loose = _loose_truncates(table)
            no_name = pa.scalar(None, pa.string())
            names = pc.if_else(is_loose, no_name, pc.struct_field(found, _ID))
            numbers = pc.fill_null(pc.struct_field(found, _ORDER).cast(pa.int64()), 0)
            at = group.rows[rows]
            orders[at] = pc.if_else(is_loose, 0, numbers).to_numpy(zero_copy_only=False)
            truncates[at] = is_loose.to_numpy(zero_copy_only=False)
            plain = names.dictionary_encode()
            short = [transaction_id(name) for name in plain.dictionary.to_pylist()]
            for row, code in zip(at.tolist(), plain.indices.to_pylist(), strict=True):
                ids[row] = None if code is None else short[code]
    return pa.array(ids, pa.string()), orders, truncates


def _loose_truncates(events: pa.Table) -> pa.BooleanArray:
    """Which events are truncates outside of transactions."""
    connectors = pc.struct_field(events.column(_SOURCE).combine_chunks(), _CONNECTOR)
    is_truncate = pc.fill_null(pc.equal(events.column(_OP).combine_chunks(), "t"), False)
    return pc.and_(is_truncate, pc.is_in(connectors, pa.array(_TRUNCATE_ALONE)))


def _payload(value: bytes | None) -> Mapping[str, Any]:
    try:
        event = json.loads(value or b"{}")
    except ValueError:
        return {}
    payload = event.get("payload", event) if isinstance(event, dict) else {}
    return payload if isinstance(payload, dict) else {}


def _first_of_each(orders: Sequence[int], seen: int) -> list[bool]:
    """Whether each number comes for the first time; one without goes with the one before it."""
    found: list[bool] = []
    for order in orders:
        bit = 1 << (order - 1) if order else 0
        found.append(not seen & bit if bit else not found or found[-1])
        seen |= bit
    return found


def _bits(orders: Collection[int]) -> int:
    """Numbers as bits; 0 is none."""
    numbers = np.fromiter(orders, np.int64, len(orders))
    numbers = numbers[numbers > 0]
    if not len(numbers):
        return 0
    places = np.zeros(int(numbers.max()), np.uint8)
    places[numbers - 1] = 1
    return int.from_bytes(np.packbits(places, bitorder="little").tobytes(), "little")
