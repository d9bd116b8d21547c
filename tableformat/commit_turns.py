"""Commits of a process take turns where they would only lose races against each other.

A commit of several tables is one swap of all: whoever commits to one of them between its look and
its swap makes it begin again with that table, and write the metadata of all a second time. A
process that stages and publishes does that to itself all day. So a group has its turn alone, and
single tables go side by side in between. This saves work and gives no safety: others commit, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CommitTurns:
    """Whose turn it is. One value for all threads that commit to a catalog."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._single = 0
        self._groups = 0  # the one whose turn it is, and those that wait
        self._is_group = False

    @contextmanager
    def take(self, *, is_group: bool) -> Iterator[None]:
        """One attempt. A group that waits goes before single tables that come later."""
        with self._changed:
            self._groups += is_group
            try:
                self._changed.wait_for(self._is_free if is_group else lambda: not self._groups)
            except BaseException:
                self._groups -= is_group
                self._changed.notify_all()
                raise
            self._is_group = is_group
            self._single += not is_group
        try:
            yield
        finally:
            with self._changed:
                self._is_group = False
                self._groups -= is_group
                self._single -= not is_group
                self._changed.notify_all()

    def _is_free(self) -> bool:
        return not (self._single or self._is_group)
