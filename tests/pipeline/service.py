"""A process that is started again whenever it has ended, and how its memory goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median

from tests.support.guard import stop_with_this_process
from tests.support.pipeline import ROOT

# A process still loads code, fills caches and compiles before; on a busy machine for long.
WARM_S, WARM_SHARE = 300.0, 1 / 3
LONG_S = 900.0  # a life from which a line means something
PROGRAMS = ("java", "python")  # others live for a moment, as a fork with the memory of its parent
MINUTE_S, MIB = 60.0, 1 << 20
# An hour at this slope is a fifth of what an ingest takes: under it is what the heap's size does.
GROWTH_MIB_PER_MINUTE = 2.0
PROGRAM = "from maintenance.cli.start import main; main()"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Service:
    """A process that is started again whenever it has ended: icefold, or another `program`.

    Attributes:
        status: With which its last life ended by itself.
    """

    name: str
    words: Sequence[str]
    folder: Path
    program: Sequence[str] = (sys.executable, "-c", PROGRAM)
    environment: Mapping[str, str] = field(default_factory=dict)
    status: int | None = None
    process: subprocess.Popen[bytes] | None = None
    due_s: float = 0.0
    ends: int = 0
    lives: list[Life] = field(default_factory=list)

    def keep_up(self) -> None:
        """Start it if it is not running and its pause is over."""
        if self.process is not None and self.process.poll() is not None:
            self.ends += 1
            self.status = self.process.returncode
            self.process = None
            self.due_s = time.monotonic() + 1.0
        if self.process is None and time.monotonic() >= self.due_s:
            with (self.folder / f"{self.name}.log").open("ab") as log:
                self.process = subprocess.Popen(
                    [*self.program, *self.words],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    cwd=self.folder,
                    env=os.environ | {"PYTHONPATH": str(ROOT), **self.environment},
                    start_new_session=True,
                )
            self.lives.append(Life(time.monotonic()))
            group = f"-{self.process.pid}"
            stop_with_this_process(["kill", "-9", group], self.folder / "none")

    def kill(self, pause_s: float = 0.0) -> None:
        """`kill -9` of it and of the Java and Python that it started."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
        self.due_s = time.monotonic() + pause_s

    def stop(self) -> int | None:
        """SIGTERM, as a service manager does; its exit code."""
        status = None
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                status = self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None
        return status

    def sample(self) -> None:
        """Note the memory of the process that runs."""
        if self.process is not None:
            self.lives[-1].sample(self.process.pid)


@dataclass
class Life:
    """One process and what it has started, from its start to its end."""

    start_s: float
    samples: list[tuple[float, Counter[str]]] = field(default_factory=list)

    def sample(self, group: int) -> None:
        """Note resident bytes of its process group, by program."""
        self.samples.append((time.monotonic() - self.start_s, group_bytes(group)))

    @property
    def length_s(self) -> float:
        return self.samples[-1][0] if self.samples else 0.0

    def lines(self) -> dict[str, Line]:
        """A line through the warm samples of each program, and of their sum."""
        warm_s = max(WARM_S, WARM_SHARE * self.length_s)
        warm = [(age_s, sizes) for age_s, sizes in self.samples if age_s >= warm_s]
        ages = [age_s / MINUTE_S for age_s, _ in warm]
        series = {
            name: [sizes[name] / MIB for _, sizes in warm]
            for name in sorted({name for _, sizes in warm for name in sizes})
        }
        series["all"] = [sizes.total() / MIB for _, sizes in warm]
        return {name: Line.through(ages, sizes) for name, sizes in series.items()}


@dataclass(frozen=True)
class Line:
    """How memory went: least squares, and the middle of the first and of the last quarter."""

    slope_mib_per_minute: float
    first_mib: float
    last_mib: float
    max_mib: float

    @classmethod
    def through(cls, minutes: Sequence[float], sizes_mib: Sequence[float]) -> Line:
        """Needs two samples at least."""
        quarter = max(1, len(sizes_mib) // 4)
        return cls(
            linear_regression(minutes, sizes_mib).slope,
            median(sizes_mib[:quarter]),
            median(sizes_mib[-quarter:]),
            max(sizes_mib),
        )

    @property
    def grows(self) -> bool:
        """The line rises, and so do the quarters: one late peak is no growth."""
        is_steep = self.slope_mib_per_minute > GROWTH_MIB_PER_MINUTE
        return is_steep and self.last_mib > self.first_mib * 1.05

    def __str__(self) -> str:
        return (
            f"{self.slope_mib_per_minute:+.2f} MiB/min (first quarter {self.first_mib:.0f} MiB, "
            f"last {self.last_mib:.0f}, most {self.max_mib:.0f}){' GROWS' if self.grows else ''}"
        )


def group_bytes(group: int) -> Counter[str]:
    """Resident memory of a process group, by program: python, java."""
    total: Counter[str] = Counter()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = stat.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        if name in PROGRAMS and int(fields.split()[2]) == group:
            total[name] += int(fields.split()[21]) * PAGE_BYTES
    return total
