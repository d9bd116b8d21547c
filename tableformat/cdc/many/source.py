"""Where the messages of many topics come from: the seam between the engine and Kafka."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from tableformat.cdc.many.positions import Offsets, Place

EARLIEST = -2  # as an offset to begin at, as Kafka's clients and Spark have it
POLL_MESSAGES = 5_000
POLL_S = 0.05  # what a change waits for at most before it is looked at
STILL_MS = 60_000  # nothing moves for so long: say so, or stop if there is an end


@dataclass(frozen=True, slots=True)
class Polled:
    """What one poll brought.

    Attributes:
        messages: By partition, in the order of their offsets: `value`, `key`, `_ordinal` (the
            offset) and `_timestamp_ms`.
        read: The next offset of each partition that moved; also past offsets without a message.
        gone: Partitions whose next message Kafka no longer has, and what it says.
    """

    messages: Mapping[Place, pa.Table] = field(default_factory=dict)
    read: Offsets = field(default_factory=dict)
    gone: Mapping[Place, str] = field(default_factory=dict)


class MessageSource(Protocol):
    """Topics of one cluster, read by partition. One thread calls it."""

    def topics(self) -> Mapping[str, int]:
        """All topics, with their number of partitions.

        Raises:
            StoreUnavailableError: No broker answers.
            InvalidInputError: A setting is refused.
        """

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """What tells these topics from others that had their names before, where brokers say so.

        Raises:
            StoreUnavailableError: No broker answers.
        """

    def assign(self, begin: Offsets) -> None:
        """Read these partitions too, from these offsets (`EARLIEST`: the first there is)."""

    def unassign(self, places: Collection[Place]) -> None:
        """Do not read these any more."""

    def pause(self, places: Collection[Place]) -> None:
        """Bring no messages of these for now."""

    def unpause(self, places: Collection[Place]) -> None:
        """Bring them again."""

    def poll(self, most: int, timeout_s: float) -> Polled:
        """At most so many messages, as soon as there are any; nothing after the timeout.

        Raises:
            StoreUnavailableError, InvalidInputError: What Kafka says cannot be waited for.
        """

    def ends(self, places: Collection[Place]) -> Offsets:
        """Where these partitions end now, asked of the brokers."""

    def begins(self, places: Collection[Place]) -> Offsets:
        """The first offset that these partitions still have."""

    def known_ends(self, places: Collection[Place]) -> Offsets:
        """The same as the last answers had it, without asking."""

    def close(self) -> None:
        """Stop reading."""
