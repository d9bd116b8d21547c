"""The stream of a soak, as a pure function of its seed: any process can make batch number n.

Keys are 0..keys-1, all there at first with value 0. Batch n takes `events` distinct keys; a tenth
of them are deleted, the others get a value that no other batch writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("note", pa.string())])
DELETED_SHARE = 0.1
ABSENT = -1


@dataclass(frozen=True)
class Stream:
    seed: int
    keys: int
    events: int

    def batch(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Upserted ids, their values, deleted ids; `number` counts from 1."""
        random = np.random.default_rng([self.seed, number])
        ids = random.choice(self.keys, min(self.events, self.keys), replace=False)
        dead = int(len(ids) * DELETED_SHARE)
        values = np.arange(len(ids) - dead, dtype=np.int64) + number * self.events
        return ids[dead:], values, ids[:dead]

    def first_rows(self) -> pa.Table:
        return self.rows(np.arange(self.keys), np.zeros(self.keys, dtype=np.int64))

    def rows(self, ids: np.ndarray, values: np.ndarray) -> pa.Table:
        note = pa.array([f"note {n}" for n in range(100)]).take(pa.array(ids % 100))
        return pa.table([pa.array(ids), pa.array(values), note], schema=SCHEMA)

    def model(self) -> Model:
        return Model(self)


class Model:
    """Value per key after some batches, -1 where there is no row."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.number = 0
        self.values = np.zeros(stream.keys, dtype=np.int64)

    def advance(self, number: int) -> None:
        while self.number < number:
            self.number += 1
            ids, values, dead = self.stream.batch(self.number)
            self.values[ids] = values
            self.values[dead] = ABSENT

    def sums(self) -> tuple[int, ...]:
        """Count, distinct ids, and sums that tell states apart."""
        ids = np.flatnonzero(self.values != ABSENT)
        values = self.values[ids]
        mixed = (ids * 7919 + values * 104729) % 1_000_003
        return (len(ids), len(ids), int(ids.sum()), int(values.sum()), int(mixed.sum()))

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        ids = np.flatnonzero(self.values != ABSENT)
        return ids, self.values[ids]


SUMS_SQL = (
    "count(*), count(DISTINCT id), sum(id), sum(value), sum((id * 7919 + value * 104729) % 1000003)"
)
