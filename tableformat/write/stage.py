"""Changed rows and deleted keys as one staged commit: data files and equality deletes."""

from __future__ import annotations

import difflib
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import CommitResult, commit
from tableformat.commit.request import check_publishing, check_v3, check_writable
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.paths import data_file_locations, equality_delete_locations
from tableformat.spec.arrow_arrays import python_rows
from tableformat.spec.constraints import sequence_field_id
from tableformat.spec.data_file import DataFile
from tableformat.spec.field_paths import field_path
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH
from tableformat.spec.unpartitioned import source_ids
from tableformat.write.data_files import write_data_files
from tableformat.write.delete_scope import check_delete_scope, delete_spec, key_decides_partition
from tableformat.write.equality_deletes import write_equality_deletes
from tableformat.write.partial_rows import (
    columns_to_carry,
    missing_columns_summary,
    partial_rows,
)

ColumnChoice = Literal["whole", "partial"]
PARTIAL: ColumnChoice = "partial"


def stage_rows(
    environment: Environment,
    identifier: Identifier,
    *,
    upserts: pa.Table | None = None,
    deletes: pa.Table | None = None,
    branch: str = STAGING_BRANCH,
    columns: ColumnChoice = "whole",
) -> CommitResult:
    """Commit rows that replace older rows of their keys, and keys whose rows go.

    Every key given is deleted by an equality delete, which reaches strictly older commits only, so
    the rows of the same call stay (spec: Scan Planning).

    Args:
        environment: Catalog, store, clock.
        identifier: The table.
        upserts: Rows, one per key.
        deletes: The key columns; others are ignored. A key that is upserted too is upserted.
        branch: The staging branch.
        columns: What becomes of columns that `upserts` does not have: `whole`, they get the write
            default or null; `partial`, they keep the values of the row that is replaced.

    Raises:
        InvalidInputError: No key, nothing to stage, a key twice in `upserts`, a wrong column, a row
            without the table's sequence, the published branch, or partial rows without a column
            that they need (`partial_rows.columns_to_carry`).
        CommitConflictError: The table got a new partition spec meanwhile, and the deletes were
            written for one partition each; nothing landed.
        UnsupportedError: The table is v1, or it is v2 and `columns` is partial.

    Effects: data files, then delete files, then one commit. A crash before the commit leaves
    unreferenced files for orphan removal.
    """
    state = environment.catalog.load_table(identifier)
    check_stageable(state, branch)
    check_choice(columns)
    if columns == PARTIAL:
        check_v3(state.metadata, table=state.name, what="stage partial rows on", why="row ids")
    _check_sequence(state, upserts)
    spec, state = delete_spec(environment, state)
    if upserts is not None and columns == PARTIAL:
        _check_carried(state, spec, upserts)
        upserts = partial_rows(upserts, state.metadata)
    data_files, delete_files = write_staged(
        environment, state, spec, upserts=upserts, deletes=deletes
    )
    environment.runtime.fail_point("stage.before_commit")
    changeset = Changeset(
        kind=CommitKind.ROW_DELTA,
        branch=branch,
        added_data_files=tuple(data_files),
        added_delete_files=tuple(delete_files),
        summary=missing_columns_summary(data_files),
        carry_marker=False,  # staged snapshots never have one, whatever their branch is called
    )
    return commit(
        environment,
        identifier,
        changeset,
        state=state,
        check=lambda now: check_delete_scope(now, spec),
    )


def write_staged(
    environment: Environment,
    state: TableState,
    spec: PartitionSpec,
    *,
    upserts: pa.Table | None = None,
    deletes: pa.Table | None = None,
    are_new: bool = False,
) -> tuple[list[DataFile], list[DataFile]]:
    """Write the files of changed rows and deleted keys; nothing is committed.

    Args:
        environment: Store and ids.
        state: The table.
        spec: What the deletes are written under (`delete_spec`).
        upserts: As for `stage_rows`.
        deletes: As for `stage_rows`.
        are_new: The table has no rows of the upserted keys: nothing is deleted.

    Returns:
        Data files and equality delete files.

    Raises:
        InvalidInputError: Nothing is given, a key twice in `upserts`, or a wrong column.
    """
    schema = state.metadata.schema()
    keys = _keys(state, schema, upserts, deletes)
    data_files = _write_rows(environment, state, upserts)
    if are_new:
        return data_files, []
    delete_files = write_equality_deletes(
        environment.store,
        keys,
        schema=schema,
        equality_ids=sorted(schema.identifier_field_ids),
        spec=spec,
        properties=state.metadata.properties,
        location_for=equality_delete_locations(state.metadata, environment.runtime.ids),
    )
    return data_files, delete_files


