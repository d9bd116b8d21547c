"""A lock whose holders can be asked to stop where they would let others through.

Long tasks call `yield_if_waited` between two steps that are each complete. Asked to stop, they end
right there: what is committed stays, the rest is left to the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lock import HeldLease, Lease, LeaseLostError, LockManager, LockState, Waiter
from lock.lease import YIELD_TIMEOUT_MS


class StoppableLock:
    """A `LockManager` that passes everything on, but for the leases that it gives out.

    Args:
        inner: The lock.
        is_stopping: Asked at every `yield_if_waited`.
    """

    def __init__(self, inner: LockManager, is_stopping: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_stopping = is_stopping

    def try_acquire(self, name: str, **options: Any) -> Lease | None:
        """See `LockManager`."""
        return self._inner.try_acquire(name, **options)

    def acquire(self, name: str, **options: Any) -> Lease:
        """See `LockManager`."""
        return self._inner.acquire(name, **options)

    def renew(self, lease: Lease) -> Lease:
        """See `LockManager`."""
        return self._inner.renew(lease)

    def release(self, lease: Lease) -> bool:
        """See `LockManager`."""
        return self._inner.release(lease)

    def inspect(self, name: str) -> LockState:
        """See `LockManager`."""
        return self._inner.inspect(name)

    def break_(self, name: str, *, token: int | None = None) -> LockState:
        """See `LockManager`."""
        return self._inner.break_(name, token=token)

    @contextmanager
    def hold(self, name: str, **options: Any) -> Iterator[HeldLease]:
        """See `LockManager`."""
        with self._inner.hold(name, **options) as lease:
            yield _StoppableLease(lease, self._is_stopping)


class _StoppableLease:
    def __init__(self, inner: HeldLease, is_stopping: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_stopping = is_stopping

    @property
    def token(self) -> int:
        return self._inner.token

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def lease(self) -> Lease:
        return self._inner.lease

    def still_held(self) -> bool:
        return self._inner.still_held()

    def check(self) -> None:
        self._inner.check()

    def confirm(self) -> None:
        self._inner.confirm()

    def waiters(self) -> tuple[Waiter, ...]:
        return self._inner.waiters()

    def yield_if_waited(self, *, timeout_ms: int = YIELD_TIMEOUT_MS) -> bool:
        if self._is_stopping():
            raise LeaseLostError(
                "stopped between two steps, as asked; the rest is left to the next run",
                lock=self._inner.name,
            )
        return self._inner.yield_if_waited(timeout_ms=timeout_ms)
