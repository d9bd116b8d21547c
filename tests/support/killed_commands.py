"""`icefold` commands as their own processes, killed at any fail point that they pass."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import maintenance.cli.start
from tableformat.cdc import load_source
from tableformat.runtime import FailPoints
from tests.support.crash_child import KILLED, preload, started

preload(__name__, "maintenance.cli.main", "pyiceberg.catalog.sql", "tableformat.cdc.debezium")


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code, what it wrote, the fail points that it passed."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    points: tuple[str, ...]

    @property
    def is_killed(self) -> bool:
        """Whether it came to where it should die."""
        return self.code == KILLED

    def __str__(self) -> str:
        last = self.points[-1] if self.points else "-"
        return f"{' '.join(self.words)} -> {self.code} at {last}: {self.err.strip()[-300:]}"


@dataclass
class Running:
    """A command that may still run."""

    words: tuple[str, ...]
    child: BaseProcess
    folder: Path

    def end(self) -> Ended:
        """Wait for it."""
        self.child.join(120)
        assert self.child.exitcode is not None, f"{self.words} hangs"
        out, err, points = (
            (self.folder / name).read_text() if (self.folder / name).exists() else ""
            for name in ("out", "err", "points")
        )
        ended = Ended(self.words, self.child.exitcode, out, err, tuple(points.split()))
        assert "Traceback" not in ended.err, str(ended) + ended.err
        return ended


class Commands:
    """Runs commands on one warehouse.

    Attributes:
        piece_bytes: Of a load; None: the product's.
    """

    def __init__(self, folder: Path, *, piece_bytes: int | None = None) -> None:
        self.warehouse = str(folder / "warehouse")
        self.piece_bytes = piece_bytes
        self._folder = folder / "commands"
        self._count = 0

    def start(self, *words: Any, kill_at: int | None = None) -> Running:
        """Start one, to be killed at the fail point of that number."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(parents=True)
        argv = tuple(map(str, words))
        given = ("--warehouse", self.warehouse, *argv)
        child = started(_command, given, str(folder), kill_at, self.piece_bytes)
        return Running(argv, child, folder)

    def run(self, *words: Any, kill_at: int | None = None) -> Ended:
        """The same, to its end."""
        return self.start(*words, kill_at=kill_at).end()


def _command(
    argv: tuple[str, ...], folder: str, kill_at: int | None, piece_bytes: int | None
) -> None:
    if piece_bytes is not None:
        load_source.PIECE_BYTES = piece_bytes
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
    points = os.open(Path(folder, "points"), os.O_WRONLY | os.O_CREAT)
    passed, one = 0, threading.Lock()

    def hit(_self: FailPoints, name: str) -> None:
        nonlocal passed
        with one:
            passed += 1
            os.write(points, f"{name}\n".encode())
            if passed == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    FailPoints.hit = hit  # type: ignore[method-assign]
    sys.argv = ["icefold", *argv]
    code: Any = 0
    try:
        maintenance.cli.start.main()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
