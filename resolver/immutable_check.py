"""Refuses a cycle that would break an enforced IMMUTABLE constraint, before anything is written.

For every key, all rows of the backlog and the rows that the target has now must agree in the
IMMUTABLE columns; null is a value like any other, so a column cannot be cleared either. A row that
is deleted and inserted again within one cycle must keep its values too.

A key that is deleted in one cycle and comes back in a later one leaves nothing to compare with. So
rows may not be deleted either, unless the constraint is enforced except for deletes: whatever
deletes them (equality deletes of any columns, vectors and position deletes of other writers, a
truncate), each key that had a row must still have one after the cycle.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from resolver.match import Bools, Int64s
from resolver.merge_deletes import DeadPositions
from resolver.resolution import MatchedBatch, dead_by_position
from resolver.row_values import ColumnReader, live_matches
from resolver.target_deletes import deleted_positions
from resolver.target_view import TargetView
from tableformat.codec.puffin.deletion_vector import build_positions, position_array
from tableformat.lookup.immutable_rows import check_versions, deleted_row_error
from tableformat.spec.constraints import immutable_columns
from tableformat.spec.data_file import DataFile


def check_immutable(view: TargetView, matched: MatchedBatch) -> None:
    """Compare the versions of every key that has several.

    Nothing is read if the constraint is not enforced; else IMMUTABLE and key columns of keys with
    several rows.

    Raises:
        InvalidInputError: The constraint is broken. Names the first key, the columns and values.
    """
    metadata = view.metadata
    batch, numbered, matches = matched.batch, matched.numbered, matched.matches
    constraint = immutable_columns(metadata)
    if constraint is None or not constraint.enforced:
        return
    key_ids = tuple(sorted(metadata.schema().identifier_field_ids))
    compared = tuple(i for i in constraint.field_ids if i not in key_ids)
    if not compared:
        return
    staged = np.arange(len(batch.rows.keys))
    if len(staged) and not constraint.forbids_deletes:
        staged = np.flatnonzero(~dead_by_position(batch))
    known = np.flatnonzero(live_matches(view, matches, is_in_place=not batch.staged))
    number = np.concatenate(
        [numbered.lookup_number[matches.key_ordinal[known]], numbered.row_number[staged]]
    )
    several = _several(number)
    known, staged = known[several[: len(known)]], staged[several[len(known) :]]
    number = number[several]
    if not len(number):
        return
    ids = sorted(matches.files)
    paths = [matches.files[i].file_path for i in ids]
    found = view.live.find(paths)
    files = [found[path].data_file for path in paths]
    slot = np.searchsorted(np.array(ids, dtype=np.int64), matches.file_id[known])
    reader = ColumnReader(view.environment, metadata, (*key_ids, *compared), view.runner)
    rows = reader.read_rows(
        [*files, *(each.file for each in batch.files)],
        np.concatenate([slot, len(files) + batch.rows.file[staged]]),
        np.concatenate([matches.position[known], batch.rows.position[staged]]),
    )
    schema = metadata.schema()
    names = [str(schema.find_column_name(i)) for i in (*key_ids, *compared)]
    check_versions(
        view.state,
        constraint,
        number,
        dict(zip(names, reader.flat(rows), strict=True)),
        problem="a staged change breaks the IMMUTABLE constraint; nothing was published",
        repair="repair the source and stage again",
    )


def is_enforced(metadata: TableMetadata) -> bool:
    """Whether rows of a cycle are held against the constraint."""
    constraint = immutable_columns(metadata)
    return constraint is not None and constraint.enforced


def check_nothing_is_deleted(view: TargetView, matched: MatchedBatch, dead: DeadPositions) -> None:
    """Refuse a cycle after which a key that had a row has none.

    Args:
        view: The target; nothing is done if the table's constraint allows deletes.
        matched: The batch, the keys of its rows looked up as well.
        dead: All rows that the cycle kills; of the target maybe some that are dead already.

    Raises:
        InvalidInputError: Names the first key.
    """
    constraint = immutable_columns(view.metadata)
    if constraint is None or not constraint.forbids_deletes:
        return
    batch, numbered, matches = matched.batch, matched.numbered, matched.matches
    paths = {i: file.file_path for i, file in matches.files.items()}
    staged_paths = {i: each.file.file_path for i, each in enumerate(batch.files)}
    alive = live_matches(view, matches, is_in_place=not batch.staged)
    gone = _are_dead(dead, paths, matches.file_id.astype(np.int64), matches.position)
    stays = ~_are_dead(dead, staged_paths, batch.rows.file, batch.rows.position)
    number = numbered.lookup_number[matches.key_ordinal]
    survives = np.zeros(len(numbered.newest.global_order), dtype=np.bool_)
    survives[number[alive & ~gone]] = True
    survives[numbered.row_number[stays]] = True
    lost = np.flatnonzero(alive & ~survives[number])
    unborn = np.flatnonzero(~survives[numbered.row_number])
    if len(lost):
        path, position = paths[int(matches.file_id[lost[0]])], int(matches.position[lost[0]])
        place = (view.live.find([path])[path].data_file, position)
    elif len(unborn):
        place = (batch.files[batch.rows.file[unborn[0]]].file, batch.rows.position[unborn[0]])
    elif (other := _dead_of_other_keys(view, matched, dead)) is not None:
        place = other
    else:
        return
    raise deleted_row_error(
        view.state,
        constraint,
        _key_at(view, *place),
        problem="a staged change deletes a row, and the IMMUTABLE constraint is enforced; nothing "
        "was published",
        repair="repair the source and stage again",
    )


def _are_dead(dead: DeadPositions, paths: Mapping[int, str], file: Int64s, at: Int64s) -> Bools:
    """Which of some rows the cycle kills."""
    found = np.zeros(len(file), dtype=np.bool_)
    for number, path in paths.items():
        if (positions := dead.by_path.get(path)) is not None:
            rows = np.flatnonzero(file == number)
            found[rows] = np.isin(at[rows], position_array(positions & build_positions(at[rows])))
    return found


def _dead_of_other_keys(
    view: TargetView, matched: MatchedBatch, dead: DeadPositions
) -> tuple[DataFile, int] | None:
    """A row of the target that dies and that no staged key names, so that none replaces it."""
    matches, store = matched.matches, view.environment.store
    known = {file.file_path: i for i, file in matches.files.items()}
    for path, entry in view.live.find(sorted(set(dead.paths()) - matched.batch.paths)).items():
        rest = dead.by_path[path]
        if path in known:
            rest = rest - build_positions(matches.position[matches.file_id == known[path]])
        if rest:
            gone = deleted_positions(store, view.metadata, view.live, [path])
            rest = rest - gone.get(path, BitMap64())
        if rest:
            return entry.data_file, rest[0]
    return None


def _key_at(view: TargetView, file: DataFile, position: int) -> dict[str, object]:
    schema = view.metadata.schema()
    ids = tuple(sorted(schema.identifier_field_ids))
    reader = ColumnReader(view.environment, view.metadata, ids)
    row = reader.flat(reader.read_rows([file], np.zeros(1, np.int64), np.array([position])))
    names = [schema.find_column_name(i) or str(i) for i in ids]
    return {name: column[0].as_py() for name, column in zip(names, row, strict=True)}


def _several(number: Int64s) -> Bools:
    """Which entries share their number with another one."""
    _, inverse, counts = np.unique(number, return_inverse=True, return_counts=True)
    several: Bools = counts[inverse] > 1
    return several
