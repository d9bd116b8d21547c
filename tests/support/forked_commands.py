"""Runs `icefold` commands in processes that are forked from one that has imported everything.

    python -m tests.support.forked_commands < requests > notices

A request is a line of JSON: `argv`, `out` and `err` (files), `read_timeout_s` of the REST
client and `lease_ms`, each null for the product's. Notices are `started PID` and
`ended PID STATUS`.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import pkgutil
import select
import sys
import traceback
from typing import Any

import lock.open
import maintenance.cli.start
import resolver
import tableformat
import tableformat.catalog.rest_client

_PACKAGES = (tableformat, resolver, maintenance, lock)
_NOT_HERE = ("spark", "kafka", "registry", "duckdb")  # what starts threads, or is not installed


def main() -> None:
    _import_all()
    running: set[int] = set()
    buffer = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.02)
        if ready:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                pid = _start(json.loads(line))
                running.add(pid)
                print("started", pid, flush=True)
        for pid in list(running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                running.remove(pid)
                print("ended", pid, os.waitstatus_to_exitcode(status), flush=True)


def _import_all() -> None:
    """What commands import when they need it, so that each fork does not read it again."""
    for package in _PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not any(name in module.name for name in _NOT_HERE):
                importlib.import_module(module.name)


def _start(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        for number, path in ((1, request["out"]), (2, request["err"])):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        faulthandler.enable()  # SIGABRT says what every thread does
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        if request["read_timeout_s"]:
            tableformat.catalog.rest_client._READ_TIMEOUT_S = request["read_timeout_s"]
        if request["lease_ms"]:
            lock.open.open_lock.__kwdefaults__["lease_ms"] = request["lease_ms"]
        sys.argv = ["icefold", *request["argv"]]
        try:
            maintenance.cli.start.main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except BaseException:
            traceback.print_exc()
            code = 71
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
