"""The dead-letter table: bad records, kept with their position, reason and raw bytes.

It is written before the batch they came with, under the same query and batch id. A failure between
the two commits finds its half done when the batch is run again, so nothing is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.batch_commit import BatchId, commit_batch
from tableformat.cdc.events import BAD_RECORD_SCHEMA
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.commit.operations import FileSelection, select_files
from tableformat.environment import Environment
from tableformat.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import DEAD_LETTER_TABLE, MAIN_BRANCH
from tableformat.spec.types import iceberg_schema
from tableformat.table_definition import parse_table_name
from tableformat.write.rows import check_columns

FROM_FIELD = pa.field("from_table", pa.string(), nullable=False)
DEAD_LETTER_SCHEMA = pa.schema([FROM_FIELD, *BAD_RECORD_SCHEMA])
# Whose records a file has is told by its bounds, however long the name.
FULL_BOUNDS = {f"write.metadata.metrics.column.{FROM_FIELD.name}": "full"}


def dead_letter_table(state: TableState) -> Identifier:
    """Where bad records of a table go, unless a sink says otherwise.

    Raises:
        InvalidInputError: The property holds no name.
    """
    named = state.metadata.properties.get(DEAD_LETTER_TABLE)
    return parse_table_name(named or f"{state.name}_dead_letter")


def letters_of(environment: Environment, letters: TableState, table: str) -> FileSelection:
    """The data files of a dead-letter table that may hold bad records of `table`."""
    return select_files(environment, letters, EqualTo(term=FROM_FIELD.name, value=table))


def count_dead_letters(environment: Environment, state: TableState) -> int | None:
    """Bad records of a table that wait in its dead-letter table, from metadata alone.

    Returns:
        None where metadata cannot tell. Files of tables whose names begin alike for longer than
        bounds reach are counted too.

    Raises:
        TableError: The dead-letter table cannot be read.
    """
    try:
        letters = environment.catalog.load_table(dead_letter_table(state))
    except NotFoundError:
        return 0
    if FROM_FIELD.name not in letters.metadata.schema().column_names:
        return 0
    found = letters_of(environment, letters, state.name)
    certain = found.live_rows
    uncertain = sum(entry.data_file.record_count for entry in found.some_match)
    return None if certain is None else certain + uncertain


def load_dead_letter_table(environment: Environment, identifier: Identifier) -> TableState:
    """The dead-letter table, created if it does not exist.

    Raises:
        InvalidInputError: A table of that name cannot take bad records.
    """
    state = _load_or_create(environment, identifier)
    try:
        check_columns(DEAD_LETTER_SCHEMA, state.metadata.schema())
    except InvalidInputError as error:
        raise InvalidInputError(
            f"the dead-letter table cannot take bad records: {error.message}",
            action="name another table, or one that does not exist yet",
            table=state.name,
            **error.context,
        ) from error
    return state


def _load_or_create(environment: Environment, identifier: Identifier) -> TableState:
    catalog = environment.catalog
    try:
        return catalog.load_table(identifier)
    except NotFoundError:
        catalog.create_namespace(identifier[:-1])
    try:
        return catalog.create_table(
            identifier,
            schema=iceberg_schema(DEAD_LETTER_SCHEMA),
            partition_spec=UNPARTITIONED_PARTITION_SPEC,
            sort_order=UNSORTED_SORT_ORDER,
            location=None,
            properties=FULL_BOUNDS,
        )
    except AlreadyExistsError:
        return catalog.load_table(identifier)


def commit_dead_letters(
    environment: Environment,
    identifier: Identifier,
    files: Sequence[DataFile],
    batch: BatchId | None,
) -> None:
    """Commit the bad records of a batch, once.

    Args:
        environment: Catalog, store, clock.
        identifier: The dead-letter table.
        files: Its new data files; nothing happens without any.
        batch: The batch they came in; None: commit without the exactly-once check.
    """
    if not files:
        return
    if batch is None:
        changeset = Changeset(kind=CommitKind.APPEND, added_data_files=tuple(files))
        commit(environment, identifier, changeset)
        return
    commit_batch(
        environment,
        identifier,
        branch=MAIN_BRANCH,
        kind=CommitKind.APPEND,
        batch=batch,
        data_files=files,
    )
