"""`python -m benchmarks.support.order_stream WAREHOUSE TABLE EVENTS CHECKPOINT [SECONDS]`: the job.

Streams the files of a folder, one per micro-batch, until all are staged. With SECONDS it starts a
batch that often with whatever there is, and goes on until its input ends. Prints one JSON line when
the query runs, and one per batch that is committed. It is a process of its own so that it can be
killed at any instant, its JVM with it.
"""

from __future__ import annotations

import json
import sys

import tableformat as tf
from benchmarks.support.order_events import OPTIONS
from tableformat.cdc.ingest import IngestResult
from tableformat.spark.session import local_session
from tableformat.spark.stream_writer import file_events, write_stream

FOLLOWED_FILES = 1000


def main() -> None:
    warehouse, name, events, checkpoint, *every_s = sys.argv[1:]
    table = tf.open_catalog("local", warehouse=warehouse).load_table(name)
    conf = {"spark.sql.adaptive.enabled": "false"}  # as the command line has it
    # A small heap fills within a long benchmark; a large one looks like growth all the way.
    spark = local_session("orders", cores=2, memory="1g", conf=conf)

    def on_batch(batch: int, result: IngestResult) -> None:
        _say(batch=batch, events=result.events, repeated=result.repeated)

    query = write_stream(
        table.environment,
        table.identifier,
        file_events(spark, events, files_per_batch=FOLLOWED_FILES if every_s else 1),
        checkpoint=checkpoint,
        options=OPTIONS,
        trigger={"processingTime": f"{every_s[0]} seconds"} if every_s else {"availableNow": True},
        on_batch=on_batch,
    )
    _say(started=True)
    if every_s:
        sys.stdin.read()
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()
    spark.stop()


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
