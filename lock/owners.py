"""Who acquires a lock: a nonce and, on Linux, the process, whose end others on the machine can see.

A process that was killed there need not be waited for: nobody renews its lease any more. It is
known by the boot of the machine, the process namespace (a container has its own) and its number.
Whoever cannot compare all three waits for the lease. A number that another process has by now looks
alive, which costs a wait. Machines that were cloned while they ran look like one: there a living
holder may be taken for dead, which costs work, as any lease that is lost (`lock.lease`).
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


def owner_id(nonce: str) -> str:
    """The nonce, marked as this process's where the system tells: `NONCE@MACHINE:PID`."""
    machine = _machine()
    return nonce if machine is None else f"{nonce}@{machine}:{os.getpid()}"


def is_gone(owner: str | None) -> bool:
    """Whether it is certain that the process behind an owner's id has ended."""
    machine, _, pid = (owner or "").partition("@")[2].partition(":")
    if not machine or machine != _machine() or not (pid.isascii() and pid.isdigit()):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False  # it is another user's
    return False


@lru_cache(maxsize=1)
def _machine() -> str | None:
    try:
        text = f"{_BOOT_ID.read_text().strip()} {_NAMESPACE.stat().st_ino}"
    except OSError:
        return None
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
