"""What a scan knows about each file, made available per row of Spark's own Parquet scan.

Spark says of every row which file it is from (`_metadata`), as constants per file: its size and
its name. One of them, as a number, is the file's key; a table without collisions leads from the
key to a slot of its own, and arrays hold everything else:

```
key = file size | crc32(file name)                    long, constant within a file
slot = key mod slot count                             int; checked: keys[slot] = key
dead = bit (row_index mod 64) of words[word_starts[slot] + row_index div 64]
other values = array[slots[slot]]
```

All arrays together are one row of a local relation, read through scalar subqueries: they reach the
executors with the task's code, nothing is joined or shuffled, and the check costs a few
nanoseconds per row. Files whose keys are equal go into different scans (`split_by_key`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
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
_METADATA_FIELDS = {ROW_INDEX: "row_index", FILE_SIZE: "file_size", FILE_NAME: "file_name"}

UNKNOWN_KEY = -1
# Where the words of a file without deleted rows would start: past every word there is.
NO_WORDS = 1 << 30


class FileKey(Enum):
    """The per-file constant that tells files of one scan apart."""

    SIZE = "size"
    NAME = "name"

    @property
    def helper(self) -> str:
        """The helper column it is computed from."""
        return FILE_SIZE if self is FileKey.SIZE else FILE_NAME

    def of(self, path: str, size_bytes: int) -> int:
        """The key as the driver computes it."""
        if self is FileKey.SIZE:
            return size_bytes
        return zlib.crc32(file_name(path).encode())

    def column(self) -> Column:
        """The key as Spark computes it, from the helper column."""
        helper = sf.col(self.helper)
        return helper if self is FileKey.SIZE else sf.crc32(helper.cast("binary"))


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
        values: Mapping[str, pa.Array] | None = None,
    ) -> None:
        self._key = key
        keys = np.array([key.of(file.path, file.size_bytes) for file in files], dtype=np.int64)
        slots = build_slots(keys)
        self._slot_count = len(slots)
        self._has_words = any(each is not None for each in words)
        arrays: dict[str, pa.Array] = {"keys": pa.array(_by_slot(keys, slots, UNKNOWN_KEY))}
        if self._has_words:
            joined, starts = _joined(words)
            by_slot = _by_slot(starts, slots, NO_WORDS)
            arrays |= {"words": pa.array(joined), "word_starts": pa.array(by_slot)}
        if values:
            arrays |= {"slots": pa.array(slots), **values}
        relation = _one_row(spark, arrays)
        self._arrays = {name: relation.select(name).scalar() for name in arrays}

    @property
    def helpers(self) -> frozenset[str]:
        """Helper columns that the scan must provide."""
        return frozenset({self._key.helper, *((ROW_INDEX,) if self._has_words else ())})

    def value(self, name: str) -> Column:
        """The entry of an array for the row's file."""
        return sf.get(self._arrays[name], sf.get(self._arrays["slots"], self._slot()))

    def is_live(self) -> Column:
        """Whether the row is not deleted by position.

        A file that the scan does not know (its size is not what its manifest entry says) fails
        the query: its deletes cannot be told.
        """
        if not self._has_words:
            return self._checked(sf.lit(True))
        row_index = sf.col(ROW_INDEX)
        start = self._checked(sf.get(self._arrays["word_starts"], self._slot()))
        word = sf.get(self._arrays["words"], (start + sf.shiftright(row_index, 6)).cast("int"))
        bit = sf.bit_get(word, row_index.bitwiseAND(sf.lit(63)).cast("int"))
        return sf.coalesce(bit, sf.lit(0)) == 0

    def _checked(self, value: Column) -> Column:
        """`value`, or the query fails because the row is of a file the scan does not know."""
        key = self._key.column()
        message = sf.concat(
            sf.lit("a file is not as its manifest entry says; its size or name: "),
            sf.col(self._key.helper).cast("string"),
        )
        is_known = sf.get(self._arrays["keys"], self._slot()) == key
        return sf.when(is_known, value).otherwise(sf.raise_error(message))

    def _slot(self) -> Column:
        return (self._key.column() % sf.lit(self._slot_count)).cast("int")


def helper_columns(frame: DataFrame, helpers: Iterable[str]) -> list[Column]:
    """Per-row facts about the file, as columns of these names. Each costs: ask for few."""
    metadata = frame.metadataColumn("_metadata")
    return [metadata.getField(_METADATA_FIELDS[name]).alias(name) for name in sorted(helpers)]


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


def _by_slot(values: NDArray[np.int64], slots: NDArray[np.int32], empty: int) -> NDArray[np.int64]:
    return np.where(slots < 0, empty, values[slots])


def _joined(
    words: Sequence[NDArray[np.int64] | None],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts, parts, end = [], [], 0
    for part in words:
        starts.append(NO_WORDS if part is None else end)
        if part is not None:
            parts.append(part)
            end += len(part)
    return np.concatenate(parts), np.array(starts, dtype=np.int64)


def _one_row(spark: SparkSession, arrays: dict[str, pa.Array]) -> DataFrame:
    columns = [
        pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), array)
        for array in arrays.values()
    ]
    return spark.createDataFrame(pa.table(columns, names=list(arrays)))
