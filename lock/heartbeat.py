"""A lease that is kept alive by a thread, and that knows when it can no longer be trusted.

The thread renews every third of the lease time. Whether the lease is still ours is answered without
I/O from the last confirmation: when nine tenths of the lease time have passed since that was sent,
the lease counts as lost, and stays lost. The last tenth covers clocks that run at different speeds
and the time between a check and what it guards. A process that was stopped and continued therefore
fails its next `check`, whatever its thread does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from lock.errors import LeaseLostError, LockError, LockUnavailableError
from lock.lease import RESUME_TIMEOUT_MS, Lease
from lock.seams import Clock

logger = logging.getLogger("icefold.lock")

TRUSTED_SHARE = 0.9
_BEATS_PER_LEASE = 3
_RETRIES_PER_LEASE = 15  # after a renewal that failed, the next one comes this much sooner
_PAUSED = "paused"
_JOIN_TIMEOUT_S = 0.2  # the thread may hang in a dead connection; it can only renew what is ours


class Renewer(Protocol):
    """What a held lease needs of its manager."""

    @property
    def clock(self) -> Clock:
        """Measures the lease."""

    def renew(self, lease: Lease) -> Lease:
        """See `LockManager`."""

    def release(self, lease: Lease) -> bool:
        """See `LockManager`."""


class HeldLease:
    """A lease being held, as `LockManager.hold` gives it.

    Args:
        manager: Renews, releases.
        acquire: Acquires the same lock for the same task, within a timeout in ms.
        timeout_ms: For the first acquisition.
        heartbeat: Whether to start the thread.
    """

    def __init__(
        self,
        manager: Renewer,
        acquire: Callable[[int | None], Lease],
        *,
        timeout_ms: int | None,
        heartbeat: bool,
    ) -> None:
        self._manager = manager
        self._acquire = acquire
        self._heartbeat = heartbeat
        self._pid = os.getpid()
        self._pulse = self._begin(timeout_ms)

    def __del__(self) -> None:
        # Nobody can close it any more: an interrupt came between two steps of a `with`. The lease
        # runs out. No event is set: the collector may have stopped a thread that holds its lock.
        pulse = getattr(self, "_pulse", None)
        if pulse is not None:
            pulse.lost = pulse.lost or "dropped"

    def __repr__(self) -> str:
        return f"HeldLease({self.name!r}, token={self.token})"

    @property
    def lease(self) -> Lease:
        """The lease as last confirmed."""
        return self._pulse.lease

    @property
    def token(self) -> int:
        """The fence token. Changes only in `resume`."""
        return self._pulse.lease.token

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._pulse.lease.name

    def still_held(self) -> bool:
        """Whether the last confirmation is recent enough. No I/O; False once, False for ever."""
        return self._reason_lost() is None

    def check(self) -> None:
        """Raise `LeaseLostError` unless `still_held`. No I/O: for inner loops."""
        reason = self._reason_lost()
        if reason is not None:
            raise LeaseLostError(
                f"lease lost: {reason}",
                lock=self.name,
                token=self.token,
                action="stop; plan again under a new lease",
            )

    def confirm(self) -> None:
        """Renew at the store, now; `LeaseLostError` if that fails. For before irreversible steps.

        Sees what `check` cannot: an operator's break, a machine that was suspended, a takeover
        that this process slept through. An unreachable store fails it too: an unproven lease is no
        lease.
        """
        self.check()
        try:
            self._pulse.renew()
        except LockUnavailableError as error:
            raise LeaseLostError(
                "lease not confirmed: the lock's store did not answer",
                lock=self.name,
                token=self.token,
                action="try again while the lease lasts, else plan again under a new one",
            ) from error
        self.check()

    def pause(self) -> None:
        """Release until `resume`: for work that needs no lease. Again: nothing.

        If it fails, nothing is held.
        """
        if self._pulse.lost == _PAUSED:
            return
        self.check()
        self._pulse.stop(_PAUSED)
        self._manager.release(self.lease)

    def resume(self, *, timeout_ms: int = RESUME_TIMEOUT_MS) -> None:
        """Queue and acquire again, with a new `token`. What depends on the table is planned again.

        If it fails, nothing is held.

        Raises:
            LeaseUnavailableError: Someone else has had it for the whole of `timeout_ms`.
        """
        if self._pulse.lost != _PAUSED:
            raise ValueError("resumed without a pause")
        self._pulse = self._begin(timeout_ms)

    def close(self) -> None:
        """Stop the thread and release. Raises no `LockError`: the lease runs out by itself."""
        if os.getpid() != self._pid:
            return  # a forked child: the lease is its parent's
        already_released = self._pulse.lost == _PAUSED
        try:
            self._pulse.stop("released")
        finally:
            if not already_released:
                self._release(self.lease)

    def _begin(self, timeout_ms: int | None) -> _Pulse:
        """Acquire, and renew from then on. An interrupt leaves nothing held."""
        lease = self._acquire(timeout_ms)
        pulse = _Pulse(self._manager, lease)
        try:
            if self._heartbeat:
                pulse.start()
        except BaseException:
            pulse.stop("interrupted")
            self._release(lease)
            raise
        return pulse

    def _release(self, lease: Lease) -> None:
        try:
            self._manager.release(lease)
        except LockError as error:
            logger.warning("lock %s: not released, runs out by itself: %s", lease.name, error)
        except BaseException:  # an interrupt; the next one is obeyed at once
            with suppress(LockError):
                self._manager.release(lease)
            raise

    def _reason_lost(self) -> str | None:
        if os.getpid() != self._pid:
            return "it belongs to the parent process"
        return self._pulse.reason_lost()


class _Pulse:
    """One lease, its last confirmation, and the thread that renews it."""

    def __init__(self, manager: Renewer, lease: Lease) -> None:
        self.lease = lease
        self.lost: str | None = None
        self._manager = manager
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Renew in a thread from now on."""
        name = f"lease {self.lease.name}"[:60]
        self._thread = threading.Thread(target=self._beat, name=name, daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Prove the lease at the store.

        Without a mutex: `confirm` must not wait for a heartbeat that hangs in a dead connection. Of
        two renewals at once the newer proof stays.
        """
        try:
            renewed = self._manager.renew(self.lease)
        except LeaseLostError as error:
            self._give_up(error.message.removeprefix("lease lost: "))
            raise
        if renewed.confirmed_ms > self.lease.confirmed_ms:
            self.lease = renewed

    def reason_lost(self) -> str | None:
        """Why the lease cannot be trusted, or None. No I/O, no waiting for a renewal under way."""
        if self.lost is None:
            age_ms = self._manager.clock.monotonic_ms() - self.lease.confirmed_ms
            if age_ms >= self.lease.lease_ms * TRUSTED_SHARE:
                self._give_up(f"not confirmed for {age_ms:.0f} of {self.lease.lease_ms} ms")
        return self.lost

    def stop(self, reason: str) -> None:
        """End the thread; the lease counts as lost from here."""
        self._stopping.set()
        self.lost = self.lost or reason
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT_S)

    def _beat(self) -> None:
        lease_ms = self.lease.lease_ms
        pause_ms = lease_ms / _BEATS_PER_LEASE
        while not self._stopping.wait(pause_ms / 1e3) and self.reason_lost() is None:
            pause_ms = lease_ms / _BEATS_PER_LEASE
            try:
                self.renew()
            except LockUnavailableError as error:
                pause_ms = lease_ms / _RETRIES_PER_LEASE
                logger.warning("lock %s: heartbeat failed: %s", self.lease.name, error)
            except LeaseLostError:
                return
            except Exception as error:  # a thread has no caller: `check` reports it
                self._give_up(f"heartbeat failed: {type(error).__name__}")
                logger.exception("lock %s: heartbeat stopped", self.lease.name)
                return

    def _give_up(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
            logger.warning(
                "lock %s: lease lost: %s; token=%d", self.lease.name, reason, self.lease.token
            )
