"""A gate before a REST catalog's server: somebody else acts right before a commit lands."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable

from tests.support.fault_proxy import Fault, FaultProxy

_COMMIT = re.compile(r"/namespaces/[^/]+/tables/[^/?]+$")


class CommitGate(FaultProxy):
    """Clients that are to be interrupted use `uri`; the others talk to the server itself."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._action: Callable[[], object] | None = None
        self._closed = threading.Lock()
        self._skip = 0
        self.has_acted = False
        self.error: BaseException | None = None

    def arm(self, action: Callable[[], object], *, skip: int = 0) -> None:
        """Run `action` once, before the commit after `skip` others; what it raises is `error`."""
        self._action, self._skip, self.has_acted, self.error = action, skip, False, None

    def disarm(self) -> None:
        """No commit came, or one action was enough."""
        self._action = None

    def take(self, method: str, path: str) -> Fault | None:
        """As the proxy's; the client waits while the action runs."""
        if method == "POST" and _COMMIT.search(path):
            with self._closed:  # a client may have several commits under way
                self._act()
        return super().take(method, path)

    def _act(self) -> None:
        if self._action is None:
            return
        if self._skip:
            self._skip -= 1
            return
        action, self._action, self.has_acted = self._action, None, True
        try:
            action()
        except BaseException as error:
            self.error = error


@functools.cache
def commit_gate(upstream: str) -> CommitGate:
    """The gate of this process before that server."""
    return CommitGate(upstream)
