"""One resolve in a process of its own, which prints what it took as JSON: how memory is measured.

python -m benchmarks.support.resolve_child WAREHOUSE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.support.resolve_tables import UNTIL_PUBLISHED, open_table
from resolver import resolve


def peak_bytes() -> int:
    """The most memory this process ever had; `ru_maxrss` would include its parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LookupError("VmHWM")


def main() -> None:
    table, _ = open_table(Path(sys.argv[1]))
    report = resolve(table)
    published_ms = sum(report.phases_ms[name] for name in UNTIL_PUBLISHED)
    print(
        json.dumps(
            {
                "deleted_rows": report.deleted_rows,
                "published_ms": published_ms,
                "cycle_ms": sum(report.phases_ms.values()),
                "index_ms": report.phases_ms["index"],
                "peak_bytes": peak_bytes(),
            }
        )
    )


if __name__ == "__main__":
    main()
