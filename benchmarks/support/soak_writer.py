"""The writer of a soak, a process of its own: one staged commit per interval."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pyarrow as pa

import tableformat as tf
from benchmarks.support.soak_model import Stream


def write(folder: Path, table_name: str, stream: Stream, interval_s: float, end: float) -> None:
    """Stage batches until `end` (seconds since the epoch); a line per commit that landed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    table = tf.open_catalog("local", warehouse=str(folder / "warehouse")).load_table(table_name)
    begin = time.monotonic()
    with (folder / "staged.log").open("a", buffering=1) as log:
        number = 0
        while time.time() < end:
            number += 1
            ids, values, dead = stream.batch(number)
            result = table.stage(
                upserts=stream.rows(ids, values), deletes=pa.table({"id": pa.array(dead)})
            )
            log.write(f"{result.snapshot.snapshot_id} {number}\n")
            time.sleep(max(begin + number * interval_s - time.monotonic(), 0))
