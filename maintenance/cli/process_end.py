"""How the process of a command begins and ends, whatever is closed and whatever threads do."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


@contextmanager
def ending_with_its_status() -> Iterator[None]:
    """Around the whole command line: the process is gone once its work and its exit calls are done.

    Otherwise the interpreter is taken apart next. A thread of Arrow that comes to let go of a
    Python file meanwhile aborts the process (before Python 3.14): status 134 for a command that has
    done everything, which a scheduler takes for a failure.

    Effects: what is registered with `atexit` from here on is called first, and threads are waited
    for, as ever.
    """
    status = 1  # of an error that nobody has caught: its traceback is printed before the exit calls
    atexit.register(lambda: leave_at_once(status))
    try:
        yield
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        raise


def leave_at_once(status: int) -> NoReturn:
    """End the process without waiting for threads or calling what is registered with `atexit`."""
    logging.shutdown()
    for file in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # told where it was printed
            file.flush()
    os._exit(status)


def open_closed() -> None:
    """Open in place of each closed one what fails as it would: to read, to write.

    Python has None for them, which is no file to print to. And the next file that is opened would
    have the free number: what a library prints would be written into a table's file.

    Effects: `sys.stdin`, `sys.stdout` and `sys.stderr` are files. What is said on a closed standard
    error is lost, as nobody could be told.
    """
    if sys.stdin is None:
        sys.stdin = open(_null(os.O_WRONLY), encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(_null(os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(_null(os.O_WRONLY), "w", encoding="utf-8")  # noqa: SIM115


def _null(flags: int) -> int:
    """The null device under the lowest free number, which is the closed one's."""
    return os.open(os.devnull, flags)
