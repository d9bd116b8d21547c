"""Trino and a client that merges events into `main`, batch by batch.

One that was killed takes its batch up again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.support.trino import CATALOG, TrinoError, start_trino
from tests.writers.events import Events

MERGE = """
    MERGE INTO {table} t USING (VALUES {rows}) s (id, region, v, deletes) ON t.id = s.id
    WHEN MATCHED AND s.deletes THEN DELETE
    WHEN MATCHED THEN UPDATE SET v = s.v
    WHEN NOT MATCHED AND NOT s.deletes THEN INSERT (id, region, v) VALUES (s.id, s.region, s.v)
"""


def main(uri: str, table: str, count: int, keys: int, batch: int, pause_s: float, at: Path) -> None:
    """Merge all events; a batch that was merged before it was noted leads to the same rows."""
    events, server = Events.of(count, keys), start_trino(uri)
    done = int(at.read_text()) if at.exists() else 0
    while done < count:
        start, end = time.monotonic(), min(count, done + batch)
        newest = {row[0]: row for row in events.rows(done, end)}
        rows = ", ".join(
            f"(BIGINT '{key}', '{region}', '{v}', {gone})"
            for key, region, v, gone in newest.values()
        )
        try:
            server.query(MERGE.format(table=f"{CATALOG}.{table}", rows=rows))
        except TrinoError as error:  # what it read was compacted meanwhile
            print(f"again: {error}", flush=True)
            continue
        done = end
        at.write_text(str(done))
        time.sleep(max(0.0, pause_s - (time.monotonic() - start)))


if __name__ == "__main__":
    uri, table, count, keys, batch, pause_s, at = sys.argv[1:]
    main(uri, table, int(count), int(keys), int(batch), float(pause_s), Path(at))
