"""Trino and a client that runs the statements of a file on it, one after another.

One that was killed takes its statement up again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.support.trino import TrinoError, start_trino
from tests.writers.spark_writer import note


def main(uri: str, statements: Path, pause_s: float, at: Path) -> None:
    """Run them; one that ran before it was noted leads to the same rows."""
    lines, server = statements.read_text().splitlines(), start_trino(uri)
    done = int(at.read_text()) if at.exists() else 0
    while done < len(lines):
        start = time.monotonic()
        try:
            server.query(lines[done])
        except TrinoError as error:  # what it read was compacted meanwhile
            print(f"again: {error}", flush=True)
            continue
        done += 1
        note(at, done)
        time.sleep(max(0.0, pause_s - (time.monotonic() - start)))


if __name__ == "__main__":
    uri, statements, pause_s, at = sys.argv[1:]
    main(uri, Path(statements), float(pause_s), Path(at))
