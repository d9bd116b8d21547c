"""A `MessageSource` in memory, stricter than Kafka: it refuses what Kafka would let pass.

Several sources may read one `FakeCluster`, as processes that come after each other do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tableformat.cdc.many.buffers import MESSAGE_SCHEMA
from tableformat.cdc.many.source import EARLIEST, Polled

Place = tuple[str, int]
Message = tuple[str | bytes | None, str | bytes | None]  # key and value


@dataclass
class FakeCluster:
    """Topics with their messages.

    `first`: offsets below which Kafka has deleted. `ids`: of topics that were made anew; others
    have their names. `tells_ids`: as brokers from 2.8 on.
    """

    logs: dict[Place, list[Message]] = field(default_factory=dict)
    first: dict[Place, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    tells_ids: bool = True

    def create(self, topic: str, partitions: int = 1) -> None:
        for number in range(partitions):
            self.logs.setdefault((topic, number), [])

    def partitions(self, topic: str) -> int:
        """How many a topic has, or will have once something is sent to it."""
        return max(1, sum(name == topic for name, _ in self.logs))

    def make_anew(self, topic: str) -> None:
        """Delete a topic, and create it again with as many partitions."""
        self.ids[topic] = f"{self.ids.get(topic, topic)}'"
        for place in [place for place in self.logs if place[0] == topic]:
            self.logs[place] = []
            self.first.pop(place, None)

    def delete_records(self, place: Place) -> None:
        """Delete all that a partition has, as retention does."""
        self.first[place] = len(self.logs[place])

    def send(self, topic: str, *messages: Message, partition: int = 0) -> None:
        self.create(topic, partition + 1)
        self.logs[topic, partition].extend(messages)

    def source(self, chunk: int = 1_000_000) -> FakeSource:
        return FakeSource(self, chunk)


@dataclass
class FakeSource:
    """One reader; `chunk`: messages of one partition that a poll brings at most."""

    cluster: FakeCluster
    chunk: int
    at: dict[Place, int] = field(default_factory=dict)
    paused: set[Place] = field(default_factory=set)
    closed: bool = False
    turn: int = 0

    def topics(self) -> Mapping[str, int]:
        self._check_open()
        counts: dict[str, int] = {}
        for topic, _ in self.cluster.logs:
            counts[topic] = counts.get(topic, 0) + 1
        return counts

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        self._check_open()
        known = {topic for topic, _ in self.cluster.logs} if self.cluster.tells_ids else set()
        return {topic: self.cluster.ids.get(topic, topic) for topic in topics if topic in known}

    def assign(self, begin: Mapping[Place, int]) -> None:
        self._check_open()
        for place, offset in begin.items():
            assert place in self.cluster.logs, f"no such partition: {place}"
            assert place not in self.at, f"read twice: {place}"
            assert offset >= 0 or offset == EARLIEST, f"no offset: {offset}"
            self.at[place] = self.cluster.first.get(place, 0) if offset == EARLIEST else offset

    def unassign(self, places: Collection[Place]) -> None:
        for place in places:
            del self.at[place]
            self.paused.discard(place)

    def pause(self, places: Collection[Place]) -> None:
        assert set(places) <= set(self.at)
        assert self.paused.isdisjoint(places)
        self.paused.update(places)

    def unpause(self, places: Collection[Place]) -> None:
        assert self.paused.issuperset(places)
        self.paused.difference_update(places)

    def poll(self, most: int, timeout_s: float) -> Polled:
        self._check_open()
        assert most > 0
        assert timeout_s > 0
        messages, read, gone = {}, {}, {}
        self.turn += 1
        places = sorted(self.at)
        turn = self.turn % max(len(places), 1)
        for place in places[turn:] + places[:turn]:
            at, log = self.at[place], self.cluster.logs[place]
            if at < self.cluster.first.get(place, 0) or at > len(log):
                gone[place] = "Offset out of range"
                continue
            found = [] if place in self.paused else log[at : at + min(most, self.chunk)]
            if found:
                most -= len(found)
                messages[place] = _table(found, at)
                self.at[place] = read[place] = at + len(found)
            elif place not in self.paused:
                read[place] = at
            if not most:
                break
        return Polled(messages, read, gone)

    def ends(self, places: Collection[Place]) -> Mapping[Place, int]:
        self._check_open()
        return {place: len(self.cluster.logs[place]) for place in places}

    def begins(self, places: Collection[Place]) -> Mapping[Place, int]:
        self._check_open()
        return {place: self.cluster.first.get(place, 0) for place in places}

    def known_ends(self, places: Collection[Place]) -> Mapping[Place, int]:
        return self.ends(places)

    def close(self) -> None:
        self._check_open()
        self.closed = True

    def _check_open(self) -> None:
        assert not self.closed, "the source was closed"


def _table(messages: list[Message], first: int) -> pa.Table:
    columns = [
        [value.encode() if isinstance(value, str) else value for _, value in messages],
        [key.encode() if isinstance(key, str) else key for key, _ in messages],
        list(range(first, first + len(messages))),
        [1] * len(messages),
    ]
    arrays = [pa.array(c, kind) for c, kind in zip(columns, MESSAGE_SCHEMA.types, strict=True)]
    return pa.table(arrays, schema=MESSAGE_SCHEMA)
