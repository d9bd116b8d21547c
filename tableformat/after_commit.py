"""What has landed stays landed: trouble after a commit never reads as if nothing had been done.

What is only for convenience (the table loaded again) is told in the log, and the call succeeds.
What is part of the work fails the call, and its message begins with what was committed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tableformat.errors import TableError

logger = logging.getLogger("icefold")


class Reloadable(Protocol):
    """A table."""

    @property
    def name(self) -> str:
        """Dotted."""

    def refresh(self) -> object:
        """Load it again."""


def reload_after(table: Reloadable, done: str) -> bool:
    """Load a table again after a commit; a load that fails is logged, with what was `done`.

    Returns:
        Whether it was loaded; else the table stays at the version that it had.
    """
    try:
        table.refresh()
    except TableError as error:
        logger.warning(
            "%s: %s, but the table could not be loaded again: %s", table.name, done, error
        )
        return False
    return True


@contextmanager
def after_commit(done: str) -> Iterator[None]:
    """Errors say first what was `done`, and nobody deletes files for them."""
    try:
        yield
    except TableError as error:
        error.message = f"{done}, but then: {error.message}"
        error.files_safe_to_delete = False
        raise
