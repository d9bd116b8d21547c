"""Conditional writes on a local folder (POSIX): for tests, and for locks on one machine."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lock.codec import RECORD_SIZE_MAX_BYTES
from lock.errors import LockUnavailableError
from lock.register import SwapOutcome


class LocalConditionalStore:
    """See `ConditionalStore`. Writers exclude each other by `flock`; readers never wait.

    An object appears whole or not at all, also after a crash: written aside, flushed, renamed.
    `flock` is dropped by the kernel when its process dies. Not for network file systems.
    """

    poll_min_ms = 10.0
    poll_max_ms = 250.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> tuple[bytes, str] | None:
        """See `ConditionalStore`. The tag is a digest: records never repeat."""
        with self._trouble():
            try:
                with (self._folder / key).open("rb") as file:
                    data = file.read(RECORD_SIZE_MAX_BYTES + 1)
            except FileNotFoundError:
                return None
        return data, hashlib.sha256(data).hexdigest()

    def put_if_absent(self, key: str, data: bytes) -> SwapOutcome:
        """See `ConditionalStore`."""
        return self._put(key, data, None)

    def put_if_match(self, key: str, data: bytes, etag: str) -> SwapOutcome:
        """See `ConditionalStore`."""
        return self._put(key, data, etag)

    def delete(self, key: str) -> None:
        """See `ConditionalStore`."""
        with self._trouble(), self._exclusive():
            (self._folder / key).unlink(missing_ok=True)

    def describe(self, key: str | None = None) -> str:
        """See `ConditionalStore`."""
        return str(self._folder if key is None else self._folder / key)

    def close(self) -> None:
        """See `ConditionalStore`."""

    def _put(self, key: str, data: bytes, etag: str | None) -> SwapOutcome:
        with self._trouble(), self._exclusive():
            found = self.get(key)
            if (None if found is None else found[1]) != etag:
                return SwapOutcome.LOST
            aside = self._folder / f"{key}.new"
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._folder / key)
            _flush_folder(self._folder)
            return SwapOutcome.DONE

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".mutex").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LockUnavailableError(
                f"lock store failed: {type(error).__name__}: {error.strerror}",
                store=self.describe(),
                action="check the folder",
            ) from error


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
