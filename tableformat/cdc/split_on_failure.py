"""Find the wrong rows of a block that can only be read whole: halve it until they stand alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

Piece = TypeVar("Piece")


def read_in_halves(
    count: int, read: Callable[[int, int], Piece], errors: tuple[type[Exception], ...]
) -> Iterator[tuple[int, int, Piece | Exception]]:
    """Read rows 0 to `count`, all at once if that works.

    Args:
        count: Number of rows.
        read: Reads the rows from a start to a stop, or raises one of `errors`.
        errors: What says that some row of a block is wrong.

    Yields:
        Start, stop and what was read, in row order; for a wrong row the error it raised alone.
        Reading costs the logarithm of `count` more for each of them.
    """
    pending = [(0, count)]
    while pending:
        start, stop = pending.pop()
        try:
            found: Piece | Exception = read(start, stop)
        except errors as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
                continue
            found = error
        yield start, stop, found
