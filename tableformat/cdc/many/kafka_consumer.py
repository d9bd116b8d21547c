"""Kafka by librdkafka, in this process: a `MessageSource`. Needs the extra `kafka`.

It reads in threads of its own, in C; Python touches a message only to take its parts out. No
consumer group is joined and no offset is committed: those are in the tables' snapshots.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tableformat.cdc.many.buffers import MESSAGE_SCHEMA
from tableformat.cdc.many.positions import NO_TOPIC_ID, Offsets, Place
from tableformat.cdc.many.source import EARLIEST, Polled
from tableformat.errors import (
    InvalidInputError,
    StoreUnavailableError,
    TableError,
    UnsupportedError,
)

try:
    import confluent_kafka

    # The client would import it from C, where a signal that comes meanwhile is lost.
    import confluent_kafka.admin
except ImportError:  # the extra is not installed
    kafka: Any = None
else:
    kafka = confluent_kafka

PREFIX = "kafka."
ANSWER_S = 15.0  # how long a question waits for a broker; a healthy one answers in milliseconds
# What waits in librdkafka for Python to take it; the rest of a backlog stays with the broker.
# It is a second or two of a busy stream, as long as staging may keep Python from taking more.
QUEUED_KB = 16 * 1024
# How long a partition waits that finds the queue full. By default a second, in which others fill it
# again: in a process that fell behind, some partitions were 20 s late where the median was 2 s.
FULL_MS = 20
FETCH_BYTES = 8 << 20  # an answer of a broker; by default 50 MiB
DEFAULTS: Mapping[str, str | int | bool] = {
    "group.id": "icefold",  # wanted by the client, never joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # what Kafka has deleted is told, never skipped
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": QUEUED_KB,
    "fetch.max.bytes": FETCH_BYTES,
    "fetch.wait.max.ms": 200,
    "fetch.queue.backoff.ms": FULL_MS,
    "topic.metadata.refresh.interval.ms": -1,  # the engine asks
    "log_level": 2,
}
_SETTING = {
    "_INVALID_ARG", "_CONFLICT", "_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
}  # fmt: skip
_GONE = {
    "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
}  # fmt: skip
_URL_SAFE = str.maketrans("+/", "-_")
_TELLS_NONE = "_UNSUPPORTED_FEATURE"
QUIET = logging.getLogger("icefold.kafka")
logger = logging.getLogger("icefold.ingest")


@dataclass(slots=True)
class KafkaConsumer:
    """A `MessageSource`.

    Args:
        servers: Bootstrap servers, `host:port,host:port`.
        settings: Settings of librdkafka, with or without the prefix `kafka.`.

    Raises:
        UnsupportedError: `confluent-kafka` is not installed.
        InvalidInputError: A setting is refused.
    """

    servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    _client: Any = None
    _warned: str = ""
    _admin: Any = None

    def __post_init__(self) -> None:
        if kafka is None:
            raise UnsupportedError(
                "reading Kafka in this process needs confluent-kafka",
                action="pip install 'icefold[kafka]', or use --engine spark",
            )
        given = {name.removeprefix(PREFIX): text for name, text in self.settings.items()}
        # Quiet: what goes wrong is told by the calls that it concerns.
        settings: dict[str, Any] = {**DEFAULTS, **given, "bootstrap.servers": self.servers}
        try:
            self._client = kafka.Consumer(settings, logger=QUIET)
            self._admin = confluent_kafka.admin.AdminClient(settings, logger=QUIET)
        except (kafka.KafkaException, ValueError, TypeError) as error:
            reason = _error_of(error).str() if _error_of(error) else str(error)
            raise InvalidInputError(
                f"Kafka's client refuses a setting: {reason}", servers=self.servers
            ) from error

    def topics(self) -> Mapping[str, int]:
        """See `MessageSource`."""
        try:
            listed = self._client.list_topics(timeout=ANSWER_S)
        except kafka.KafkaException as error:
            raise self._refused(_error_of(error)) from error
        return {
            name: len(topic.partitions) for name, topic in listed.topics.items() if not topic.error
        }

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """See `MessageSource`."""
        wanted = kafka.TopicCollection(list(topics))
        found = {}
        for topic, answer in self._admin.describe_topics(wanted, request_timeout=ANSWER_S).items():
            try:
                # As Kafka's own tools and Java's client write it.
                found[topic] = str(answer.result().topic_id).translate(_URL_SAFE)
            except kafka.KafkaException as error:
                name = _error_of(error).name()
                if name.startswith("_") and name != _TELLS_NONE:  # the client's: nobody answers
                    raise self._refused(_error_of(error)) from error
        return {topic: each for topic, each in found.items() if each != NO_TOPIC_ID}

    def assign(self, begin: Offsets) -> None:
        """See `MessageSource`."""
        if begin:
            self._client.incremental_assign([_at(place, at) for place, at in begin.items()])

    def unassign(self, places: Collection[Place]) -> None:
        """See `MessageSource`."""
        if places:
            self._client.incremental_unassign([_at(place) for place in places])

    def pause(self, places: Collection[Place]) -> None:
        """See `MessageSource`."""
        if places:
            self._client.pause([_at(place) for place in places])

    def unpause(self, places: Collection[Place]) -> None:
        """See `MessageSource`."""
        if places:
            self._client.resume([_at(place) for place in places])

    def poll(self, most: int, timeout_s: float) -> Polled:
        """See `MessageSource`."""
        by_place: dict[Place, list[Any]] = {}
        read: dict[Place, int] = {}
        gone: dict[Place, str] = {}
        for message in self._client.consume(most, timeout_s):
            if message.error() is not None:
                self._note(message, read, gone)
                continue
            place = (message.topic(), message.partition())
            found = by_place.get(place)
            if found is None:
                by_place[place] = [message]
            else:
                found.append(message)
        tables = {place: _table(messages) for place, messages in by_place.items()}
        for place, messages in by_place.items():
            read[place] = max(messages[-1].offset() + 1, read.get(place, 0))
        return Polled(tables, read, gone)

    def ends(self, places: Collection[Place]) -> Offsets:
        """See `MessageSource`."""
        return {place: end for place, (_, end) in self._marks(places).items()}

    def begins(self, places: Collection[Place]) -> Offsets:
        """See `MessageSource`."""
        return {place: begin for place, (begin, _) in self._marks(places).items()}

    def _marks(self, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
        try:
            return {
                place: self._client.get_watermark_offsets(_at(place), timeout=ANSWER_S)
                for place in places
            }
        except kafka.KafkaException as error:
            raise self._refused(_error_of(error)) from error

    def known_ends(self, places: Collection[Place]) -> Offsets:
        """See `MessageSource`."""
        found = {}
        for place in places:
            marks = self._client.get_watermark_offsets(_at(place), cached=True)
            if marks is not None and marks[1] >= 0:
                found[place] = marks[1]
        return found

    def close(self) -> None:
        """See `MessageSource`."""
        self._client.close()

    def _note(self, message: Any, read: dict[Place, int], gone: dict[Place, str]) -> None:
        error = message.error()
        name = error.name()
        place = (message.topic(), message.partition())
        if name == "_PARTITION_EOF":
            read[place] = max(message.offset(), read.get(place, 0))
        elif name in _GONE and place[0] is not None:
            gone[place] = str(error.str())
        elif error.fatal() or name in _SETTING:
            raise self._refused(error)
        elif error.str() != self._warned:  # the client tries again by itself
            self._warned = error.str()
            logger.warning("Kafka: %s", self._warned)

    def _refused(self, error: Any) -> TableError:
        reason = str(error.str())
        if error.name() in _SETTING:
            return InvalidInputError(f"Kafka refuses: {reason}", servers=self.servers)
        return StoreUnavailableError(
            f"no Kafka broker answers: {reason}",
            action="check the address, and that the broker runs",
            servers=self.servers,
        )


def _at(place: Place, offset: int | None = None) -> Any:
    if offset is None:
        return kafka.TopicPartition(*place)
    return kafka.TopicPartition(*place, kafka.OFFSET_BEGINNING if offset == EARLIEST else offset)


def _table(messages: Sequence[Any]) -> pa.Table:
    columns = [
        pa.array([message.value() for message in messages], pa.binary()),
        pa.array([message.key() for message in messages], pa.binary()),
        np.fromiter((message.offset() for message in messages), np.int64, len(messages)),
        np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages)),
    ]
    return pa.table(columns, schema=MESSAGE_SCHEMA)


def _error_of(error: BaseException) -> Any:
    """The client's own error inside an exception of it."""
    return error.args[0] if error.args and isinstance(error, kafka.KafkaException) else None
