"""Change events into a table without Spark: the same steps as the stream writer, in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.batch_commit import BatchId, commit_batch, is_committed
from tableformat.cdc.change_writer import WrittenFiles
from tableformat.cdc.dead_letter import (
    KnownLetters,
    commit_dead_letters,
    letters_batch,
    put_aside,
)
from tableformat.cdc.events import ORDINAL, EventBatch, ParsedEvents
from tableformat.cdc.formats import ChangeFormat
from tableformat.cdc.schema_changes import SchemaChanges
from tableformat.cdc.sink import SinkPlan, plan_sink
from tableformat.cdc.source_time import latest_of
from tableformat.commit.changeset import Changeset
from tableformat.commit.engine import CommitResult, commit
from tableformat.commit.swap import check_same_table
from tableformat.environment import Environment
from tableformat.side_by_side import run_in_parts
from tableformat.spec.names import MAIN_BRANCH, SOURCE_MS, STAGING_BRANCH
from tableformat.spec.options import GivenOptions
from tableformat.write.partial_rows import missing_columns_summary

# Rows that one thread parses at once: enough for Arrow's per-call costs to vanish, small enough
# for all threads to have work and for a failing block to be halved cheaply.
PARSE_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What became of a batch of events.

    Attributes:
        commit: The commit; None if there was nothing to commit, or it had been committed before.
        events: Events given.
        changes: Change rows in them.
        bad_records: Events that were put into the dead-letter table.
        skipped: Events that are no changes, by what they are.
        files: Data files, and equality delete files.
        repeated: The batch had been committed before; nothing was written.
        truncated: The rows from before the batch were deleted, as the source's were.
        source_ms: The highest time at which the source made a change of it; None: unknown.
    """

    commit: CommitResult | None = None
    events: int = 0
    changes: int = 0
    bad_records: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    files: tuple[int, int] = (0, 0)
    repeated: bool = False
    truncated: bool = False
    source_ms: int | None = None


def write_changes(
    environment: Environment,
    identifier: Identifier,
    events: pa.Table,
    *,
    format_name: str = "debezium-json",
    options: GivenOptions | None = None,
    branch: str = STAGING_BRANCH,
    batch: BatchId | None = None,
) -> IngestResult:
    """Commit one batch of change events: data files and equality deletes on a staging branch.

    Args:
        environment: Catalog, store, clock.
        identifier: The table.
        events: See `events.EventBatch`: `value` (and `key`) of JSON formats, or typed columns.
        format_name: The change format.
        options: Options of the format and of the sink.
        branch: The staging branch.
        batch: Makes the call idempotent: a batch that is in the branch is not written again.

    Raises:
        InvalidInputError: An option is wrong, an event is bad (without a dead-letter table), or
            the events have a column that the table does not have. Nothing was committed.

    Effects: data files, delete files, the dead-letter commit if needed, then one commit. A crash
    before it leaves unreferenced files for orphan removal.
    """
    plan = plan_sink(
        environment, identifier, format_name=format_name, options=options or {}, branch=branch
    )
    return write_batch(plan, events, batch)


