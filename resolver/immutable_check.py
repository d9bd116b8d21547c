"""Refuses a cycle that would break an enforced IMMUTABLE constraint, before anything is written.

For every key, all rows of the backlog and the rows that the target has now must agree in the
IMMUTABLE columns; null is a value like any other, so a column cannot be cleared either. A row that
is deleted and inserted again within one cycle must keep its values too.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from resolver.cycle_input import CycleInput
from resolver.index.base import Matches
from resolver.match import Bools, Int64s
from resolver.resolution import NumberedKeys, dead_by_position
from resolver.row_values import ColumnReader, live_matches
from resolver.runner import Runner
from resolver.target import LiveFiles
from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.spec.constraints import ImmutableColumns, immutable_columns
from tableformat.write.partitioning import encode_values


def check_immutable(
    environment: Environment,
    state: TableState,
    live: LiveFiles,
    batch: CycleInput,
    numbered: NumberedKeys,
    matches: Matches,
    *,
    runner: Runner | None = None,
) -> None:
    """Compare the versions of every key that has several.

    Args:
        environment: Where the rows are read: IMMUTABLE and key columns of keys with several rows.
        state: The table; nothing is read if its constraint is not enforced.
        live: The live files of the target.
        batch: The cycle's input.
        numbered: Its keys.
        matches: The index's answer for them.
        runner: Where the columns are read; None: in this process.

    Raises:
        InvalidInputError: The constraint is broken. Names the first key, the columns and values.
    """
    metadata = state.metadata
    constraint = immutable_columns(metadata)
    if constraint is None or not constraint.enforced:
        return
    key_ids = tuple(sorted(metadata.schema().identifier_field_ids))
    compared = tuple(i for i in constraint.field_ids if i not in key_ids)
    if not compared:
        return
    staged = np.flatnonzero(~dead_by_position(batch)) if len(batch.rows.keys) else _none()
    known = np.flatnonzero(live_matches(environment, metadata, live, matches))
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
    found = live.find(paths)
    files = [found[path].data_file for path in paths]
    slot = np.searchsorted(np.array(ids, dtype=np.int64), matches.file_id[known])
    reader = ColumnReader(environment, metadata, (*key_ids, *compared), runner)
    rows = reader.read_rows(
        [*files, *(each.file for each in batch.files)],
        np.concatenate([slot, len(files) + batch.rows.file[staged]]),
        np.concatenate([matches.position[known], batch.rows.position[staged]]),
    )
    columns = reader.flat(rows)
    _compare(state, constraint, number, columns[: len(key_ids)], columns[len(key_ids) :])


def _compare(
    state: TableState,
    constraint: ImmutableColumns,
    number: Int64s,
    key: list[pa.Array],
    values: list[pa.Array],
) -> None:
    order = np.argsort(number, kind="stable")
    is_first = np.r_[True, number[order][1:] != number[order][:-1]]
    first = order[is_first][np.cumsum(is_first) - 1]  # the oldest known row of each row's key
    differs = np.zeros(len(number), dtype=np.bool_)
    broken: list[tuple[int, Bools]] = []
    for place, column in enumerate(values):
        codes, _ = encode_values(column)
        wrong = codes[order] != codes[first]
        broken.append((place, wrong))
        differs |= wrong
    if not differs.any():
        return
    schema = state.metadata.schema()
    at = int(np.flatnonzero(differs)[0])
    old, new = int(first[at]), int(order[at])
    key_ids = sorted(schema.identifier_field_ids)
    compared = [i for i in constraint.field_ids if i not in key_ids]
    names = {
        place: schema.find_column_name(compared[place]) for place, wrong in broken if wrong[at]
    }
    raise InvalidInputError(
        "a staged change breaks the IMMUTABLE constraint; nothing was published",
        action="repair the source and stage again, or stop enforcing: icefold table immutable "
        f"{state.name} --columns {','.join(constraint.columns)} --not-enforced",
        table=state.name,
        constraint=constraint.name,
        key={
            schema.find_column_name(i): column[new].as_py()
            for i, column in zip(key_ids, key, strict=True)
        },
        column=",".join(str(name) for name in names.values()),
        old=[values[place][old].as_py() for place in names],
        new=[values[place][new].as_py() for place in names],
        keys_broken=len(np.unique(number[order][differs])),
    )


def _several(number: Int64s) -> Bools:
    """Which entries share their number with another one."""
    _, inverse, counts = np.unique(number, return_inverse=True, return_counts=True)
    several: Bools = counts[inverse] > 1
    return several


def _none() -> Int64s:
    return np.empty(0, dtype=np.int64)
