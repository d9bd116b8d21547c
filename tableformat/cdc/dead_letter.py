"""The dead-letter table: bad records, kept with their position, reason and raw bytes.

It is written before the batch they came with, under the same query and batch id. A failure between
the two commits finds its half done when the batch is run again, so nothing is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.batch_commit import BatchId, commit_batch
from tableformat.cdc.events import BAD_RECORD_SCHEMA
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.environment import Environment
from tableformat.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import MAIN_BRANCH
from tableformat.spec.types import iceberg_schema
from tableformat.write.rows import check_columns

FROM_FIELD = pa.field("from_table", pa.string(), nullable=False)
DEAD_LETTER_SCHEMA = pa.schema([FROM_FIELD, *BAD_RECORD_SCHEMA])


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
            properties={},
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
