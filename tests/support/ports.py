"""Ports on loopback for servers of the tests."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

_BELOW_OUTGOING = range(20_000, 32_000)
_TRIED: set[int] = set()
_RESERVED = os.open(Path(tempfile.gettempdir(), "icefold-test-ports"), os.O_RDWR | os.O_CREAT)


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on, and that no other test of this machine is given
    until this process ends: a server binds its port only some time after it was chosen.

    None of those that systems give to outgoing connections: while a server is being started
    again, such a connection could have taken its port.
    """
    ports: list[int] = []
    candidates = iter(random.SystemRandom().sample(_BELOW_OUTGOING, len(_BELOW_OUTGOING)))
    while len(ports) < count:
        port = next(candidates)
        if port in _TRIED:
            continue
        _TRIED.add(port)
        with contextlib.suppress(OSError):
            fcntl.lockf(_RESERVED, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            socket.create_server(("127.0.0.1", port)).close()
            ports.append(port)
    return ports


def free_port() -> int:
    """One of them."""
    (port,) = free_ports(1)
    return port
