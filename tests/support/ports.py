"""Ports on loopback for servers of the tests."""

from __future__ import annotations

import contextlib
import random
import socket

_BELOW_OUTGOING = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on.

    None of those that systems give to outgoing connections: while a server is being started
    again, such a connection could have taken its port.
    """
    ports: list[int] = []
    candidates = iter(random.SystemRandom().sample(_BELOW_OUTGOING, len(_BELOW_OUTGOING)))
    while len(ports) < count:
        port = next(candidates)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports


def free_port() -> int:
    """One of them."""
    (port,) = free_ports(1)
    return port
