"""How damage of an index is reported, and remembered until it is rebuilt.

Some damage shows only when a block is read, in the middle of a cycle. The mark makes the next run
rebuild the index instead of failing at the same block again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from resolver.index.base import IndexDamagedError

_MARK = "DAMAGED"


def damaged(message: str, location: Path | str, **context: object) -> IndexDamagedError:
    """The error; `index` is the part of the index that is damaged."""
    return IndexDamagedError(message, index=location, action="rebuild the index", **context)


@contextmanager
def remembering_damage(generation: Path) -> Iterator[None]:
    """Leave a mark in the generation when damage passes."""
    try:
        yield
    except IndexDamagedError:
        with suppress(OSError):  # the error itself matters more than its mark
            (generation / _MARK).touch()
        raise


def check_unmarked(generation: Path) -> None:
    """Refuse a generation that was found damaged before.

    Raises:
        IndexDamagedError: It has the mark.
    """
    if (generation / _MARK).exists():
        raise damaged("the index was found damaged before", generation)
