"""Which data files are rewritten together: a pure function of a scan plan and the options.

Files of a group have one partition spec and one partition. What is staged and not resolved may name
that spec and partition, so a compaction never moves a row out of them.

Small files are merged in tiers: going up in size, a file joins while it is at most `GROWTH_MAX`
times as large as all smaller ones together. So under a stream that adds small files for ever, each
byte is rewritten O(log) times until its file has the target size, and not with every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyiceberg.table.metadata import TableMetadata

from maintenance.tasks.options import CompactOptions
from tableformat.codec.parquet.options import parquet_options
from tableformat.commit.matching import FileMatcher
from tableformat.errors import CorruptDataError
from tableformat.scan.delete_index import referenced_path, sequence_number
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.scan.row_filter import parse_filter
from tableformat.spec.data_file import DeleteFileKey, PartitionKey
from tableformat.write.row_deletes import has_vectors

GROWTH_MAX = 2
FULL_AVERAGE = 1.1  # files may get this much larger than the target to avoid a sliver


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files that are rewritten together, and committed together or not at all; oldest first.

    Attributes:
        tasks: What to read.
        target_size_bytes: Size at which a new file is closed.
    """

    tasks: tuple[FileScanTask, ...]
    target_size_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(task.entry.data_file.file_size_in_bytes for task in self.tasks)

    @property
    def rows(self) -> int:
        """Rows to read, dead ones included."""
        return sum(task.entry.data_file.record_count for task in self.tasks)

    @property
    def deleted_rows(self) -> int:
        """Rows that deletion vectors have killed; on v2 those that are known to be dead."""
        return sum(deleted_rows(task) for task in self.tasks)


def plan_groups(
    plan: ScanPlan, metadata: TableMetadata, options: CompactOptions
) -> list[FileGroup]:
    """Groups that are worth a rewrite; those that save most per byte come first.

    Args:
        plan: All files of the branch's head, unfiltered, or its `candidates`.
        metadata: The table.
        options: Checked.

    Raises:
        InvalidInputError: The filter does not fit the table, or a table property is malformed.
        CorruptDataError: A data file is listed twice.
    """
    _check_listed_once(plan)
    sizes = Sizes.of(metadata, options, plan)
    partitions: dict[PartitionKey, list[FileScanTask]] = {}
    matcher = (
        None if options.filter is None else FileMatcher(metadata, parse_filter(options.filter))
    )
    for task in plan.tasks:
        file = task.entry.data_file
        if matcher is None or matcher.may_match(file):
            partitions.setdefault(file.partition_key, []).append(task)
    groups = [group for tasks in partitions.values() for group in _groups(tasks, sizes)]
    groups.sort(key=_benefit, reverse=True)
    return list(_within(groups, options.rewrite_bytes_max))


def _check_listed_once(plan: ScanPlan) -> None:
    """A rewrite would make lasting copies of its rows."""
    listed = Counter(task.entry.data_file.file_path for task in plan.tasks)
    path, times = max(listed.items(), key=lambda each: each[1], default=("", 0))
    if times > 1:
        raise CorruptDataError(
            f"a data file is listed {times} times, and readers have its rows as often",
            action="`icefold rewrite-manifests --rewrite-all` lists it once",
            location=path,
        )


