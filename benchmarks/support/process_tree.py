"""CPU time and memory of a process with all its children, from Linux's `/proc`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processes_of(root: int) -> list[int]:
    """The process and all its descendants that live."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        fields = _stat(int(folder.name))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [root]
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += children.get(process, [])
    return found


def cpu_seconds(root: int) -> float:
    """User and system time so far, of children that have ended and were waited for, too."""
    # utime, stime, and those of children that were waited for.
    ticks = sum(sum(map(int, _stat(each)[11:15])) for each in processes_of(root))
    return ticks / TICKS_PER_S


@dataclass
class CpuMeter:
    """User and system time of a process and its children, of those that have ended since, too.

    A parent that does not wait for its children, as Spark's daemon of Python workers, does not say
    what they took: what was seen of each at the last reading stays.
    """

    root: int
    _seen: dict[int, float] = field(default_factory=dict)

    def read(self) -> float:
        """Seconds so far; to be asked often."""
        for each in processes_of(self.root):
            fields = _stat(each)
            if fields:
                self._seen[each] = sum(map(int, fields[11:13])) / TICKS_PER_S
        return sum(self._seen.values())


def memory_bytes(root: int) -> int:
    """Memory held; pages that several of the processes share count once (PSS)."""
    return sum(_pss_bytes(each) for each in processes_of(root))


def _stat(process: int) -> list[str]:
    """Fields of `/proc/<pid>/stat` after the name: state, parent, ...; none if it has ended."""
    try:
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _pss_bytes(process: int) -> int:
    try:
        lines = (PROC / str(process) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
