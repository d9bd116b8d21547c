"""Keys that are computed from their number, so a table of any size needs no data files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, LongType, NestedField, StringType

from resolver.index.base import IndexBinding, IndexedFile
from resolver.index.build import SourceFile
from resolver.index.entry import POSITION_COLUMN
from resolver.keys import EncodedKeys, KeySchema, encode_keys

FILE_ROWS = 1_000_000
BATCH_ROWS = 1 << 18
STRING_BYTES = 16

Uint64s = npt.NDArray[np.uint64]
# The two hexadecimal digits of each byte, in the order in which they stand in memory.
_DIGITS = np.frombuffer(bytes(range(256)).hex().encode(), dtype=np.uint16)


@dataclass(frozen=True)
class KeyRange:
    """The rows of a table, each with a key of its own, in an order that looks random.

    Attributes:
        rows: How many.
        are_strings: 16 hexadecimal digits instead of an int64. The digits are those of a hash: no
            two neighbours are alike, so nothing of a key can be left out.
    """

    rows: int
    are_strings: bool

    @property
    def key(self) -> KeySchema:
        """The key's columns."""
        kind: IcebergType = StringType() if self.are_strings else LongType()
        return KeySchema.of(Schema(NestedField(1, "id", kind, required=True)), [1])

    @property
    def binding(self) -> IndexBinding:
        """That of an index of these rows."""
        return IndexBinding(
            table_uuid="bench",
            branch="main",
            key_fingerprint=self.key.fingerprint,
            snapshot_id=None,
            sequence_number=0,
        )

    def keys(self, ids: npt.NDArray[np.integer]) -> EncodedKeys:
        """The keys with these ids, of `range(rows)`."""
        return encode_keys([self._column(ids.astype(np.uint64))], self.key)

    def sources(self) -> list[SourceFile]:
        """Data files that hold each row once."""
        return [
            SourceFile(
                IndexedFile(file_path=f"f{start}", spec_id=0),
                min(FILE_ROWS, self.rows - start),
                lambda start=start: self._read(start),  # type: ignore[misc]
            )
            for start in range(0, self.rows, FILE_ROWS)
        ]

    def _read(self, start: int) -> Iterator[pa.RecordBatch]:
        stop = min(start + FILE_ROWS, self.rows)
        for first in range(start, stop, BATCH_ROWS):
            row = np.arange(first, min(first + BATCH_ROWS, stop), dtype=np.uint64)
            id_ = row * np.uint64(self._step) % np.uint64(self.rows)
            position = pa.array((row - np.uint64(start)).astype(np.int64))
            yield pa.record_batch([self._column(id_), position], names=["id", POSITION_COLUMN])

    @property
    def _step(self) -> int:
        """Has no divisor in common with the rows, so that each id comes up once."""
        step = int(self.rows * 0.6180339887) | 1
        while gcd(step, self.rows) > 1:
            step += 2
        return step

    def _column(self, ids: Uint64s) -> pa.Array:
        if not self.are_strings:
            return pa.array(ids.astype(np.int64))
        digits = _DIGITS[_mixed(ids).view(np.uint8)]
        offsets = np.arange(len(ids) + 1, dtype=np.int32) * STRING_BYTES
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
        return pa.StringArray.from_buffers(len(ids), buffers[1], buffers[2])


def _mixed(values: Uint64s) -> Uint64s:
    """A hash of 64 bits that no two values share: odd factors and shifted XORs can be undone."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return np.ascontiguousarray(values ^ (values >> np.uint64(31)))
