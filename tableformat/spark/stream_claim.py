"""The claim of a query on its checkpoint: from before it starts until it has ended.

A query may end long before its process does, so a thread of its own waits for its end.
"""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tableformat.cdc.sink import SinkPlan
from tableformat.spark.checkpoint import CheckpointedStream, claim_checkpoint, local_folder

FILE_SOURCE, KAFKA_SOURCE = "FileSource[", "kafka"  # how a plan shows where it reads
RELEASE_S = 5.0


def claim_for(plan: SinkPlan, events: DataFrame, checkpoint: str) -> IO[bytes]:
    """Claim a checkpoint for a stream of `events` into the sink, as `claim_checkpoint` does.

    One that is not on local disk is not looked at.
    """
    folder = local_folder(checkpoint)
    if folder is None:
        return io.BytesIO()
    state = plan.environment.catalog.load_table(plan.identifier)
    topic, source = _source_of(events)
    stream = CheckpointedStream(
        table=state.name,
        table_uuid=str(state.metadata.table_uuid),
        branch=plan.branch,
        topic=topic,
        folder=source,
    )
    _await_release(folder)
    return claim_checkpoint(folder, stream)


def release_when_over(query: StreamingQuery, claim: IO[bytes], checkpoint: str) -> None:
    """Close `claim` when the query has ended."""
    _Release(query, claim, local_folder(checkpoint)).start()


class _Release(threading.Thread):
    def __init__(self, query: StreamingQuery, claim: IO[bytes], folder: Path | None) -> None:
        super().__init__(name=f"icefold: end of {query.id}", daemon=True)
        self.query, self.folder, self._claim = query, folder, claim

    def run(self) -> None:
        with self._claim, suppress(Exception):  # those who wait for the query are told its error
            self.query.awaitTermination()


def _await_release(folder: Path) -> None:
    """A query of this process that has ended gives its checkpoint free at once, but not before."""
    for thread in threading.enumerate():
        if isinstance(thread, _Release) and thread.folder == folder and not thread.query.isActive:
            thread.join(RELEASE_S)


def _source_of(events: DataFrame) -> tuple[str | None, str | None]:
    """The Kafka topics or the folder that a frame reads; neither if it reads something else.

    Asked of the plan: PySpark has no public way.
    """
    leaves = events._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    if leaves.length() != 1:
        return None, None
    leaf = leaves.apply(0)
    name = str(leaf.toString())
    if name == KAFKA_SOURCE:
        topics = leaf.extraOptions().get("subscribe")
        return (None if topics is None else ",".join(sorted(topics.split(",")))), None
    folder = name.removeprefix(FILE_SOURCE).removesuffix("]")
    return None, (None if folder == name else str(local_folder(folder) or folder))
