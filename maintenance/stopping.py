"""A lock whose holders can be asked to stop where they need no lease.

Long tasks call `pause` between two steps that are each complete. Asked to stop, they end right
there: what is committed stays, the rest is left to the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from lock import HeldLease, LeaseLostError, LockManager


def stoppable(lock: LockManager, is_stopping: Callable[[], bool]) -> LockManager:
    """The lock, but for the leases that it gives out: those ask at every `pause`."""
    return cast("LockManager", _StoppableLock(lock, is_stopping))


class _Wrapped:
    """Passes on what it does not have."""

    def __init__(self, inner: Any, is_stopping: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_stopping = is_stopping

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _StoppableLock(_Wrapped):
    @contextmanager
    def hold(self, name: str, **options: Any) -> Iterator[HeldLease]:
        with self._inner.hold(name, **options) as lease:
            yield cast("HeldLease", _StoppableLease(lease, self._is_stopping))


class _StoppableLease(_Wrapped):
    def pause(self) -> None:
        if self._is_stopping():
            raise LeaseLostError(
                "stopped between two steps, as asked; the rest is left to the next run",
                lock=self._inner.name,
            )
        self._inner.pause()
