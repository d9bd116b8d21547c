"""A proxy on loopback before a PostgreSQL server that loses requests and answers on demand.

What a client sends is matched as it is on the wire, where statements are plain text; `Fault`s are
those of `fault_proxy`, with the method `SQL` and the text for a path:

| kind | the server gets it | the client gets |
|---|---|---|
| `refuse` | no | a connection that breaks off |
| `reset` | yes, and has answered | a connection that breaks off |
| `late` | `delay_s` later | a connection that breaks off |
| `slow` | yes | its answer `delay_s` later |
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from tests.support.fault_proxy import Fault, next_fault
from tests.support.ports import free_port

_CHUNK = 1 << 16


class DatabaseProxy:
    """Stands before the server on `upstream_port`; clients use `port`."""

    def __init__(self, upstream_port: int) -> None:
        self.port, self._upstream_port = free_port(), upstream_port
        self.faults: list[Fault] = []
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    def refuse_connections(self) -> None:
        """The end of it."""
        self._listener.close()

    def settle(self) -> None:
        """Nothing to wait for: a statement is done before who asks next has connected."""

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._upstream_port))
        with client, server, contextlib.suppress(OSError):
            threading.Thread(target=_pass_on, args=(server, client), daemon=True).start()
            while sent := client.recv(_CHUNK):
                fault = next_fault(self.faults, "SQL", sent.decode("latin-1"))
                if fault is None:
                    server.sendall(sent)
                    continue
                if fault.kind == "refuse":
                    break
                if fault.kind == "slow":
                    time.sleep(fault.delay_s)
                    server.sendall(sent)
                    continue
                client.shutdown(socket.SHUT_RDWR)
                time.sleep(fault.delay_s)
                server.sendall(sent)
                time.sleep(0.3)  # it does what it was told before it sees the end
                break
            for each in (client, server):
                each.shutdown(socket.SHUT_RDWR)


def _pass_on(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while answer := server.recv(_CHUNK):
            client.sendall(answer)
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
