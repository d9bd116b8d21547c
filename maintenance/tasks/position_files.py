"""Which position delete files of a v2 table are merged, and what for.

| `write.delete.granularity` | candidates |
|---|---|
| `partition` | all of a partition |
| `file` | those for several data files, and those of a data file that has more than one |

Of a partition's candidates the small ones go together, in tiers: going up in size, a file joins
while it is at most `GROWTH_MAX` times as large as all smaller ones together. So a partition has few
of them, and a position is written again O(log) times. What reaches no live data file goes as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyiceberg.table.metadata import TableMetadata

from maintenance.tasks.options import RewriteVectorsOptions
from tableformat.scan.delete_index import referenced_path
from tableformat.scan.plan import FileScanTask
from tableformat.spec.data_file import DeleteFileKey, ManifestEntry, PartitionKey
from tableformat.spec.properties import delete_granularity

GROWTH_MAX = 2


@dataclass(frozen=True, slots=True)
class Merge:
    """What goes, and the live data files that it reaches, each with these deletes only."""

    tasks: tuple[FileScanTask, ...] = ()
    removed: tuple[ManifestEntry, ...] = ()


def plan_merge(
    metadata: TableMetadata,
    tasks: Sequence[FileScanTask],
    live: Iterable[ManifestEntry],
    options: RewriteVectorsOptions,
) -> Merge:
    """Choose.

    Args:
        metadata: The table.
        tasks: Every live data file of a snapshot.
        live: Its position delete files.
        options: `small_files_min` candidates of a partition are worth a merge; all of them go where
            all is to be rewritten.
    """
    partitions: dict[PartitionKey, list[ManifestEntry]] = defaultdict(list)
    crowded = _crowded(tasks)
    by_file = delete_granularity(metadata.properties) == "file"
    for entry in live:
        path = referenced_path(entry.data_file)
        if not by_file or path is None or path in crowded:
            partitions[entry.data_file.partition_key].append(entry)
    removed = [each for found in partitions.values() for each in _chosen(found, options)]
    chosen = {entry.data_file.identity for entry in removed}
    return Merge(
        tasks=tuple(_with_only(task, chosen) for task in tasks if _reaching(task) & chosen),
        removed=tuple(removed),
    )


def _crowded(tasks: Iterable[FileScanTask]) -> set[str]:
    return {
        task.entry.data_file.file_path
        for task in tasks
        if sum(referenced_path(each.data_file) is not None for each in task.position_deletes) > 1
    }


def _chosen(
    entries: Sequence[ManifestEntry], options: RewriteVectorsOptions
) -> Sequence[ManifestEntry]:
    if options.rewrite_all:
        return entries
    taken: list[ManifestEntry] = []
    positions = 0
    for entry in sorted(entries, key=lambda each: each.data_file.record_count):
        count = entry.data_file.record_count
        if taken and count > GROWTH_MAX * positions:
            break
        taken.append(entry)
        positions += count
    return taken if len(taken) >= options.small_files_min else ()


def _reaching(task: FileScanTask) -> set[DeleteFileKey]:
    return {entry.data_file.identity for entry in task.position_deletes}


def _with_only(task: FileScanTask, chosen: set[DeleteFileKey]) -> FileScanTask:
    kept = tuple(e for e in task.position_deletes if e.data_file.identity in chosen)
    return replace(task, position_deletes=kept)
