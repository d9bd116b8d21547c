"""CPU time and memory of a process with all its children, from Linux's `/proc`."""

from __future__ import annotations

import os
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
    """User and system time so far, of children that have ended too."""
    # utime, stime, and those of children that were waited for.
    ticks = sum(sum(map(int, _stat(each)[11:15])) for each in processes_of(root))
    return ticks / TICKS_PER_S


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
