"""Ports that tests beside each other are given."""

import subprocess
import sys

from tests.support import ports

GIVE_MOST = "from tests.support import ports; print(*ports.free_ports(11_000))"


def test_port_is_given_once_on_a_machine() -> None:
    first = ports.free_ports(50)
    assert not set(first) & set(ports.free_ports(50))
    other = subprocess.run(
        [sys.executable, "-c", GIVE_MOST], capture_output=True, text=True, check=True
    )
    assert not set(map(int, other.stdout.split())) & set(first)