def check_stageable(state: TableState, branch: str) -> None:
    """Refuse what nobody can stage on: `main`, a v1 table, one without a key."""
    if branch == MAIN_BRANCH:
        raise InvalidInputError(
            "cannot stage on the published branch: its readers never see equality deletes",
            table=state.name,
            branch=branch,
            action="stage on 'staging' and run resolve",
        )
    check_writable(state.metadata, table=state.name)
    check_publishing(state.metadata.properties, state.metadata.format_version, table=state.name)
    state.required_key_ids("stage on")


def _check_sequence(state: TableState, upserts: pa.Table | None) -> None:
    """Without its sequence a row would count as the oldest, and lose against what is there.

    The keys of `deletes` have none: they delete what was there before, in arrival order.
    """
    field_id = sequence_field_id(state.metadata)
    if field_id is None or upserts is None or not upserts.num_rows:
        return
    name = state.metadata.schema().find_column_name(field_id) or str(field_id)
    if name not in upserts.column_names or upserts.column(name).null_count:
        raise InvalidInputError(
            "an upserted row lacks its value of the table's sequence column",
            table=state.name,
            column=name,
        )


def check_choice(columns: str) -> None:
    """Refuse another word than `whole` or `partial`, with `InvalidInputError`."""
    words = get_args(ColumnChoice)
    text = columns.lower() if isinstance(columns, str) else ""
    if text and columns in words:
        return
    near = difflib.get_close_matches(text, words, n=1)
    raise InvalidInputError(
        "columns are whole or partial; which ones there are, the rows say",
        columns=repr(columns),
        action=f"did you mean '{near[0]}'?"
        if near
        else "say 'partial', and columns that the rows leave out keep their values",
    )


def _check_carried(state: TableState, spec: PartitionSpec, upserts: pa.Table) -> None:
    for name in columns_to_carry(state.metadata, spec):
        if name not in upserts.column_names:
            raise InvalidInputError(
                "a partial row cannot leave out this column: it decides which row it replaces",
                table=state.name,
                column=name,
            )


def _keys(
    state: TableState, schema: Schema, upserts: pa.Table | None, deletes: pa.Table | None
) -> pa.Table:
    """The columns that name and place the deleted rows, of upserts and deletes together."""
    wanted = sorted({path[0] for path in _delete_columns(state, schema)})
    parts = []
    for rows in (upserts, deletes):
        if rows is None or rows.num_rows == 0:
            continue
        missing = [name for name in wanted if name not in rows.column_names]
        if missing:
            raise InvalidInputError(
                "a key column is missing", table=state.name, column=missing[0], needed=wanted
            )
        parts.append(rows.select(wanted))
    if not parts:
        raise InvalidInputError("nothing to stage", table=state.name)
    if upserts is not None and upserts.num_rows:
        check_unique(state, schema, upserts)
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"the key columns of upserts and deletes differ in type: {error}", table=state.name
        ) from error


def _delete_columns(state: TableState, schema: Schema) -> set[tuple[str, ...]]:
    ids = set(schema.identifier_field_ids)
    if key_decides_partition(state.metadata):
        ids |= source_ids(state.metadata.spec())
    return {field_path(schema, field_id) or ("",) for field_id in ids}


def check_unique(state: TableState, schema: Schema, upserts: pa.Table) -> None:
    """Refuse rows of which two have one key, with `InvalidInputError`."""
    paths = [field_path(schema, i) or ("",) for i in sorted(schema.identifier_field_ids)]
    names = [".".join(path) for path in paths]
    keys = pa.table([_leaf(upserts, path) for path in paths], names=names)
    counts = keys.group_by(names).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1))
    if repeated.num_rows:
        raise InvalidInputError(
            f"{repeated.num_rows} keys are upserted more than once in one call",
            table=state.name,
            key=python_rows(repeated.slice(0, 1).select(names))[0],
            action="keep the last row of each key",
        )


def _leaf(rows: pa.Table, path: tuple[str, ...]) -> pa.ChunkedArray:
    top, *rest = path
    column = rows[top]
    for part in rest:
        column = pc.struct_field(column, part)
    if pa.types.is_run_end_encoded(column.type):
        raise InvalidInputError(
            "key columns cannot be run-end encoded here",
            column=".".join(path),
            action="decode it with pyarrow.compute.run_end_decode",
        )
    if isinstance(column.type, pa.BaseExtensionType):  # uuid: Arrow does not group by it
        return pa.chunked_array(
            [chunk.storage for chunk in column.chunks], column.type.storage_type
        )
    return column


def _write_rows(
    environment: Environment, state: TableState, upserts: pa.Table | None
) -> list[DataFile]:
    if upserts is None or upserts.num_rows == 0:
        return []
    return write_data_files(
        environment.store,
        upserts,
        schema=state.metadata.schema(),
        spec=state.metadata.spec(),
        properties=state.metadata.properties,
        location_for=data_file_locations(state.metadata, environment.runtime.ids),
    )