def write_batch(
    plan: SinkPlan,
    events: pa.Table,
    batch: BatchId | None,
    *,
    summary: Mapping[str, str] | None = None,
    check: Callable[[TableState], None] | None = None,
    known_letters: KnownLetters | None = None,
) -> IngestResult:
    """One batch of a sink that is planned already; see `write_changes`.

    `summary`, `known_letters`: see `commit_written`; with a summary the batch is committed also if
    nothing changes by it.
    `check`: called with the table before anything is written, and before every attempt to commit;
    may refuse by raising.
    """
    environment = plan.environment
    if batch is not None:
        state = environment.catalog.load_table(plan.identifier)
        if check is not None:
            check(state)
        if is_committed(state, plan.branch, batch):
            return IngestResult(events=events.num_rows, repeated=True)
    prepared = prepare_batch(plan, events)
    is_mark = summary is not None
    plan, written = prepared.plan, prepared.written
    return prepared.result(
        commit_written(
            plan,
            written,
            batch,
            summary,
            known_letters=known_letters,
            check=check,
            is_mark=is_mark,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """A batch whose files are written, and not committed.

    `plan` is the sink after what the events changed about the table.
    """

    plan: SinkPlan
    written: WrittenFiles
    events: int
    bad_records: int
    skipped: Mapping[str, int]

    def result(self, commit: CommitResult | None) -> IngestResult:
        """What became of it."""
        return IngestResult(
            commit=commit,
            events=self.events,
            changes=self.written.changes,
            bad_records=self.bad_records,
            skipped=self.skipped,
            files=(len(self.written.data_files), len(self.written.delete_files)),
            truncated=self.written.truncation is not None,
            source_ms=self.written.source_ms,
        )


def prepare_batch(plan: SinkPlan, events: pa.Table, *, in_order: bool = False) -> PreparedBatch:
    """Parse a batch and write its files, for `commit_written`; see `write_changes`.

    `in_order`: the source made the events in this order; see `EventBatch`.

    Effects: may add and widen columns of the table; writes files that nothing names.
    """
    plan, change_format, parsed = _parse(plan, events, in_order=in_order)
    skipped: Counter[str] = Counter()
    for part in parsed:
        skipped.update(part.skipped)
    bad = pa.concat_tables([part.bad for part in parsed])
    changes = pa.concat_tables([part.changes for part in parsed])
    ids = plan.environment.runtime.ids
    written = plan.writer.write(changes, change_format, ids)
    written = replace(
        written,
        dead_letter_files=tuple(plan.writer.write_dead_letters([bad], ids)),
        source_ms=latest_of(part.source_ms for part in parsed),
    )
    return PreparedBatch(
        plan=plan,
        written=written,
        events=events.num_rows,
        bad_records=bad.num_rows,
        skipped=dict(skipped),
    )


def _parse(
    plan: SinkPlan, events: pa.Table, *, in_order: bool
) -> tuple[SinkPlan, ChangeFormat, list[ParsedEvents]]:
    """Parse a batch; where it wants other columns and may have them, change the table first."""
    slices = EventBatch.split(with_ordinals(events), PARSE_ROWS, in_order=in_order)
    while True:
        change_format, writer = plan.writer.build_format(), plan.writer
        parse = partial(writer.try_parse, change_format)
        parsed = run_in_parts(parse, slices, at_once=pa.cpu_count())
        schema_changes = SchemaChanges(in_order=in_order)
        for part in parsed:
            schema_changes.merge(part.schema_changes)
        if not schema_changes:
            return plan, change_format, parsed
        plan = plan.evolved(schema_changes)


def commit_written(
    plan: SinkPlan,
    written: WrittenFiles,
    batch: BatchId | None,
    summary: Mapping[str, str] | None = None,
    *,
    known_letters: KnownLetters | None = None,
    check: Callable[[TableState], None] | None = None,
    is_mark: bool = False,
) -> CommitResult | None:
    """Commit what the tasks of a batch wrote: dead letters first, then the changes.

    Args:
        plan: The sink.
        written: The files.
        batch: Which batch it is; None: commit without the exactly-once check.
        summary: More summary properties.
        known_letters: Which bad records are put aside already, for a batch that may have ended
            elsewhere before a crash: `summary` says where. None: a batch is always the same.
        check: Called with the table before every attempt; may refuse by raising.
        is_mark: Commit also without a file: the summary says how far the query is.

    Returns:
        The commit of the changes; None if there are none, or the batch is in the branch already.
    """
    environment = plan.environment
    if plan.dead_letter is not None:
        files = written.dead_letter_files
        letters = batch and letters_batch(batch, plan.writer.metadata.table_uuid, plan.branch)
        if letters is None or known_letters is None:
            commit_dead_letters(environment, plan.dead_letter, files, letters)
        else:
            put_aside(
                environment,
                plan.dead_letter,
                files,
                letters.query_id,
                end=summary or {},
                known=known_letters,
                write=lambda bad: plan.writer.write_dead_letters([bad], environment.runtime.ids),
            )
    if not (written.data_files or written.delete_files or written.truncation or is_mark):
        return None

    def check_all(state: TableState) -> None:
        check_same_table(state, plan.writer.metadata.table_uuid)
        plan.check_delete_scope(state)
        if check is not None:
            check(state)

    summary = {**(summary or {}), **missing_columns_summary(written.data_files)}
    if written.source_ms is not None:
        summary[SOURCE_MS] = str(written.source_ms)
    environment.runtime.fail_point("ingest.before_commit")
    if batch is not None or written.truncation is not None:
        result = commit_batch(
            environment,
            plan.identifier,
            branch=plan.branch,
            kind=plan.kind,
            batch=batch,
            data_files=written.data_files,
            delete_files=written.delete_files,
            truncation=written.truncation,
            summary=summary,
            check=check_all,
            is_mark=is_mark,
        )
    else:
        changeset = Changeset(
            kind=plan.kind,
            branch=plan.branch,
            added_data_files=written.data_files,
            added_delete_files=written.delete_files,
            summary=summary,
            carry_marker=plan.branch == MAIN_BRANCH,
        )
        result = commit(environment, plan.identifier, changeset, check=check_all)
    environment.runtime.fail_point("ingest.after_commit")
    return result


def with_ordinals(events: pa.Table) -> pa.Table:
    """The events with an arrival order over the whole batch, not per piece of it."""
    if ORDINAL in events.column_names:
        return events
    return events.append_column(ORDINAL, pa.array(np.arange(events.num_rows, dtype=np.int64)))
