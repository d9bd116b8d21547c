"""The claim of a query on its checkpoint: from before it starts until it has ended.

A query may end long before its process does, so a thread of its own waits for its end.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tableformat.cdc.sink import SinkPlan
from tableformat.errors import TableError
from tableformat.spark.checkpoint import CheckpointedStream, claim_checkpoint, local_folder
from tableformat.spark.kafka_source import PREFIX, KafkaSource, topic_ids

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
    leaf = _leaf_of(events)
    topic, source = _source_of(leaf)
    stream = CheckpointedStream(
        table=state.name,
        table_uuid=str(state.metadata.table_uuid),
        branch=plan.branch,
        topic=topic,
        folder=source,
    )
    ids = {} if topic is None else _ids_of(events.sparkSession, leaf, stream.topics)
    _await_release(folder)
    return claim_checkpoint(folder, stream, ids)


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


def _leaf_of(events: DataFrame) -> Any:
    """What a frame reads, in Java, if that is one source.

    Asked of the plan: PySpark has no public way.
    """
    leaves = events._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    return leaves.apply(0) if leaves.length() == 1 else None


def _source_of(leaf: Any) -> tuple[str | None, str | None]:
    """The Kafka topics or the folder that are read; neither if it is something else."""
    name = str(leaf.toString()) if leaf is not None else ""
    if name == KAFKA_SOURCE:
        topics = leaf.extraOptions().get("subscribe")
        return (None if topics is None else ",".join(sorted(topics.split(",")))), None
    folder = name.removeprefix(FILE_SOURCE).removesuffix("]")
    return None, (None if folder == name else str(local_folder(folder) or folder))


def _ids_of(spark: SparkSession, leaf: Any, topics: Collection[str]) -> Mapping[str, str]:
    """Kafka's ids of the topics; none where its client in this process cannot ask for them.

    Spark's tasks may have a login, or a way to the brokers, that this client has not.
    """
    options = leaf.extraOptions().asCaseSensitiveMap()
    settings = {str(k): str(options[k]) for k in options if str(k).lower().startswith(PREFIX)}
    servers = settings.pop("kafka.bootstrap.servers", "")
    try:
        return topic_ids(spark, KafkaSource(servers=servers, topic="", settings=settings), topics)
    except TableError:
        return {}
