"""Servers that end with the test run, however it ends: also when a worker is killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

allows_servers = True  # tests/conftest.py: none where quick tests were asked for

# The shell waits for the end of its input, which comes when the last holder of the pipe is gone.
_SCRIPT = 'folder=$1; shift; cat > /dev/null; "$@" > /dev/null 2>&1; rm -rf "$folder"'


def stop_with_this_process(command: list[str], folder: Path) -> None:
    """Run `command` and remove `folder` once this process is gone."""
    check_servers_allowed()
    read_end, _write_end = os.pipe()  # the write end stays open for as long as this process lives
    guard = subprocess.Popen(
        ["sh", "-c", _SCRIPT, "guard", str(folder), *command],
        stdin=read_end,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # an interrupt of the run must not end the guard first
    )
    os.close(read_end)
    let_run(guard)


def check_servers_allowed() -> None:
    """Raises RuntimeError where only quick tests were asked for."""
    if not allows_servers:
        raise RuntimeError("a quick test starts a server: give it the marker `services`")


def let_run(process: subprocess.Popen[bytes]) -> None:
    """Let a process outlive its object without a warning."""
    process.returncode = 0
