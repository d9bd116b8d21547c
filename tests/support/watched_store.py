"""A store that tells who did what, across processes, and that can be made to wait."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.base import ObjectInfo


@dataclass(frozen=True)
class WatchedStore:
    """Passes everything on to a real store. Pickles.

    `folder/trace` gets a line `<verb> <location> <working folder> <pid>` for each object opened.
    While `folder/wait` holds a text, the first process other than `spared_pid` that opens or puts
    an object with the text in verb and location writes its pid to `folder/waiting` and sleeps.
    """

    inner: ArrowObjectStore
    folder: Path
    spared_pid: int
    wait_s: float = 20.0

    def __reduce__(self) -> tuple[Any, ...]:
        return (WatchedStore, (self.inner, self.folder, self.spared_pid, self.wait_s))

    @property
    def allowed(self) -> Any:
        return self.inner.allowed

    def get(self, location: str, *, offset: int = 0, length: int | None = None) -> bytes:
        return self.inner.get(location, offset=offset, length=length)

    def size_bytes(self, location: str) -> int:
        return self.inner.size_bytes(location)

    def put(self, location: str, data: bytes | memoryview) -> None:
        self._note("put", location)
        self.inner.put(location, data)

    def open_input(self, location: str) -> Any:
        self._note("read", location)
        return self.inner.open_input(location)

    def open_output(self, location: str) -> Any:
        self._note("write", location)
        return self.inner.open_output(location)

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.inner.list_prefix(prefix)

    def delete(self, locations: Sequence[str]) -> None:
        self.inner.delete(locations)

    def _note(self, verb: str, location: str) -> None:
        with (self.folder / "trace").open("a") as trace:
            trace.write(f"{verb} {location} {Path.cwd()} {os.getpid()}\n")
        wanted = self.folder / "wait"
        if os.getpid() == self.spared_pid or not wanted.exists():
            return
        if wanted.read_text() in f"{verb} {location}":
            try:
                with (self.folder / "waiting").open("x") as file:
                    file.write(str(os.getpid()))
            except FileExistsError:
                return
            time.sleep(self.wait_s)
