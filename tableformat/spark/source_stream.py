"""`spark.readStream.format("icefold")`: a changelog that goes on as its branch does.

An offset is the snapshot read up to. The first micro-batch has the changes from the option `from`
(or every row) to the head, each later one those since the offset before. Spark keeps the offsets in
the checkpoint and asks again for the same two after a failure: a changelog between two snapshots
never changes, so downstream sees every change exactly once if the sink takes batches once.

A branch that is rolled back makes a batch that undoes what is gone. A snapshot that expired before
it was read ends the query with an error: keep snapshots longer than the stream may stand still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tableformat.catalog.base import TableState
from tableformat.changelog.changes import Changes, new_changes
from tableformat.commit.branch_history import ancestors
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.scan.snapshot_selection import select_snapshot
from tableformat.spark.changelog_frame import changes_schema
from tableformat.spark.source_options import ReadOptions, SourceOptions
from tableformat.spark.source_reader import (
    change_partitions,
    is_changes,
    load,
    read_changes,
    refuse,
    version,
)
from tableformat.spec.names import MAIN_BRANCH

SNAPSHOT = "snapshot-id"
NO_SNAPSHOT = 0  # snapshot ids are positive
_NOT_FOR_STREAMS = ("tag", "snapshot-id", "as-of-ms", "to")

Offset = dict[str, Any]


class ChangesStream(DataSourceStreamReader):
    """See the module's text.

    Raises:
        InvalidInputError: Options that do not fit a stream.
        NotFoundError: There is no such table, branch, tag or snapshot.
    """

    def __init__(self, options: SourceOptions[ReadOptions]) -> None:
        if not is_changes(options):
            raise InvalidInputError("a stream reads changes", action="add the option read=changes")
        refuse(options.values, _NOT_FOR_STREAMS, "a stream follows a branch")
        self._options = options
        self._branch = options.values.branch or MAIN_BRANCH
        self._names = self._changes(*load(options), None, None).columns.output.names

    def spark_schema(self) -> StructType:
        """Columns of the stream."""
        return changes_schema(self._changes(*load(self._options), None, None).columns)

    def initialOffset(self) -> Offset:  # noqa: N802
        """Before the first batch."""
        _, state = load(self._options)
        start = version(self._options.values.from_)
        if start is None:
            return _offset(None)
        given = {"snapshot_id": start} if isinstance(start, int) else {"ref": start}
        snapshot = select_snapshot(state, **given).snapshot
        return _offset(None if snapshot is None else snapshot.snapshot_id)

    def latestOffset(  # noqa: N802
        self, start: Offset | None = None, limit: object = None
    ) -> Offset:
        """The branch's head, or as many snapshots ahead as `max-snapshots-per-batch` allows.

        Before Spark 4.2 the engine does not say where it is, and there is no limit.
        """
        _, state = load(self._options)
        head = state.head(self._branch)
        if head is None:
            return start if start is not None else self.initialOffset()
        most = self._options.values.max_snapshots_per_batch
        if start is None or most is None or type(limit).__name__ == "ReadAllAvailable":
            return _offset(head.snapshot_id)
        return _offset(self._ahead(state, head.snapshot_id, start, most))

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Says that batches are limited, if they are."""
        from pyspark.sql.streaming.datasource import (  # type: ignore[import-not-found, unused-ignore]  # from 4.2
            ReadAllAvailable,
            ReadMaxFiles,
        )

        most = self._options.values.max_snapshots_per_batch
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """What one micro-batch reads."""
        environment, state = load(self._options)
        found = self._changes(environment, state, start[SNAPSHOT], end[SNAPSHOT])
        if found.columns.output.names != self._names:
            raise InvalidInputError(
                "the table's columns changed while the stream was running",
                action="start the query again; it goes on where it was",
                found=", ".join(found.columns.output.names),
            )
        return change_partitions(found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on a worker."""
        return read_changes(partition)

    def _changes(
        self, environment: Environment, state: TableState, start: int | None, end: int | None
    ) -> Changes:
        """Rows are read with the table's current schema, so that batches agree on it."""
        values = self._options.values
        return new_changes(
            environment,
            state,
            from_snapshot=start or None,
            to_snapshot=end or None,
            branch=self._branch if not end else None,
            net=values.net,
            columns=values.columns or None,
            row_filter=values.filter,
            schema=state.metadata.schema(),
        )

    def _ahead(self, state: TableState, head_id: int, start: Offset, most: int) -> int:
        """The snapshot `most` steps after the offset on the way to the head."""
        path: list[int] = []
        for snapshot in ancestors(state.metadata, head_id):
            if snapshot.snapshot_id == start[SNAPSHOT]:
                break
            path.append(snapshot.snapshot_id)
        else:
            if start[SNAPSHOT] != NO_SNAPSHOT:
                return head_id  # rolled back: undone in one batch
        ahead = list(islice(reversed(path), most))
        return ahead[-1] if ahead else head_id


def _offset(snapshot_id: int | None) -> Offset:
    return {SNAPSHOT: NO_SNAPSHOT if snapshot_id is None else snapshot_id}
