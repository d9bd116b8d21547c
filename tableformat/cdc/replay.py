"""Dead letters again: bad records of a table, given to its sink as if they had just arrived.

What is in the dead-letter table is applied in the order it was put there, one batch per commit:

1. the batch is staged, under a query id of its own and numbered by the sequence number of its
   files: a batch that was staged before is not staged again;
2. the files are removed from the dead-letter table.

A crash between 1 and 2 leaves files whose batch is known: the next run only removes them. What is
bad still either stops the run, and its batch stays where it is, or is put into the table anew.

The events are old: a newer change of the same key may be in the table long since. So the table has
to have a sequence column, by which older changes lose, or the caller says that order is no matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.dead_letter import FROM_FIELD, dead_letter_table, letters_of
from tableformat.cdc.events import KEY, POSITION, VALUE
from tableformat.cdc.ingest import IngestResult, write_batch
from tableformat.cdc.sink import SinkPlan
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, NotFoundError, UnsupportedError
from tableformat.scan.delete_index import sequence_number
from tableformat.scan.plan import FileScanTask, ScanPlan, plan_scan
from tableformat.scan.reader import to_table
from tableformat.spec.constraints import sequence_field_id

QUERY_PREFIX = "dead-letters-of-"  # + the dead-letter table's uuid
COLUMNS = {"position": POSITION, "value": VALUE, "key": KEY}


def replay_dead_letters(plan: SinkPlan, *, any_order: bool = False) -> Iterator[IngestResult]:
    """Stage the bad records of the sink's table again, and take them out of their table.

    Args:
        plan: The sink, with the options that make the records good.
        any_order: An old change may replace a newer one.

    Yields:
        What became of each batch.

    Raises:
        InvalidInputError: Nothing orders the changes and `any_order` is not given; or a record is
            bad still and the sink does not put it aside again.
        UnsupportedError: The sink's format has no raw events; or a file has records of several
            tables.

    Effects: see the module's text.
    """
    environment = plan.environment
    state = environment.catalog.load_table(plan.identifier)
    if plan.writer.choice.factory.is_typed:
        raise UnsupportedError(
            "dead letters of typed rows cannot be replayed: they are kept as text",
            format=plan.writer.choice.identifier,
        )
    identifier = plan.dead_letter or dead_letter_table(state)
    try:
        letters = environment.catalog.load_table(identifier)
    except NotFoundError:
        return
    batches = _batches(environment, letters, state.name)
    if batches and sequence_field_id(state.metadata) is None:
        _check_unsequenced(plan, state.name, any_order=any_order)
    for number, tasks in batches:
        events = _events(environment, letters, tasks, state.name)
        if not events.num_rows:
            continue
        batch = BatchId(f"{QUERY_PREFIX}{letters.metadata.table_uuid}", number)
        yield write_batch(plan.refreshed(), events, batch)
        environment.runtime.fail_point("replay.before_removal")
        _remove(environment, identifier, letters, tasks)


def _check_unsequenced(plan: SinkPlan, table: str, *, any_order: bool) -> None:
    if not any_order:
        raise InvalidInputError(
            "dead letters are old changes and would replace newer ones: the table has no sequence",
            table=table,
            action="declare one (sequence-column), or --in-any-order if none has changed since",
        )
    if plan.writer.choice.truncates:
        raise InvalidInputError(
            "an old truncate would remove rows that came after it: the table has no sequence",
            table=table,
            action="leave out on-truncate=apply",
        )


def _batches(
    environment: Environment, letters: TableState, table: str
) -> list[tuple[int, list[FileScanTask]]]:
    """Files with records of the table, by the sequence number of their commit, oldest first."""
    selection = letters_of(environment, letters, table)
    wanted = {e.data_file.file_path for e in (*selection.all_match, *selection.some_match)}
    batches: dict[int, list[FileScanTask]] = {}
    for task in plan_scan(environment, letters).tasks:
        if task.entry.data_file.file_path in wanted:
            batches.setdefault(sequence_number(task.entry), []).append(task)
    return sorted(batches.items())


def _events(
    environment: Environment, letters: TableState, tasks: Sequence[FileScanTask], table: str
) -> pa.Table:
    """The records of a commit; none of them where the bounds of its files said too little."""
    everything: ScanPlan = replace(plan_scan(environment, letters), tasks=tuple(tasks))
    rows = to_table(environment, everything, columns=[FROM_FIELD.name, *COLUMNS])
    mine = rows.filter(pc.equal(rows[FROM_FIELD.name], table))
    if mine.num_rows not in (0, rows.num_rows):
        raise UnsupportedError(
            "a file has dead letters of several tables",
            table=letters.name,
            location=tasks[0].entry.data_file.file_path,
            action="give every table a dead-letter table of its own before compacting them",
        )
    return mine.select(list(COLUMNS)).rename_columns(list(COLUMNS.values()))


def _remove(
    environment: Environment,
    identifier: Identifier,
    letters: TableState,
    tasks: Sequence[FileScanTask],
) -> None:
    changeset = Changeset(
        kind=CommitKind.DELETE,
        removed_entries=tuple(task.entry for task in tasks),
        validation=Validation(starting_snapshot_id=letters.metadata.current_snapshot_id),
    )
    commit(environment, identifier, changeset)
