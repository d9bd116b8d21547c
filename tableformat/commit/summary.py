"""Snapshot summaries: the counts of one commit, and the totals of the table after it.

Key names and meanings are the spec's (Snapshot Summary). A deletion vector counts in `added-dvs`,
in `added-delete-files`, by its cardinality in `added-position-deletes`, and by its own bytes, not
its Puffin file's, in `added-files-size`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from tableformat.commit.branch_history import summary_of
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.spec.decimal_text import parse_decimal

# total key: (key that adds to it, key that takes from it)
TOTALS: Mapping[str, tuple[str, str]] = {
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


def build_summary(
    operation: Operation,
    *,
    added: Iterable[DataFile],
    removed: Iterable[DataFile],
    parent: Snapshot | None,
    extra: Mapping[str, str],
) -> Summary:
    """The summary of a commit.

    Args:
        operation: What the commit is.
        added: Files it adds.
        removed: Files it removes, those that the engine removes on its own included.
        parent: The snapshot it builds on.
        extra: Properties of the caller; they cannot replace a count.
    """
    counts: Counter[str] = Counter()
    partitions = set()
    for file in added:
        counts.update(_counts(file, verb="added"))
        partitions.add(file.partition_key)
    for file in removed:
        counts.update(_counts(file, verb="removed"))
        partitions.add(file.partition_key)
    properties = {key: str(count) for key, count in sorted(counts.items()) if count > 0}
    properties["changed-partition-count"] = str(len(partitions))
    properties.update(_totals(counts, parent))
    return Summary(operation, **{**extra, **properties})


def _counts(file: DataFile, *, verb: str) -> dict[str, int]:
    counts = {f"{verb}-files-size": file.size_in_table_bytes}
    if file.content == FileContent.DATA:
        verb = "deleted" if verb == "removed" else verb
        return {**counts, f"{verb}-data-files": 1, f"{verb}-records": file.record_count}
    counts[f"{verb}-delete-files"] = 1
    if file.content == FileContent.EQUALITY_DELETES:
        counts[f"{verb}-equality-delete-files"] = 1
        counts[f"{verb}-equality-deletes"] = file.record_count
        return counts
    counts[f"{verb}-dvs" if file.is_dv else f"{verb}-position-delete-files"] = 1
    counts[f"{verb}-position-deletes"] = file.record_count
    return counts


def _totals(counts: Mapping[str, int], parent: Snapshot | None) -> dict[str, str]:
    """Totals after the commit; one that the parent does not know stays unknown, as in Java."""
    totals: dict[str, str] = {}
    known = summary_of(parent)
    for total, (plus, minus) in TOTALS.items():
        before = 0 if parent is None else parse_decimal(known.get(total, ""))
        if before is None:
            continue
        after = before + counts.get(plus, 0) - counts.get(minus, 0)
        if after >= 0:
            totals[total] = str(after)
    return totals
