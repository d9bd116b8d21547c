"""Declaring the primary key of a table that has rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.update.schema import UpdateSchema

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.evolution import update_schema
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.lookup.keys import KeyColumns
from tableformat.scan.key_set import build_key_set, plain
from tableformat.scan.plan import plan_scan
from tableformat.scan.reader import read_scan
from tableformat.spec.names import MAIN_BRANCH
from tableformat.table_definition import define_schema


def set_primary_key(
    environment: Environment, identifier: Identifier, columns: Sequence[str], *, check: bool
) -> TableState:
    """Declare the primary key, and with it that its columns are required.

    Args:
        environment: Catalog and store.
        identifier: The table.
        columns: Names, dotted inside structs.
        check: Read the key columns of `main` first. Rows that land meanwhile are not looked at.

    Raises:
        InvalidInputError: An unknown, repeated, float or nested-type column; or, with `check`, a
            row whose key is NULL or that another row has too.
        CommitConflictError: The schema was changed by somebody else meanwhile.

    Cost: with `check` memory follows the number of rows.
    """
    state = environment.catalog.load_table(identifier)
    schema = state.metadata.schema()
    if not columns:
        raise InvalidInputError("a primary key needs at least one column", table=state.name)
    define_schema(schema, columns)  # refuses what cannot be a key
    names = list(columns)
    if check:
        _check_rows(environment, state, schema, names)

    def edit(update: UpdateSchema) -> None:
        for name in names:
            for path in _paths(schema, name):
                if not schema.find_field(".".join(path)).required:
                    update.update_column(path, required=True)
        update.set_identifier_fields(*names)

    return update_schema(environment, identifier, edit, allow_incompatible_changes=True)


def _paths(schema: Schema, name: str) -> list[tuple[str, ...]]:
    """The column and the structs around it, the outermost first."""
    key = KeyColumns.of(schema, [schema.find_field(name).field_id], what="the primary key")
    [path] = key.paths
    return [path[:length] for length in range(1, len(path) + 1)]


def _check_rows(
    environment: Environment, state: TableState, schema: Schema, names: Sequence[str]
) -> None:
    head = state.head(MAIN_BRANCH)
    if head is None:
        return
    ids = [schema.find_field(name).field_id for name in names]
    key = KeyColumns.of(schema, ids, what="the primary key")
    plan = plan_scan(environment, state, snapshot_id=head.snapshot_id, schema=schema)
    with closing(read_scan(environment, plan, columns=key.roots)) as batches:
        rows = pa.Table.from_batches(batches, None) if plan.tasks else None
    if rows is None or not rows.num_rows:
        return
    columns = [key.leaf(rows, at) for at in range(len(key.names))]
    for name, column in zip(key.names, columns, strict=True):
        if column.null_count:
            raise InvalidInputError(
                "a primary key column has NULLs",
                table=state.name,
                column=name,
                rows=column.null_count,
                action="fill them, or choose other columns",
            )
    arrays = [plain(column) for column in columns]
    last = build_key_set(arrays, np.arange(rows.num_rows)).newest_delete(arrays)
    distinct, counts = np.unique(last, return_counts=True)
    if len(distinct) < rows.num_rows:
        example = int(distinct[np.argmax(counts > 1)])
        values = (column[example].as_py() for column in columns)
        text = ", ".join(f"{n}={v!r}" for n, v in zip(key.names, values, strict=True))
        raise InvalidInputError(
            "several rows have one primary key",
            table=state.name,
            key=text,
            keys=int((counts > 1).sum()),
            action="remove the extra rows, or choose other columns",
        )
