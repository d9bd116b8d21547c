"""Locks that lie (I16): everything must stay right with them, only work may be wasted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from lock import HeldLease, Lease, LeaseLostError, LockState
from lock.lease import DEFAULT_LEASE_MS, RESUME_TIMEOUT_MS


@dataclass
class GrantAllLock:
    """A `LockManager` that grants everybody everything at once.

    Args:
        tokens: `rising`: each grant has a new token, as from a lock that expires leases at once.
            `same`: all have token 1, as from a store that ignores conditions (R73).
        lost: Asked at each `check`, `confirm` and `renew` of a lease; True takes the lease away, in
            the middle of whatever its holder does. Never, if not given.
    """

    is_far = False
    tokens: Literal["rising", "same"] = "rising"
    lost: Callable[[Lease], bool] = lambda _: False
    granted: list[Lease] = field(default_factory=list)

    def try_acquire(
        self, name: str, *, task: str, lease_ms: int | None = None, token_floor: int = 0
    ) -> Lease | None:
        return self.acquire(name, task=task, lease_ms=lease_ms, token_floor=token_floor)

    def acquire(
        self,
        name: str,
        *,
        task: str,
        timeout_ms: int | None = None,
        lease_ms: int | None = None,
        token_floor: int = 0,
        then: Sequence[str] = (),
    ) -> Lease:
        number = len(self.granted) + 1
        lease = Lease(
            name=name,
            owner_id=f"owner {number}",
            holder=f"{task} (liar)",
            lease_ms=lease_ms or DEFAULT_LEASE_MS,
            token=1 if self.tokens == "same" else max(number, token_floor + 1),
            confirmed_ms=0.0,
        )
        self.granted.append(lease)
        return lease

    def renew(self, lease: Lease) -> Lease:
        if self.lost(lease):
            raise LeaseLostError("lease lost: taken away", lock=lease.name, token=lease.token)
        return lease

    def release(self, lease: Lease) -> bool:
        return True

    def inspect(self, name: str) -> LockState:
        return LockState(
            name=name,
            token=self.granted[-1].token if self.granted else 0,
            owner_id=None,
            holder=None,
            lease_ms=0,
            held_ms=0,
            silent_ms=0,
            waiters=(),
        )

    def break_(self, name: str, *, token: int | None = None) -> LockState:
        return self.inspect(name)

    @contextmanager
    def hold(
        self,
        name: str,
        *,
        task: str,
        timeout_ms: int | None = None,
        lease_ms: int | None = None,
        token_floor: int = 0,
        then: Sequence[str] = (),
        heartbeat: bool = True,
    ) -> Iterator[HeldLease]:
        yield GrantedLease(
            self, self.acquire(name, task=task, lease_ms=lease_ms, token_floor=token_floor)
        )


class GrantedLease:
    """A `HeldLease` that is held because it says so."""

    def __init__(self, manager: GrantAllLock, lease: Lease) -> None:
        self._manager = manager
        self._lease = lease
        self._lost = False

    @property
    def lease(self) -> Lease:
        return self._lease

    @property
    def token(self) -> int:
        return self._lease.token

    @property
    def name(self) -> str:
        return self._lease.name

    def still_held(self) -> bool:
        self._lost = self._lost or self._manager.lost(self._lease)
        return not self._lost

    def check(self) -> None:
        if not self.still_held():
            raise LeaseLostError("lease lost: taken away", lock=self.name, token=self.token)

    def confirm(self) -> None:
        self.check()

    def pause(self) -> None:
        self.check()

    def resume(self, *, timeout_ms: int = RESUME_TIMEOUT_MS) -> None:
        self.check()
