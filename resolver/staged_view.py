"""What a writer of a staging branch saw: rows that were deleted before, by key or by position.

A vector that names such a row says nothing. Tools that turn equality deletes into vectors write
these, a truncate names all rows of a file, and a vector repeats what position delete files say of
its file: it is read instead of them (spec: Deletion Vectors). Whatever has the row's key by now, on
the staging branch or on the target, is another row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from resolver.cycle_input import StagedPositions
from resolver.staged_snapshots import StagedSnapshot, sequence_numbers_of
from resolver.target import live_files
from resolver.target_deletes import rows_reached
from tableformat.catalog.base import TableState
from tableformat.codec.puffin.deletion_vector import Positions
from tableformat.environment import Environment
from tableformat.spec.constraints import sequence_field_id


def without_dead_before(
    environment: Environment, state: TableState, staged: Iterable[StagedPositions]
) -> Iterator[StagedPositions]:
    """Staged positions without those of rows that were deleted before; none is empty.

    Deletes by key count whether they still take effect or not: to its readers a delete file that a
    writer's retry names again reaches what was staged in between. They do not count on a table with
    a sequence column: a key may name a row's older version there. What vectors had deleted is not
    looked at. Nothing is read for positions in data files of the same commit.

    Raises:
        CorruptDataError: A file is damaged.
        NotFoundError: A data file is gone.
    """
    by_commit: dict[int, list[StagedPositions]] = {}
    new: dict[int, set[str]] = {}
    for each in staged:
        at, files = each.staged.order, each.staged.data_files
        if at not in new:
            new[at] = {entry.data_file.file_path for entry in files}
        if each.path in new[at]:
            yield each
        else:
            by_commit.setdefault(each.staged.order, []).append(each)
    for group in by_commit.values():
        paths = {each.path for each in group}
        by_key = sequence_field_id(state.metadata) is None
        dead = dead_before(environment, state, group[0].staged, paths, by_key=by_key)
        for each in group:
            rest = each.positions - dead.get(each.path, Positions())
            if rest:
                yield StagedPositions(path=each.path, positions=rest, staged=each.staged)


def dead_before(
    environment: Environment,
    state: TableState,
    staged: StagedSnapshot,
    paths: set[str],
    *,
    by_key: bool,
) -> dict[str, Positions]:
    """Rows of some data files that delete files of the commits before a staged one reach.

    A file that is named again shows those that live in one of its copies.

    Args:
        environment: Where files are read.
        state: The table.
        staged: The commit.
        paths: Data files that are live there, or that it removes.
        by_key: Whether equality deletes count.
    """
    view, metadata = live_files(environment, staged.snapshot), state.metadata
    # Its snapshot may be the staging head; one that only removes files is itself.
    own = max(sequence_numbers_of(staged), default=staged.snapshot.sequence_number or 0)
    found = (*(view.equality_deletes if by_key else ()), *view.position_deletes)
    deletes = [each for each in found if (each.sequence_number or 0) < own]
    if not deletes:
        return {}
    dead: dict[str, Positions] = {}
    store = environment.store
    removed = [each for each in staged.removed if each.data_file.file_path in paths]
    copies = [*view.copies(paths - {e.data_file.file_path for e in removed}), *removed]
    for path, of_copy in rows_reached(store, metadata, deletes, copies):
        dead[path] = dead[path] & of_copy if path in dead else of_copy
    return dead
