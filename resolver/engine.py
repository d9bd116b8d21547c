"""Which engine a cycle runs on: threads of this process, or Spark's executors.

A Spark job costs tenths of a second before it does anything, so small batches stay in this process
even where there is a cluster. `auto` takes Spark when a session is there and one of these is
reached:

| table property | default | what is counted |
|---|---|---|
| `icefold.resolve.spark-rows-min` | 5 000 000 | rows of staged data and delete files |
| `icefold.resolve.spark-bytes-min` | 536 870 912 | bytes of them that are read |

Of data files the key columns are read, and all only where rows are written once more: a million
wide rows are a small batch, if their keys are short.

Where deletes on other columns than the key must be joined with the target, its files count too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.table.metadata import TableMetadata

from resolver.runner import LocalRunner, Runner
from tableformat.errors import InvalidInputError
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.spec.decimal_text import parse_decimal

EngineName = Literal["auto", "local", "spark"]
ENGINES: tuple[EngineName, ...] = ("auto", "local", "spark")

SPARK_ROWS_MIN = "icefold.resolve.spark-rows-min"
SPARK_ROWS_MIN_DEFAULT = 5_000_000
SPARK_BYTES_MIN = "icefold.resolve.spark-bytes-min"
SPARK_BYTES_MIN_DEFAULT = 512 << 20


@dataclass(slots=True, kw_only=True)
class Engine:
    """The choice of one resolve. What was chosen last is `runner`.

    Attributes:
        name: What the caller asked for.
        spark: The executors; None where there is no session.
        local: This process.
        runner: The choice.
    """

    name: EngineName = "auto"
    spark: Runner | None = None
    local: Runner = field(default_factory=LocalRunner)
    runner: Runner = field(init=False)

    def __post_init__(self) -> None:
        self.runner = self.spark if self.name == "spark" and self.spark is not None else self.local

    def choose(
        self,
        metadata: TableMetadata,
        *,
        changes: Sequence[DataFile],
        target: Callable[[], Sequence[DataFile]],
        whole_rows: bool = False,
    ) -> Runner:
        """Choose by what waits.

        Args:
            metadata: The table: its key and its properties.
            changes: Files to resolve.
            target: Gives the data files of the target, if deletes on other columns are joined with.
            whole_rows: Rows are read, too, and not only their keys.

        Raises:
            InvalidInputError: A property is no number.
        """
        rows_min, bytes_min = thresholds(metadata.properties)
        if self.name == "auto" and self.spark is not None:
            key = sorted(metadata.schema().identifier_field_ids)
            joined = target() if any(_is_joined(file, key) for file in changes) else ()
            rows = sum(file.record_count for file in (*changes, *joined))
            size_bytes = sum(file.file_size_in_bytes for file in joined)
            size_bytes += sum(_read_bytes(file, None if whole_rows else key) for file in changes)
            is_large = rows >= rows_min or size_bytes >= bytes_min
            self.runner = self.spark if is_large else self.local
        return self.runner

    def runner_for_rows(self, rows: int, properties: Mapping[str, str]) -> Runner:
        """Where to build an index of so many rows: also Spark when the batch itself is small."""
        if self.name == "auto" and self.spark is not None and rows >= thresholds(properties)[0]:
            return self.spark
        return self.runner


def thresholds(properties: Mapping[str, str]) -> tuple[int, int]:
    """Rows and bytes from which Spark is taken.

    Raises:
        InvalidInputError: A property is not a number of rows or bytes.
    """
    return (
        _number(properties, SPARK_ROWS_MIN, SPARK_ROWS_MIN_DEFAULT),
        _number(properties, SPARK_BYTES_MIN, SPARK_BYTES_MIN_DEFAULT),
    )


def check_engine(name: str) -> EngineName:
    """An engine by name.

    Raises:
        InvalidInputError: There is no such engine.
    """
    for known in ENGINES:
        if name == known:
            return known
    raise InvalidInputError("no such engine", engine=repr(name), action="use auto, local or spark")


def _is_joined(file: DataFile, key: list[int]) -> bool:
    is_equality_delete = file.content == FileContent.EQUALITY_DELETES
    return is_equality_delete and sorted(file.equality_ids or ()) != key


def _read_bytes(file: DataFile, key: Sequence[int] | None) -> int:
    """What is read of a file, of whose rows only the columns of `key` are wanted; None: all."""
    sizes = file.column_sizes or {}
    if key is None or file.content != FileContent.DATA or not all(each in sizes for each in key):
        return file.file_size_in_bytes
    return sum(sizes[each] for each in key)


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name)
    if text is None:
        return default
    number = parse_decimal(text)
    if number is None:
        raise InvalidInputError(
            "a table property is not a number", property=name, value=repr(text[:80])
        )
    return number
