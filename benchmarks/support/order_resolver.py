"""`python -m benchmarks.support.order_resolver WAREHOUSE TABLE`: the resolver beside it.

Resolves as soon as something is staged. When its input ends it resolves what is left and ends.
Prints one JSON line per published cycle.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import tableformat as tf
from resolver import resolve
from tableformat.errors import NotFoundError

IDLE_S = 0.05


def main() -> None:
    warehouse, name = sys.argv[1:]
    table = tf.open_catalog("local", warehouse=warehouse).load_table(name)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while True:
        is_last = ended.is_set()
        begin = time.perf_counter()
        try:
            staged = resolve(table).staged_snapshots
        except NotFoundError:  # nothing was ever staged
            staged = 0
        if staged:
            seconds = round(time.perf_counter() - begin, 3)
            print(json.dumps({"staged": staged, "seconds": seconds}), flush=True)
        elif is_last:
            return
        else:
            time.sleep(IDLE_S)


if __name__ == "__main__":
    main()
