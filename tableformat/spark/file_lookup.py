"""What a scan knows about each file, made available per row of Spark's own Parquet scan.

Spark says of every row which file it is from (`_metadata`), as constants per file: its size and
its name. One of them, as a number, is the file's key; a table without collisions leads from the
key to the file's ordinal, and arrays by ordinal hold everything else:

```
key = file size | crc32(file name)                    long, constant within a file
ordinal = slots[key mod length(slots)]                int; checked: keys[ordinal] = key
dead = bit (row_index mod 64) of words[word_offsets[ordinal] + row_index div 64]
```

All arrays together are one row of a local relation, read through scalar subqueries: they reach the
executors with the task's code, nothing is joined or shuffled, and the check costs a few
nanoseconds per row. Files whose keys are equal go into different scans (`split_by_key`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tableformat.files.deletion_vector import Positions

# Files of one scan: keeps the table of slots (about n*n/6 ints) below a megabyte.
FILES_MAX = 1000
# Words of all files of one scan, 16 MiB: every task carries them. 134 million rows.
WORDS_MAX = 1 << 21

ROW_INDEX = "__icefold_row_index"
FILE_SIZE = "__icefold_file_size"
FILE_NAME = "__icefold_file_name"


class FileKey(Enum):
    """The per-file constant that tells files of one scan apart."""

    SIZE = "size"
    NAME = "name"

    def of(self, path: str, size_bytes: int) -> int:
        """The key as the driver computes it."""
        if self is FileKey.SIZE:
            return size_bytes
        return zlib.crc32(file_name(path).encode())

    def column(self) -> Column:
        """The key as Spark computes it, from the helper columns of the scan."""
        if self is FileKey.SIZE:
            return sf.col(FILE_SIZE)
        return sf.crc32(sf.col(FILE_NAME).cast("binary"))


@dataclass(frozen=True, slots=True)
class LookedUpFile:
    """One file of a scan."""

    path: str
    size_bytes: int
    record_count: int


def file_name(path: str) -> str:
    """The last segment of a location."""
    return path.rsplit("/", 1)[-1]


def split_by_key(
    files: Sequence[LookedUpFile], *, words_max: int = WORDS_MAX
) -> list[tuple[FileKey, list[int]]]:
    """Cut files into scans within which one key tells them apart.

    Returns:
        Per scan its key and the indices of its files.
    """
    best: list[tuple[FileKey, list[int]]] = []
    for key in FileKey:
        scans = [(key, members) for members in _split(files, key, words_max)]
        if not best or len(scans) < len(best):
            best = scans
    return best


def _split(files: Sequence[LookedUpFile], key: FileKey, words_max: int) -> list[list[int]]:
    scans: list[list[int]] = []
    keys: list[set[int]] = []
    words: list[int] = []
    first_open = 0
    for index, file in enumerate(files):
        value, size = key.of(file.path, file.size_bytes), word_count(file.record_count)
        at = first_open
        while at < len(scans) and (value in keys[at] or words[at] + size > words_max):
            at += 1
        if at == len(scans):
            scans.append([])
            keys.append(set())
            words.append(0)
        scans[at].append(index)
        keys[at].add(value)
        words[at] += size
        while first_open < len(scans) and len(scans[first_open]) >= FILES_MAX:
            first_open += 1
    return scans


def word_count(record_count: int) -> int:
    """64-bit words that hold one bit per row."""
    return (record_count + 63) // 64


def deleted_words(positions: Positions, record_count: int) -> NDArray[np.int64]:
    """A bit per row, set where the row is deleted; int64 of shape (word_count,)."""
    bits = np.zeros(word_count(record_count) * 64, dtype=np.uint8)
    bits[np.asarray(positions.to_array(), dtype=np.uint64)] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


class FileLookup:
    """The arrays of one scan as Spark columns.

    Args:
        spark: The session.
        key: Tells the files apart.
        files: The scan's files.
        words: Per file its deleted rows as bits, or None; all None leaves them out.
        values: Further arrays by name: one Arrow array each, in file order.
    """

    def __init__(
        self,
        spark: SparkSession,
        key: FileKey,
        files: Sequence[LookedUpFile],
        *,
        words: Sequence[NDArray[np.int64] | None] = (),
        values: dict[str, pa.Array] | None = None,
    ) -> None:
        self._key = key
        keys = np.array([key.of(file.path, file.size_bytes) for file in files], dtype=np.int64)
        slots = build_slots(keys)
        self._slot_count = len(slots)
        self.has_words = any(each is not None for each in words)
        arrays: dict[str, pa.Array] = {"slots": pa.array(slots), "keys": pa.array(keys)}
        if self.has_words:
            joined, offsets = _joined(words)
            arrays |= {"words": pa.array(joined), "word_offsets": pa.array(offsets)}
        arrays |= values or {}
        self._relation = _one_row(spark, arrays)

    def value(self, name: str) -> Column:
        """The entry of an array for the row's file."""
        return sf.get(self._array(name), self._ordinal())

    def is_live(self) -> Column:
        """Whether the row is not deleted by position.

        A file that the scan does not know (its size is not what its manifest entry says) fails
        the query: its deletes cannot be told.
        """
        row_index = sf.col(ROW_INDEX)
        offset = sf.when(
            sf.get(self._array("keys"), self._ordinal()) == self._key.column(),
            self.value("word_offsets"),
        ).otherwise(sf.raise_error(_unknown_file()).cast("long"))
        word = sf.get(self._array("words"), (offset + sf.shiftright(row_index, 6)).cast("int"))
        bit = sf.bit_get(word, row_index.bitwiseAND(sf.lit(63)).cast("int"))
        return (offset < 0) | (bit == 0)

    def check(self) -> Column:
        """True, or the query fails because the row is of a file the scan does not know."""
        known = sf.get(self._array("keys"), self._ordinal()) == self._key.column()
        return sf.when(known, sf.lit(True)).otherwise(
            sf.raise_error(_unknown_file()).cast("boolean")
        )

    def _ordinal(self) -> Column:
        slot = (self._key.column() % sf.lit(self._slot_count)).cast("int")
        return sf.get(self._array("slots"), slot)

    def _array(self, name: str) -> Column:
        return self._relation.select(name).scalar()