def deleted_rows(task: FileScanTask) -> int:
    """Rows of the file that its deletion vector kills, or v2's delete files for it alone."""
    own = [e for e in task.position_deletes if referenced_path(e.data_file) is not None]
    if task.dv is not None:
        own = [task.dv]
    rows = sum(entry.data_file.record_count for entry in own)
    return min(rows, task.entry.data_file.record_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is small, large, or has many dead rows."""

    target: int
    small: int
    large: int
    options: CompactOptions
    has_vectors: bool
    rows_reached: Mapping[DeleteFileKey, int]  # by delete file, on v2

    @classmethod
    def of(
        cls, metadata: TableMetadata, options: CompactOptions, plan: ScanPlan | None = None
    ) -> Sizes:
        """Those of a table; `plan`: all files of the head of one of v2."""
        target = options.target_size_bytes
        if target is None:
            target = parquet_options(metadata.properties).target_file_size_bytes
        return cls(
            target=target,
            small=int(target * options.small_share),
            large=int(target * options.large_share),
            options=options,
            has_vectors=has_vectors(metadata),
            rows_reached={} if plan is None or has_vectors(metadata) else _rows_reached(plan),
        )

    def must_go(self, task: FileScanTask) -> bool:
        """Whether the file is worth a rewrite by itself."""
        file = task.entry.data_file
        if self.options.rewrite_all or file.file_size_in_bytes > self.large:
            return True
        # What equality deletes kill is not known, and on v3 files of position deletes are rare.
        if task.equality_deletes or (task.position_deletes and self.has_vectors):
            return True
        return self._deleted(task) >= max(self.options.dv_share_min * file.record_count, 1)

    def dead_rows_min(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Of files with so many rows: dead rows that are worth a rewrite."""
        found: npt.NDArray[np.float64] = np.maximum(self.options.dv_share_min * rows, 1)
        return found

    def _deleted(self, task: FileScanTask) -> float:
        """Deleted rows; those of a v2 file for many data files as if they were spread evenly."""
        found: float = deleted_rows(task)
        for entry in () if self.has_vectors else task.position_deletes:
            delete = entry.data_file
            if referenced_path(delete) is None:
                share = task.entry.data_file.record_count / self.rows_reached[delete.identity]
                found += delete.record_count * share
        return found

    def files(self, live_bytes: int) -> int:
        """How many files to write for so many bytes."""
        full, rest = divmod(live_bytes, self.target)
        if full == 0:
            return 1
        if rest > self.small or live_bytes / full > self.target * FULL_AVERAGE:
            return full + 1
        return full

    def new_file(self, live_bytes: int) -> int:
        """Size at which a new file is closed."""
        files = self.files(live_bytes)
        if files == 1:  # nothing is cut for its size, row groups neither
            return self.large
        # The estimate may be a little short; a sliver of a last file is what must not be.
        return max(min(int(live_bytes / files * FULL_AVERAGE) + 1, self.large), 1)


def _rows_reached(plan: ScanPlan) -> dict[DeleteFileKey, int]:
    """Rows of the data files that a position delete file may name, at least 1."""
    found: Counter[DeleteFileKey] = Counter()
    for task in plan.tasks:
        for entry in task.position_deletes:
            found[entry.data_file.identity] += max(task.entry.data_file.record_count, 1)
    return found


def _groups(tasks: Iterable[FileScanTask], sizes: Sizes) -> Iterator[FileGroup]:
    """Groups of one partition."""
    wanted = [task for task in tasks if sizes.must_go(task)]
    known = {task.entry.data_file.file_path for task in wanted}
    small = [
        task
        for task in tasks
        if task.entry.data_file.file_path not in known
        and task.entry.data_file.file_size_in_bytes < sizes.small
    ]
    chosen = _tier(wanted, small, sizes)
    chosen.sort(key=lambda task: (sequence_number(task.entry), task.entry.data_file.file_path))
    for part in _cut(chosen, sizes.options.group_bytes_max):
        if _is_worth_it(part, sizes):
            live_bytes = sum(map(_live_bytes, part))
            yield FileGroup(tasks=tuple(part), target_size_bytes=sizes.new_file(live_bytes))


def _tier(
    wanted: Sequence[FileScanTask], small: Sequence[FileScanTask], sizes: Sizes
) -> list[FileScanTask]:
    """`wanted`, and the small files that go with them and each other."""
    taken = list(wanted)
    taken_bytes = sum(map(_live_bytes, wanted))
    for task in sorted(small, key=_live_bytes):
        is_few = not wanted and len(taken) < sizes.options.input_files_min - 1
        if not is_few and _live_bytes(task) > GROWTH_MAX * taken_bytes:
            break
        taken.append(task)
        taken_bytes += _live_bytes(task)
    return taken


def _cut(tasks: Sequence[FileScanTask], bytes_max: int) -> Iterator[list[FileScanTask]]:
    part: list[FileScanTask] = []
    size_bytes = 0
    for task in tasks:
        size = task.entry.data_file.file_size_in_bytes
        if part and size_bytes + size > bytes_max:
            yield part
            part, size_bytes = [], 0
        part.append(task)
        size_bytes += size
    if part:
        yield part


def _is_worth_it(tasks: Sequence[FileScanTask], sizes: Sizes) -> bool:
    if any(sizes.must_go(task) for task in tasks):
        return True
    total = sum(map(_live_bytes, tasks))
    return len(tasks) >= sizes.options.input_files_min or (len(tasks) > 1 and total >= sizes.target)


def _live_bytes(task: FileScanTask) -> int:
    file = task.entry.data_file
    live = file.record_count - deleted_rows(task)
    return file.file_size_in_bytes * live // max(file.record_count, 1)


def _benefit(group: FileGroup) -> tuple[float, int]:
    """Files and dead rows that go, per byte; ties by size, for a fixed order."""
    dead_share = group.deleted_rows / max(group.rows, 1)
    return (len(group.tasks) * (1 + dead_share) / max(group.size_bytes, 1), -group.size_bytes)


def _within(groups: Iterable[FileGroup], bytes_max: int | None) -> Iterator[FileGroup]:
    """The first groups of at most so many bytes; always one."""
    left = bytes_max
    for number, group in enumerate(groups):
        if left is not None:
            if number and group.size_bytes > left:
                continue
            left -= group.size_bytes
        yield group
