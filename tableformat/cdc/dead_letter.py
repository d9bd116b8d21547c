"""The dead-letter table: bad records, kept with their position, reason and raw bytes.

It is written before the batch they came with, once per query, table and batch. A failure between
the two commits finds its half done when the batch is run again, so nothing is lost or doubled; also
if it ends elsewhere then, where the commit says where its events end (`put_aside`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.batch_commit import (
    QUERY_ID_CHARS_MAX,
    BatchId,
    commit_batch,
    committed,
)
from tableformat.cdc.events import BAD_RECORD_SCHEMA
from tableformat.codec.parquet.reader import read_data_file
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

ArePutAside = Callable[[pa.Array], pa.Array]
"""Which of the records at some positions are in the dead-letter table, as booleans."""
KnownLetters = Callable[[Mapping[str, str]], ArePutAside | None]
"""The same, from what the newest commit says of where its events end; None: none are."""

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


def letters_batch(batch: BatchId, table_uuid: object, branch: str) -> BatchId:
    """What a batch is to the dead-letter table, which several tables may share.

    A table that is made again reads its events again, and their bad records are its own.
    """
    name = f"{batch.query_id}/{table_uuid}/{branch}"
    if len(name) > QUERY_ID_CHARS_MAX:
        name = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return BatchId(name, batch.number)


def put_aside(
    environment: Environment,
    identifier: Identifier,
    files: Sequence[DataFile],
    query_id: str,
    *,
    end: Mapping[str, str],
    known: KnownLetters,
    write: Callable[[pa.Table], Sequence[DataFile]],
) -> None:
    """As `commit_dead_letters`, for a batch that may have ended elsewhere before a crash.

    Args:
        environment: Catalog, store, clock.
        identifier: The dead-letter table.
        files: Its new data files.
        query_id: Of the query, to the dead-letter table.
        end: Where its events end, as summary properties.
        known: Asked with what the newest commit of the query says of its end.
        write: Writes files of the records that are not there.
    """
    while files:
        state = environment.catalog.load_table(identifier)
        found = committed(state, MAIN_BRANCH, query_id)
        number = 0  # the next one, not the batch's: so it lands on what `known` has seen
        if found is not None:
            number = found.number + 1
            are_put_aside = known(found.source)
            if are_put_aside is not None:
                files = _without(environment, state, files, are_put_aside, write)
        landed = files and commit_batch(
            environment,
            identifier,
            branch=MAIN_BRANCH,
            kind=CommitKind.APPEND,
            batch=BatchId(query_id, number),
            data_files=files,
            summary=end,
        )
        if landed:
            return


def _without(
    environment: Environment,
    letters: TableState,
    files: Sequence[DataFile],
    are_put_aside: ArePutAside,
    write: Callable[[pa.Table], Sequence[DataFile]],
) -> Sequence[DataFile]:
    """Files of those records that are not put aside."""
    metadata = letters.metadata
    records = pa.Table.from_batches(
        batch
        for file in files
        for batch in read_data_file(
            environment.store,
            file,
            schema=metadata.schema(),
            spec=metadata.specs()[file.spec_id],
            properties=metadata.properties,
        )
    ).combine_chunks()
    new = pc.invert(are_put_aside(records["position"].combine_chunks()))
    if pc.all(new).as_py():
        return files
    left = records.filter(new).select(BAD_RECORD_SCHEMA.names)
    return write(left.cast(BAD_RECORD_SCHEMA)) if left.num_rows else ()
