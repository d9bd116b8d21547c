"""Standard input, output and error where the caller has closed them (`>&-`)."""

from __future__ import annotations

import os
import sys


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
