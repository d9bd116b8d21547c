"""Leases with fencing tokens, on SQLite, PostgreSQL and object stores."""

from lock.errors import (
    CorruptLockError,
    InvalidLockError,
    LeaseLostError,
    LeaseUnavailableError,
    LockError,
    LockUnavailableError,
    UnsafeStoreError,
)
from lock.heartbeat import HeldLease
from lock.lease import Lease, LockState, Waiter
from lock.lock_names import lock_name
from lock.manager import LockManager
from lock.open import default_lock_url, open_lock

LeaseManager = LockManager  # its name in 0.1

__all__ = [
    "CorruptLockError",
    "HeldLease",
    "InvalidLockError",
    "Lease",
    "LeaseLostError",
    "LeaseManager",
    "LeaseUnavailableError",
    "LockError",
    "LockManager",
    "LockState",
    "LockUnavailableError",
    "UnsafeStoreError",
    "Waiter",
    "default_lock_url",
    "lock_name",
    "open_lock",
]
