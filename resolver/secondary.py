"""Keeps the declared secondary indexes in step with a branch, as the primary one is kept.

Each is an index like the primary key's, on other columns and in a folder of its own. It follows the
branch by snapshot differences: rows of new files are read (the indexed columns only), files that
left are dropped. Rows that were updated or deleted since need no before-image: they stay in the
index, and the deletion vector of their file, which every lookup checks, hides them.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from resolver.index.folder import FolderLock
from resolver.index_keeper import LocalIndexKeeper, Progress, index_folder
from resolver.target import LiveFiles, live_files
from tableformat import Table
from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.errors import StoreUnavailableError, TableError
from tableformat.spec.names import MAIN_BRANCH
from tableformat.spec.secondary_indexes import secondary_index, secondary_indexes

logger = logging.getLogger("icefold.resolver")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBuild:
    """What was done to one index.

    Attributes:
        index: Its name; None: the primary key's.
        folder: Where it is.
        snapshot_id: The snapshot that it is at.
        how: `current`, `followed` or `built`.
        duration_ms: How long it took.
    """

    index: str | None
    folder: str
    snapshot_id: int | None
    how: str
    duration_ms: float


def build_index(
    table: Table,
    name: str | None = None,
    *,
    target: str = MAIN_BRANCH,
    rebuild: bool = False,
    progress: Progress | None = None,
) -> IndexBuild:
    """Bring an index to the head of a branch: build it, or let it follow.

    `resolve` does the same for all indexes of a table; this is for tables that nobody resolves, and
    for a first build ahead of the first cycle.

    Args:
        table: A table with a primary key. Refreshed.
        name: A declared secondary index; None: the primary key's.
        target: The branch.
        rebuild: Build afresh, whatever is there.
        progress: Told how far a build is.

    Raises:
        NotFoundError: There is no such index.
        InvalidInputError: The table has no primary key, or a column of the index was dropped.
        StoreUnavailableError: Another process is using the index.
    """
    table = table.refresh()
    state = table.state
    field_ids = key_columns(state, name)
    live = live_files(table.environment, state.head(target))
    return _bring_to_head(
        table.environment,
        state,
        live,
        target=target,
        name=name,
        field_ids=field_ids,
        rebuild=rebuild,
        progress=progress,
    )


def key_columns(state: TableState, name: str | None) -> tuple[int, ...]:
    """Field ids of the columns of an index; None: the primary key's.

    Raises:
        NotFoundError: There is no such index.
        InvalidInputError: The table has no primary key, or a column of the index was dropped.
    """
    if name is not None:
        return secondary_index(state.metadata, name).field_ids
    return state.required_key_ids("index")


def maintain_indexes(
    environment: Environment,
    state: TableState,
    target: str,
    *,
    rebuild: bool = False,
    progress: Progress | None = None,
) -> list[IndexBuild]:
    """Bring all declared secondary indexes to the head of a branch; what fails is logged.

    They are derived and nothing rests on them: a lookup that finds one behind says so.

    Effects: per index as `LocalIndexKeeper`; then removes folders of indexes that are declared no
    more.
    """
    declared = secondary_indexes(state.metadata)
    built: list[IndexBuild] = []
    for index in declared.values():
        if index.dropped:
            logger.warning("%s: index %s has lost a column; drop it", state.name, index.name)
            continue
        try:
            built.append(
                _bring_to_head(
                    environment,
                    state,
                    live_files(environment, state.head(target)),
                    target=target,
                    name=index.name,
                    field_ids=index.field_ids,
                    rebuild=rebuild,
                    progress=progress,
                )
            )
        except TableError as error:
            logger.warning("%s: index %s stays behind: %s", state.name, index.name, error)
    _remove_undeclared(index_folder(environment, state, target), declared)
    return built


def _bring_to_head(
    environment: Environment,
    state: TableState,
    live: LiveFiles,
    *,
    target: str,
    name: str | None,
    field_ids: tuple[int, ...],
    rebuild: bool,
    progress: Progress | None,
) -> IndexBuild:
    clock = environment.runtime.clock
    begin = clock.monotonic_ms()
    folder = index_folder(environment, state, target, name)
    keeper = LocalIndexKeeper(
        environment, folder, rebuild=rebuild, progress=progress, field_ids=field_ids
    )
    with closing(keeper):
        index, how = keeper.at_head(state, target, live)
        snapshot_id = index.binding.snapshot_id
    return IndexBuild(
        index=name,
        folder=str(folder),
        snapshot_id=snapshot_id,
        how=how,
        duration_ms=clock.monotonic_ms() - begin,
    )


def _remove_undeclared(primary: Path, declared: Iterable[str]) -> None:
    """Remove folders `<branch>@<name>` of names that are declared no more."""
    kept = {f"{primary.name}@{name}" for name in declared}
    if not primary.parent.is_dir():
        return
    for folder in primary.parent.iterdir():
        if not folder.name.startswith(f"{primary.name}@") or folder.name in kept:
            continue
        try:
            lock = FolderLock(folder)
        except StoreUnavailableError:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