def helper_columns(frame: DataFrame) -> list[Column]:
    """The per-row facts that the lookup needs; the optimizer drops those that are not used."""
    metadata = frame.metadataColumn("_metadata")
    return [
        metadata.getField("row_index").alias(ROW_INDEX),
        metadata.getField("file_size").alias(FILE_SIZE),
        metadata.getField("file_name").alias(FILE_NAME),
    ]


def build_slots(keys: NDArray[np.int64]) -> NDArray[np.int32]:
    """A table with `table[key mod len(table)] = index of key`, -1 elsewhere, without collisions.

    Args:
        keys: Distinct and not negative, int64 of shape (n,).
    """
    size = max(len(keys), len(keys) * len(keys) // 6)
    while len(np.unique(keys % size)) < len(keys):
        size += 1
    slots = np.full(size, -1, dtype=np.int32)
    slots[keys % size] = np.arange(len(keys), dtype=np.int32)
    return slots


def _joined(
    words: Sequence[NDArray[np.int64] | None],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    offsets, parts, end = [], [], 0
    for part in words:
        offsets.append(-1 if part is None else end)
        if part is not None:
            parts.append(part)
            end += len(part)
    return np.concatenate(parts), np.array(offsets, dtype=np.int64)


def _one_row(spark: SparkSession, arrays: dict[str, pa.Array]) -> DataFrame:
    columns = [
        pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), array)
        for array in arrays.values()
    ]
    return spark.createDataFrame(pa.table(columns, names=list(arrays)))


def _unknown_file() -> Column:
    return sf.concat(
        sf.lit("the scan does not know this file, or its size differs from its manifest entry: "),
        sf.col(FILE_NAME),
    )
