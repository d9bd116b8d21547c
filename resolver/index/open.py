"""Open an index if it can be trusted; otherwise say why not. The caller decides on a rebuild."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from resolver.index.base import IndexBinding, IndexDamagedError
from resolver.index.folder import (
    FolderLock,
    build_path,
    current_generation,
    disk_errors,
    remove_leftovers,
)
from resolver.index.local import LocalIndex
from tableformat.runtime import Runtime


class Refusal(StrEnum):
    """Why an index cannot be used."""

    MISSING = "missing"
    FOREIGN = "foreign"  # another table or branch
    KEY_CHANGED = "key-changed"  # other key columns, types or key-byte version
    DAMAGED = "damaged"  # also: a format that is not known


@dataclass(frozen=True, slots=True)
class OpenedIndex:
    """Either an index, or the reason why there is none.

    Attributes:
        index: Bound to the expected table, branch and key, at *some* snapshot: compare
            `index.binding.snapshot_id` with the head and follow.
        refusal: Set iff `index` is None.
        detail: One line for the report.
    """

    index: LocalIndex | None
    refusal: Refusal | None = None
    detail: str = ""


def open_index(folder: Path, expected: IndexBinding, *, runtime: Runtime) -> OpenedIndex:
    """Open the index in `folder`.

    Args:
        folder: The index folder; need not exist.
        expected: Table, branch and key that it must be for; the snapshot is not compared.
        runtime: Ids and fail points.

    Raises:
        StoreUnavailableError: Another process has it open, or the disk is full, read-only or
            forbidden. A rebuild would not help.

    Effects: completes a change that was decided before a crash, and removes undecided ones,
    generations that are no longer current and builds that were interrupted.
    """
    if not folder.is_dir():
        return OpenedIndex(None, Refusal.MISSING, "there is no index folder")
    lock = FolderLock(folder)
    try:
        opened = _open_locked(folder, expected, lock, runtime)
    except BaseException:
        lock.release()
        raise
    if opened.index is None:
        lock.release()
    return opened


def _open_locked(
    folder: Path, expected: IndexBinding, lock: FolderLock, runtime: Runtime
) -> OpenedIndex:
    try:
        generation = current_generation(folder)
        if generation is None:
            return OpenedIndex(None, Refusal.MISSING, "the folder holds no complete index")
        with disk_errors(folder):
            remove_leftovers(folder, generation)
        index = LocalIndex(generation, lock, runtime=runtime)
    except IndexDamagedError as error:
        return OpenedIndex(None, Refusal.DAMAGED, str(error))
    refused = compare_bindings(index.binding, expected)
    if refused is not None:
        index.close()
        return refused
    shutil.rmtree(build_path(folder), ignore_errors=True)  # a rebuild that is not needed any more
    return OpenedIndex(index)


def compare_bindings(found: IndexBinding, expected: IndexBinding) -> OpenedIndex | None:
    """Why an index is not for the table, branch and key; None when it is."""
    if (found.table_uuid, found.branch) != (expected.table_uuid, expected.branch):
        detail = f"the index is for table {found.table_uuid}, branch {found.branch}"
        return OpenedIndex(None, Refusal.FOREIGN, detail)
    if (found.key_fingerprint, found.encoding_version) != (
        expected.key_fingerprint,
        expected.encoding_version,
    ):
        detail = f"the index has key {found.key_fingerprint}, not {expected.key_fingerprint}"
        return OpenedIndex(None, Refusal.KEY_CHANGED, detail)
    return None
