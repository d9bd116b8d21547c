"""How far each table has got in a stream, from its snapshots alone.

The newest batch of the query in a table's staging history (or in what was published from it) names
its number, all tables that it touches and the end offsets of every partition that it moved. So:

* a table begins in its topics where its own newest snapshot says;
* the newest batch of any table is complete when every table that it names has it; those that lack
  it get exactly that batch again, from their own offsets to the batch's ends (`unfinished`).

There is no other record: no checkpoint, no coordinator, no consumer group.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tableformat.catalog.base import TableState
from tableformat.cdc.batch_commit import committed
from tableformat.cdc.dead_letter import ArePutAside
from tableformat.errors import CorruptDataError, InvalidInputError
from tableformat.spec.names import BATCH_TABLES, SOURCE_OFFSETS, SOURCE_TOPICS, SOURCE_TRANSACTION

NO_TOPIC_ID = "A" * 22  # 0 in base64: what brokers before 2.8 tell

Place = tuple[str, int]
"""Topic and partition."""
Offsets = Mapping[Place, int]
"""The next offset to read, by place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePosition:
    """How far a table has got in one query.

    Attributes:
        batch: The newest batch; -1: none.
        offsets: What that batch says; also of topics of other tables that it moved.
        tables: All tables that the batch touches.
        ids: Kafka's ids of the table's topics, and of those that the batch was the first to read,
            as far as it told them.
        transaction: The last source transaction in it, if batches end with transactions.
    """

    batch: int = -1
    offsets: Offsets = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    ids: Mapping[str, str] = field(default_factory=dict)
    transaction: str | None = None

    def of_topics(self, topics: Collection[str]) -> dict[Place, int]:
        """The offsets in some topics."""
        return {place: end for place, end in self.offsets.items() if place[0] in topics}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedBatch:
    """A batch that some of its tables lack.

    Attributes:
        number: Its number.
        tables: All its tables.
        lacking: Those without it.
        ends: Where it ends in every partition that it moved.
        transaction: The last source transaction in it.
        ids: Kafka's ids of the topics that it was the first to read, as far as they were told.
    """

    number: int
    tables: tuple[str, ...]
    lacking: tuple[str, ...]
    ends: Offsets
    transaction: str | None = None
    ids: Mapping[str, str] = field(default_factory=dict)


