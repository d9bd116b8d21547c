"""Messages that were read and are not staged, by partition. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tableformat.cdc.events import KEY, ORDINAL, POSITION, TIMESTAMP_MS, VALUE
from tableformat.cdc.many.positions import Place

MESSAGE_SCHEMA = pa.schema(
    [(VALUE, pa.binary()), (KEY, pa.binary()), (ORDINAL, pa.int64()), (TIMESTAMP_MS, pa.int64())]
)
PLACED_SCHEMA = MESSAGE_SCHEMA.append(pa.field(POSITION, pa.string()))


@dataclass(slots=True)
class MessageBuffers:
    """Messages in the order of their offsets, in each partition."""

    events: int = 0
    size_bytes: int = 0
    _waiting: dict[Place, list[pa.Table]] = field(default_factory=dict)

    def add(self, place: Place, messages: pa.Table) -> None:
        """Messages that come after all that wait."""
        self._waiting.setdefault(place, []).append(messages)
        self._count(messages, 1)

    def counts(self) -> dict[Place, int]:
        """How many wait in each partition that has any."""
        return {place: sum(map(len, tables)) for place, tables in self._waiting.items()}

    def take(self, counts: Mapping[Place, int]) -> dict[Place, pa.Table]:
        """The first so many of each partition; they wait no longer."""
        taken = {}
        for place, count in counts.items():
            waiting = pa.concat_tables(self._waiting.pop(place))
            taken[place] = waiting.slice(0, count)
            self._count(waiting, -1)
            if count < len(waiting):
                self.add(place, waiting.slice(count))
        return taken

    def drop(self, topics: Collection[str]) -> None:
        """Forget topics."""
        for place in [place for place in self._waiting if place[0] in topics]:
            for messages in self._waiting.pop(place):
                self._count(messages, -1)

    def _count(self, messages: pa.Table, sign: int) -> None:
        self.events += sign * messages.num_rows
        self.size_bytes += sign * messages.nbytes


def by_table(
    taken: Mapping[Place, pa.Table], table_of: Callable[[str], str]
) -> dict[str, pa.Table]:
    """The messages of each table, with their position for people: `topic-3@1042`."""
    parts: dict[str, list[pa.Table]] = {}
    for (topic, partition), messages in sorted(taken.items()):
        offsets = messages.column(ORDINAL).cast(pa.string())
        shown = pc.binary_join_element_wise(f"{topic}-{partition}", offsets, "@")
        parts.setdefault(table_of(topic), []).append(messages.append_column(POSITION, shown))
    return {name: pa.concat_tables(tables) for name, tables in parts.items()}


def is_one_partition(messages: pa.Table) -> bool:
    """Whether messages of `by_table`, which has those of a partition together, are of one."""
    if not messages.num_rows:
        return True
    shown = messages.column(POSITION)
    first, last = (str(shown[at]).rpartition("@")[0] for at in (0, len(shown) - 1))
    return first == last


def next_offset(messages: pa.Table) -> int:
    """The offset after the last message."""
    return int(messages.column(ORDINAL)[-1].as_py()) + 1
