"""Local files as an object store: exact reads, exclusive durable writes, lists, deletes.

A write is: 1. a hidden temporary file beside the target, 2. fsync, 3. a hard link to the final
name, which fails if that exists, 4. unlink of the temporary name, 5. fsync of the folder. A crash
before 3 leaves a `.<name>.<n>.tmp` that orphan removal finds; after 3 the object is whole.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from tableformat.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NotFoundError,
    StoreUnavailableError,
    TableError,
    UnsupportedError,
)
from tableformat.store.base import ObjectInfo, WholeOutput

_counter = itertools.count()
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def read_range(path: str, offset: int, length: int | None) -> bytes:
    """Exactly `length` bytes from `offset`, or everything from `offset`.

    Raises:
        NotFoundError: There is no such file.
        CorruptDataError: The file ends before the range does.
    """
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - unbuffered
            size = os.fstat(file.fileno()).st_size
            wanted = size - offset if length is None else length
            if wanted < 0 or offset + wanted > size:
                raise CorruptDataError(
                    "file is shorter than the range asked for",
                    location=path,
                    offset=offset,
                    length=length,
                    size_bytes=size,
                )
            file.seek(offset)
            return _read_exactly(file, wanted, path)
    except OSError as error:
        raise translate(error, path) from error


def size_bytes(path: str) -> int:
    """The size of a file."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        raise translate(error, path) from error
    if not stat.S_ISREG(found.st_mode):
        raise NotFoundError("not a file", location=path)
    return found.st_size


def write_new(path: str, data: bytes | memoryview) -> None:
    """Create a file, whole and durable or not at all.

    Raises:
        AlreadyExistsError: The name is taken; the file there is untouched.
        StoreUnavailableError: Disk full, read-only, no permission.
        UnsupportedError: The file system has no hard links, so it cannot write exclusively.
    """
    with LocalOutput(path) as output:
        output.write(data)


class LocalOutput(WholeOutput):
    """A file that appears under its name, durable, when closed."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._position = 0
        self._file: io.FileIO | None = None
        try:
            self._temporary, self._file = _create_temporary(path)
        except OSError as error:
            raise translate(error, path) from error

    def tell(self) -> int:
        """Bytes written so far."""
        return self._position

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        """Append all of `data`."""
        if self._file is None:
            raise ValueError("write to a closed file")
        view = memoryview(data).cast("B")
        written = 0
        try:
            while written < len(view):
                written += self._file.write(view[written:])
        except OSError as error:
            self.abort()
            raise translate(error, self._path) from error
        self._position += written
        return written

    def flush(self) -> None:
        """Nothing is buffered here."""

    def abort(self) -> None:
        """Close and remove the temporary file; nothing appears."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            with suppress(FileNotFoundError):
                os.unlink(self._temporary)  # noqa: PTH108 - hot
        super().close()

    def close(self) -> None:
        """Make the file durable and give it its name."""
        if self._file is None:
            super().close()
            return
        try:
            os.fsync(self._file.fileno())
            os.link(self._temporary, self._path)
        except OSError as error:
            self.abort()
            raise translate(error, self._path) from error
        self.abort()
        sync_folder(os.path.dirname(self._path))  # noqa: PTH120 - hot


def open_input(path: str) -> pa.NativeFile:
    """Open for random access."""
    size_bytes(path)
    try:
        return LocalFileSystem().open_input_file(path)
    except OSError as error:
        raise translate(error, path) from error


def list_files(folder: str) -> Iterator[ObjectInfo]:
    """Every file below `folder`, in no order, links listed but not followed."""
    pending = [folder]
    while pending:
        current = pending.pop()
        try:
            with os.scandir(current) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                        continue
                    if (found := _status(entry)) is not None:
                        modified_ms = found.st_mtime_ns // 1_000_000
                        yield ObjectInfo(f"file://{entry.path}", found.st_size, modified_ms)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise translate(error, current) from error


def remove_files(paths: Sequence[str]) -> None:
    """Remove files; missing ones are no error. The folders stay."""
    for path in paths:
        try:
            Path(path).unlink(missing_ok=True)
        except NotADirectoryError:
            continue
        except OSError as error:
            raise translate(error, path) from error


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, each made durable in its own parent."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: str | Path) -> None:
    """Make names created in `folder` survive a power loss, where the system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise translate(error, str(folder)) from error
    finally:
        os.close(descriptor)


def translate(error: OSError, path: str) -> TableError:
    """An operating system error as ours."""
    reason = error.strerror or type(error).__name__
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return NotFoundError("file does not exist", location=path)
    if isinstance(error, FileExistsError):
        return AlreadyExistsError("file exists already", location=path)
    if error.errno in _NO_LINKS and getattr(error, "filename2", None):
        return UnsupportedError(
            f"the file system cannot create files exclusively: {reason}",
            action="use a file system with hard links",
            location=path,
        )
    return StoreUnavailableError(f"file access failed: {reason}", location=path)


def _create_temporary(path: str) -> tuple[str, io.FileIO]:
    """A new file beside `path`; its folder is made if it is not there."""
    folder, name = os.path.split(path)
    while True:
        # The process id and a counter are unique on one machine; on a shared disk `x` decides.
        temporary = f"{folder}/.{name[:200]}.{os.getpid()}-{next(_counter)}.tmp"
        try:
            return temporary, io.FileIO(temporary, "x")
        except FileExistsError:
            continue
        except FileNotFoundError:
            make_folder(Path(folder))


def _read_exactly(file: io.FileIO, wanted: int, path: str) -> bytes:
    parts: list[bytes] = []
    missing = wanted
    while missing:
        part = file.read(missing)
        if not part:
            raise CorruptDataError("file was cut short while it was read", location=path)
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed while listing
        return None