def read_position(state: TableState, branch: str, query_id: str) -> TablePosition:
    """How far a table has got.

    Raises:
        InvalidInputError: The query has written the table, and not as a stream into many tables.
        CorruptDataError: A summary cannot be read.
    """
    done = committed(state, branch, query_id)
    if done is None:
        return TablePosition()
    if BATCH_TABLES not in done.source:
        raise InvalidInputError(
            "a query of this name has written the table, and it is no stream into many tables",
            action="give the stream another name with --query-id",
            table=state.name,
            query_id=query_id,
        )
    try:
        return TablePosition(
            batch=done.number,
            offsets=decode_offsets(done.source.get(SOURCE_OFFSETS, "{}")),
            tables=tuple(str(name) for name in json.loads(done.source[BATCH_TABLES])),
            ids=dict(json.loads(done.source.get(SOURCE_TOPICS, "{}"))),
            transaction=done.source.get(SOURCE_TRANSACTION),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptDataError(
            "the offsets in a snapshot's summary cannot be read",
            table=state.name,
            query_id=query_id,
            batch_id=done.number,
        ) from error


def unfinished(positions: Mapping[str, TablePosition]) -> UnfinishedBatch | None:
    """The newest batch, if some of its tables lack it.

    Batches that end with transactions are also looked at for what two processes, or a commit that
    landed late, have left: of one number two batches, each on some tables. What a table lacks up to
    where the other one ends is a batch of its own then, behind all that there are: the transaction
    topic is read from that end on, so nobody else would take it for new.

    Args:
        positions: Of all tables that the stream may have written.
    """
    empty = TablePosition()
    number = next_batch(positions.values()) - 1
    holders = [each for each in positions.values() if each.batch == number >= 0]
    named = sorted({name for each in holders for name in each.tables})
    lacking = [name for name in named if positions.get(name, empty).batch < number]
    if lacking:
        return UnfinishedBatch(
            number=number,
            tables=tuple(named),
            lacking=tuple(lacking),
            # Also older offsets of a table's own topics: of those no lacking table has a topic.
            ends=_furthest(holders),
            transaction=max(holders, key=_reached).transaction,
            ids={topic: told for each in holders for topic, told in each.ids.items()},
        )
    for each in sorted(positions.values(), key=_reached, reverse=True):
        known = {name: positions[name] for name in each.tables if name in positions}
        behind = [n for n, p in known.items() if 0 <= _reached(p) < _reached(each)]
        if behind:
            return UnfinishedBatch(
                number=number + 1,
                tables=tuple(behind),
                lacking=tuple(behind),
                ends=each.offsets,
                transaction=each.transaction,
            )
    return None


def topic_made_anew(
    before: Mapping[str, str], now: Mapping[str, str], topics: Collection[str]
) -> str | None:
    """Why a table cannot go on in its topics: one has another id than it had; None: it can.

    Its offsets begin again at 0. Once they have reached those of before, nothing else tells.
    """
    for topic in topics:
        if before.get(topic) != now.get(topic) and topic in before and topic in now:
            return (
                f"topic {topic} was deleted and made anew (its id was {before[topic]}, is "
                f"{now[topic]}), so offsets of before say nothing of it: drop the table and load "
                "it anew; or --resume it, if messages have the offsets that they had (a cluster "
                "that was copied)"
            )
    return None


def transactions_end(offsets: Offsets) -> int:
    """Where a batch ends in the transaction topic; -1: batches do not end with transactions."""
    ends = (at for place, at in offsets.items() if _tells_transactions(place))
    return max(ends, default=-1)


def without_transactions(found: UnfinishedBatch) -> UnfinishedBatch:
    """The batch as one that ends anywhere."""
    ends = {place: at for place, at in found.ends.items() if not _tells_transactions(place)}
    return replace(found, ends=ends, transaction=None)


def _tells_transactions(place: Place) -> bool:
    return place[0].endswith(".transaction")


def _reached(position: TablePosition) -> int:
    return transactions_end(position.offsets)


def _furthest(positions: Iterable[TablePosition]) -> dict[Place, int]:
    ends: dict[Place, int] = {}
    for each in positions:
        for place, at in each.offsets.items():
            ends[place] = max(at, ends.get(place, at))
    return ends


def next_batch(positions: Iterable[TablePosition]) -> int:
    """The number of the batch after all that are there."""
    return max((each.batch for each in positions), default=-1) + 1


def batch_summary(position: TablePosition) -> dict[str, str]:
    """What a table's snapshot says of its batch, beside the exactly-once marker.

    Args:
        position: How far the table has got with it.
    """
    summary = {
        BATCH_TABLES: json.dumps(position.tables, separators=(",", ":")),
        SOURCE_OFFSETS: encode_offsets(position.offsets),
    }
    if position.ids:
        summary[SOURCE_TOPICS] = json.dumps(dict(position.ids), separators=(",", ":"))
    if position.transaction is not None:
        summary[SOURCE_TRANSACTION] = position.transaction
    return summary


def known_letters(own: Offsets, source: Mapping[str, str]) -> ArePutAside | None:
    """Which bad records are put aside already: those of batches of which nothing else landed.

    Args:
        own: Where the table begins in its topics.
        source: What the newest commit of its bad records says; see `dead_letter.put_aside`.
    """
    ends = decode_offsets(source.get(SOURCE_OFFSETS))
    ahead = {place: end for place, end in ends.items() if end > own.get(place, 0)}
    if not ahead:
        return None

    def are_put_aside(positions: pa.Array) -> pa.Array:
        found = pc.extract_regex(positions, r"^(?P<place>.*)@(?P<offset>\d+)$")
        places = pa.array([f"{topic}-{partition}" for topic, partition in ahead])
        end = pa.array(list(ahead.values()), pa.int64()).take(
            pc.index_in(pc.struct_field(found, "place"), places)
        )
        offset = pc.struct_field(found, "offset").cast(pa.int64())
        return pc.fill_null(pc.less(offset, end), False)

    return are_put_aside


def encode_offsets(offsets: Offsets) -> str:
    """`{"topic":{"0":42}}`, as Spark writes Kafka's offsets."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


def decode_offsets(given: Any) -> dict[Place, int]:
    """From the text of `encode_offsets`, or what it says; a `ValueError` or its like if it is none.

    None, where Spark has nothing to tell yet, is no offsets.
    """
    topics = json.loads(given) if isinstance(given, str) else given or {}
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }
