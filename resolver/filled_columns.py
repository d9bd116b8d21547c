"""Fills the missing columns of staged rows when they are written once more.

`plan_fill` decides on the driver where each value comes from (`column_sources`); a `Fill` carries
that to the task that writes the row. It reads each source row once, the missing columns only: page
by page where few pages of a file are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from resolver.batch_row_ids import BatchRowIds
from resolver.column_sources import NOWHERE, column_sources, previous_rows
from resolver.cycle_input import CycleInput
from resolver.match import Bools, Int64s, group_by_file
from resolver.merge_deletes import DeadPositions
from resolver.resolution import MatchedBatch
from resolver.row_identity import KeyDeletes
from resolver.row_values import ColumnReader
from resolver.row_versions import read_versions
from resolver.runner import THREADS_MAX
from resolver.staged_on_target import StagedOnTarget
from resolver.target_view import TargetView
from tableformat.catalog.base import TableState
from tableformat.codec.parquet.rows import ParquetRows
from tableformat.codec.puffin.deletion_vector import position_array
from tableformat.codec.puffin.dv_file import read_deletion_vectors
from tableformat.commit.branch_history import check_rows_are_whole, newest_saying
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.integer_order import distinct, distinct_inverse, pair_order
from tableformat.side_by_side import run_in_parts
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.data_file import DataFile, EntryStatus, ManifestEntry
from tableformat.spec.missing_columns import RowMasks, has_missing_columns, replaced
from tableformat.spec.names import MISSING_COLUMNS, MISSING_COLUMNS_FIELD_ID, ON_MISSING_ROW
from tableformat.spec.properties import on_missing_row
from tableformat.store.base import ObjectStore
from tableformat.write.rows import default_array

STAYS = -1
ROLL_BACK = "roll the branch back to before that, and run resolve"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fill:
    """Where the missing columns of some staged rows come from. Picklable.

    Attributes:
        files: Data files of the sources.
        specs: Their partition specs.
        file, position: Shape `(sources,)`: the source rows, ascending.
        rows: Shape `(rows,)`: the filled rows as ordinals in the batch, ascending.
        source: By field id, shapes `(rows,)`: the ordinal of the source; `STAYS`: the row has the
            column; the number of sources: the column's default.
    """

    files: tuple[DataFile, ...]
    specs: tuple[PartitionSpec, ...]
    file: Int64s
    position: Int64s
    rows: Int64s
    source: Mapping[int, Int64s]

    def only(self, rows: Int64s) -> Fill | None:
        """The part that fills some of the rows, given as ascending ordinals in the batch."""
        kept = np.isin(self.rows, rows, assume_unique=True)
        if not kept.any():
            return None
        count = len(self.file)
        source = {i: each[kept] for i, each in self.source.items() if (each[kept] != STAYS).any()}
        used = distinct(np.concatenate([np.empty(0, dtype=np.int64), *source.values()]))
        used = used[(used != STAYS) & (used != count)]
        number = np.full(count + 2, STAYS, dtype=np.int64)  # the last one is that of STAYS
        number[used] = np.arange(len(used), dtype=np.int64)
        number[count] = len(used)
        ordinals, file = distinct_inverse(self.file[used])
        return Fill(
            files=tuple(self.files[i] for i in ordinals),
            specs=tuple(self.specs[i] for i in ordinals),
            file=file.reshape(-1).astype(np.int64),
            position=self.position[used],
            rows=self.rows[kept],
            source={i: number[each] for i, each in source.items()},
        )

    def is_same(self, other: Fill | None) -> bool:
        """Whether the same values are filled in."""
        return (
            other is not None
            and [f.file_path for f in self.files] == [f.file_path for f in other.files]
            and np.array_equal(self.file, other.file)
            and np.array_equal(self.position, other.position)
            and np.array_equal(self.rows, other.rows)
            and self.source.keys() == other.source.keys()
            and all(np.array_equal(each, other.source[i]) for i, each in self.source.items())
        )

    def read(
        self, store: ObjectStore, schema: Schema, properties: Mapping[str, str]
    ) -> FilledColumns:
        """Read the values.

        Args:
            store: Where the sources are.
            schema: Of the table.
            properties: Of the table.

        Raises:
            CorruptDataError: A source file is damaged.

        Memory: the missing columns of the sources.
        """
        wanted = Schema(*(each for each in schema.fields if each.field_id in self.source))
        groups = group_by_file(self.file, self.position)
        with closing(ParquetRows(store, cache_bytes=1)) as source:

            def read(at: int) -> pa.RecordBatch:
                file = self.files[groups[at].file]
                entry = ManifestEntry(
                    status=EntryStatus.EXISTING,
                    snapshot_id=None,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
                return source.read(
                    entry,
                    groups[at].positions,
                    schema=wanted,
                    spec=self.specs[groups[at].file],
                    properties=properties,
                )

            parts = run_in_parts(read, range(len(groups)), at_once=THREADS_MAX)
        columns = {}
        for field in wanted.fields:
            last = default_array(field, 1)
            columns[field.name] = pa.chunked_array(
                [*(part.column(field.name) for part in parts), last], last.type
            )
        ids = {field.name: field.field_id for field in wanted.fields}
        return FilledColumns(
            rows=self.rows,
            values=columns,
            source={name: self.source[ids[name]] for name in columns},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledColumns:
    """The values of a `Fill`: by column those of the sources, and the default as the last one."""

    rows: Int64s
    values: Mapping[str, pa.ChunkedArray]
    source: Mapping[str, Int64s]

    def fill(self, columns: dict[str, pa.Array], rows: Int64s) -> Bools:
        """Put the missing values in.

        Args:
            columns: Some of the table's columns, by name, of n staged rows; those with missing
                values are replaced.
            rows: Shape `(n,)`: the rows, as ordinals in the batch.

        Returns:
            Which of the rows had missing columns; shape `(n,)`.
        """
        slot = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        is_filled: Bools = self.rows[slot] == rows
        if not is_filled.any():
            return is_filled
        for name in self.values.keys() & columns.keys():
            at = np.where(is_filled, self.source[name][slot], STAYS)
            if (at != STAYS).any():
                columns[name] = replaced(columns[name], self.values[name], at)
        return is_filled


def lacks_columns(batch: CycleInput) -> bool:
    """Whether staged files of a batch have rows with missing columns."""
    return any(has_missing_columns(each.file) for each in batch.files)


def plan_fill(
    view: TargetView,
    known: StagedOnTarget,
    matched: MatchedBatch,
    ids: BatchRowIds,
    dead: DeadPositions,
) -> tuple[Fill | None, Int64s]:
    """Where the missing columns of the live rows of a batch come from; None: none is missing.

    Args:
        view: The target. It is read which columns are missing, and sequences.
        known: Staged files that it has, or had.
        matched: The batch.
        ids: The rows that the batch replaces.
        dead: Rows that are not published; rows are added that no older one fills, where the table
            wants them put aside.

    Returns:
        That, and the rows to put aside, as ordinals in the batch.

    Raises:
        InvalidInputError: A row has no older one, and the table says that this is an error, or a
            required column has no default.
        UnsupportedError: Another tool has brought rows to the target whose columns are missing; or
            the state of staging does not tell whether a row was there to be replaced.
        CorruptDataError: A file is damaged.
    """
    batch, none = matched.batch, np.empty(0, dtype=np.int64)
    if not lacks_columns(batch):
        return None, none
    _check_not_on_target(view, batch, known)
    metadata, size = view.metadata, len(ids.replaced)
    partial, masks = _read_masks(view, batch)
    deletes = KeyDeletes(
        key=matched.numbered.delete_number, order=batch.deletes.order, scope=batch.deletes.scope
    )
    versions = read_versions(view, replace(matched, matches=ids.replaced))
    previous = previous_rows(ids.rows, deletes, partial + size, versions)
    previous[masks.is_new] = NOWHERE
    schema = metadata.schema()
    computed = stored_columns(metadata.properties, schema)  # when the others are filled
    fields = (each for each in schema.fields if each.name not in computed)
    lacks = {each.field_id: masks.lacks(each.field_id) for each in fields}
    lacks = {field_id: rows for field_id, rows in lacks.items() if rows.any()}
    found = column_sources(partial + size, previous, lacks, len(ids.rows.key))
    lives = _live(batch, dead, partial)
    lost = {i: lacks[i] & lives & (each == NOWHERE) for i, each in found.items()}
    aside = none
    if on_missing_row(metadata.properties) == "dead-letter":
        is_lost = np.logical_or.reduce([np.zeros(len(partial), np.bool_), *lost.values()])
        aside, lives = partial[is_lost], lives & ~is_lost
        for group in group_by_file(batch.rows.file[aside], batch.rows.position[aside]):
            dead.add(batch.files[group.file].file.file_path, group.positions)
    else:
        _check_found(view, batch, partial, lost)
    count = len(ids.rows.key)  # the source that stands for the default
    unsure = _replace_untold(view, batch, ids, partial + size, previous) & lives
    if unsure.any():
        raise _untold(view, batch, partial[unsure])
    source = {
        i: np.where(lacks[i], np.where(each == NOWHERE, count, each), STAYS)[lives]
        for i, each in found.items()
    }
    return _placed(view, batch, ids, partial[lives], source), aside


def check_target_is_whole(state: TableState, target: str) -> None:
    """Refuse a target that another tool has moved onto staged rows whose columns are missing.

    Raises:
        UnsupportedError: It has such rows.
    """
    said = newest_saying(state, target, MISSING_COLUMNS)
    check_rows_are_whole(state, () if said is None else (said,), action=ROLL_BACK)


def _check_not_on_target(view: TargetView, batch: CycleInput, known: StagedOnTarget) -> None:
    paths = [each.file.file_path for each in batch.files if has_missing_columns(each.file)]
    there = {*view.live.find(paths), *known.published, *known.left} & set(paths)
    if there:
        raise UnsupportedError(
            "staged rows whose columns are missing were brought to the target as they are",
            table=view.state.name,
            location=min(there),
            action=ROLL_BACK,
        )


def _read_masks(view: TargetView, batch: CycleInput) -> tuple[Int64s, RowMasks]:
    """The rows that lack columns, as ordinals in the batch, and what they lack."""
    files = [at for at, each in enumerate(batch.files) if has_missing_columns(each.file)]
    field_ids = (MISSING_COLUMNS_FIELD_ID,)
    reader = ColumnReader(view.environment, view.metadata, field_ids, view.runner)
    [texts] = reader.flat(reader.read_files([batch.files[at].file for at in files]))
    masks = RowMasks.parse(texts)
    rows = np.flatnonzero(np.isin(batch.rows.file, files))
    return rows[masks.is_partial], RowMasks(masks.code[masks.is_partial], masks.masks)


def _live(batch: CycleInput, dead: DeadPositions, rows: Int64s) -> Bools:
    """Which of some staged rows are published; shape `(rows,)`."""
    file, position = batch.rows.file[rows], batch.rows.position[rows]
    lives = np.ones(len(rows), dtype=np.bool_)
    for at in np.unique(file).tolist():
        gone = dead.by_path.get(batch.files[at].file.file_path)
        if gone is not None:
            here = np.flatnonzero(file == at)
            lives[here] = ~np.isin(position[here], position_array(gone))
    return lives


def _check_found(
    view: TargetView, batch: CycleInput, partial: Int64s, lost: Mapping[int, Bools]
) -> None:
    """Refuse rows that no older row can fill, as far as the table says so."""
    fails = on_missing_row(view.metadata.properties) == "fail"
    schema = view.metadata.schema()
    for field_id, rows in lost.items():
        field = schema.find_field(field_id)
        has_no_default = field.required and field.write_default is None
        if not rows.any() or not (fails or has_no_default):
            continue
        raise InvalidInputError(
            "a staged row leaves out a column and replaces no row that has it; "
            "nothing was published",
            table=view.state.name,
            column=field.name,
            key=_key_of(view, batch, partial[np.flatnonzero(rows)[0]]),
            rows=int(rows.sum()),
            action=f"stage the whole row, or set the table property {ON_MISSING_ROW} to "
            f"{'dead-letter' if has_no_default else 'null or dead-letter'}",
        )


def _key_of(view: TargetView, batch: CycleInput, row: np.int64) -> dict[str | None, object]:
    """The key of a staged row by column names."""
    schema = view.metadata.schema()
    key_ids = tuple(sorted(schema.identifier_field_ids))
    reader = ColumnReader(view.environment, view.metadata, key_ids)
    files = [each.file for each in batch.files]
    first = np.array([row])
    found = reader.read_rows(files, batch.rows.file[first], batch.rows.position[first])
    key = zip(key_ids, reader.flat(found), strict=True)
    return {schema.find_column_name(i): values[0].as_py() for i, values in key}


def _replace_untold(
    view: TargetView, batch: CycleInput, ids: BatchRowIds, partial: Int64s, previous: Int64s
) -> Bools:
    """Which partial rows go back to one that a vector deletes, where only its last version is left.

    The log says whether an older version had deleted that row before it was replaced; the state of
    staging does not.
    """
    is_unsure: Bools = np.zeros(len(partial), dtype=np.bool_)
    dvs = [dv.data_file for e in batch.staged if e.replaced is None for dv in e.dvs]
    if not dvs:
        return is_unsure
    place = np.full(len(ids.rows.key) + 1, NOWHERE, dtype=np.int64)
    place[partial] = np.arange(len(partial), dtype=np.int64)
    before = place[previous]
    more = (previous != NOWHERE) & _in_vectors(view, batch, ids, dvs)[previous]
    while not np.array_equal(more, is_unsure):
        is_unsure = more
        more = is_unsure | ((before != NOWHERE) & is_unsure[before])
    return is_unsure


def _in_vectors(
    view: TargetView, batch: CycleInput, ids: BatchRowIds, dvs: Sequence[DataFile]
) -> Bools:
    """Which rows of the target and of the batch some vectors delete; shape `(rows,)`."""
    vectors = read_deletion_vectors(view.environment.store, [(dv, None) for dv in dvs])
    gone = {dv.referenced_data_file: each for dv, each in zip(dvs, vectors, strict=True)}
    here, files = ids.replaced, enumerate(each.file for each in batch.files)
    file = np.concatenate([-1 - here.file_id, batch.rows.file])  # two counts side by side
    position = np.concatenate([here.position, batch.rows.position])
    numbers = {-1 - number: each for number, each in here.files.items()} | dict(files)
    found: Bools = np.zeros(len(file), dtype=np.bool_)
    for number, each in numbers.items():
        if each.file_path in gone:
            rows = np.flatnonzero(file == number)
            found[rows] = np.isin(position[rows], position_array(gone[each.file_path]))
    return found


def _untold(view: TargetView, batch: CycleInput, rows: Int64s) -> UnsupportedError:
    return UnsupportedError(
        "staged rows leave out columns of rows that a deletion vector deletes, too, and the log "
        "that says which came first has expired; nothing was published",
        table=view.state.name,
        key=_key_of(view, batch, rows[0]),
        rows=len(rows),
        action="stage these rows whole",
    )


def _placed(
    view: TargetView,
    batch: CycleInput,
    ids: BatchRowIds,
    rows: Int64s,
    source: Mapping[int, Int64s],
) -> Fill | None:
    """A fill with its sources by file and position, from rows of the target and then the batch."""
    replaced_rows = ids.replaced
    numbers = np.array(sorted(replaced_rows.files), dtype=np.int64)
    paths = [replaced_rows.files[int(number)].file_path for number in numbers]
    found = view.live.find(paths)
    files = (*(found[path].data_file for path in paths), *(each.file for each in batch.files))
    slot = np.searchsorted(numbers, replaced_rows.file_id)
    file = np.concatenate([slot, len(numbers) + batch.rows.file])
    position = np.concatenate([replaced_rows.position, batch.rows.position])
    by_place = pair_order(file, position)
    ordinal = np.empty(len(file) + 2, dtype=np.int64)  # then the default, and STAYS
    ordinal[by_place] = np.arange(len(file), dtype=np.int64)
    ordinal[len(file)], ordinal[STAYS] = len(file), STAYS
    specs = view.metadata.specs()
    whole = Fill(
        files=files,
        specs=tuple(specs[each.spec_id] for each in files),
        file=file[by_place],
        position=position[by_place],
        rows=rows,
        source={i: ordinal[each] for i, each in source.items()},
    )
    return whole.only(rows)
