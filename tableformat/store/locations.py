"""Locations: one spelling for each object, and the allow-list that every access goes through.

Table metadata is data from elsewhere: a path in it must not make icefold read, write or delete a
file outside the places the operator named (I24, R77). Prefixes are compared path segment by path
segment on the canonical spelling, never as strings, so `/tbl` does not cover `/tbl2`.

| spelling                                        | canonical             |
|-------------------------------------------------|-----------------------|
| `/a/b`, `file:/a/b`, `FILE:///a/b`, `file://localhost/a/b` | `file:///a/b` |
| `/a//b/` (local only; in S3 `a//b` is another key)         | `file:///a/b` |
| `s3a://bucket/k`, `S3N://bucket/k`                         | `s3://bucket/k` |
| `gcs://bucket/k`                                           | `gs://bucket/k` |
| `wasbs://c@a.blob.host/k`, `abfs://c@a.dfs.host/k`         | `abfss://c@a.dfs.host/k` |
| a `.` or `..` segment, percent-encoded or not              | refused       |
| control characters, relative paths, a host in a `file` URI | refused       |
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from tableformat.errors import InvalidInputError
from tableformat.side_by_side import AT_ONCE, IN_BUCKETS

READERS_MAX = 8
_BUCKETS = frozenset({"s3", "gs", "abfss"})
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ALIASES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "abfss",
    "wasb": "abfss",
    "wasbs": "abfss",
}
_AZURE_AUTHORITY = re.compile(r"[a-z0-9$-]+@[a-z0-9]+(\.[a-z0-9-]+)+")  # container@account.host
_LOCATION_CHARS_MAX = 4096
_FOLDERS_MAX = 4096


class ParsedLocation(NamedTuple):
    """A location in parts. `path` starts with `/` for `file` and has no leading `/` otherwise."""

    scheme: str
    authority: str
    path: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{self.path}"
        return f"{self.scheme}://{self.authority}/{self.path}"


def home_path(path: str) -> Path:
    """A local path with `~` and `~user` replaced.

    Raises:
        InvalidInputError: There is no such user; or HOME is not set, and the process runs under a
            number that no user has, as in many containers.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidInputError(
            "there is no such home folder", path=path, action="write the whole path, or set HOME"
        ) from None


def parse_location(location: str) -> ParsedLocation:
    """Split a location into canonical parts. Pure: links are not resolved.

    Raises:
        InvalidInputError: The location is relative, names a host for a local file, has a `.` or
            `..` segment in any encoding, or control characters.
    """
    if not location or len(location) > _LOCATION_CHARS_MAX or _CONTROL.search(location):
        raise _refused("not a usable location", location)
    match = _SCHEME.match(location)
    if match is None:
        if not location.startswith("/"):
            raise _refused("a relative path is not a location", location)
        return _local(location, location)
    scheme = match.group(1).lower()
    rest = location[match.end() :]
    if scheme == "file":
        if rest.startswith("//"):
            host, _, path = rest[2:].partition("/")
            if host not in ("", "localhost"):
                raise _refused("a file location cannot name a host", location)
            return _local("/" + path, location)
        return _local(rest, location)
    authority, _, path = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not authority:
        raise _refused("a location needs a bucket", location)
    scheme = _ALIASES.get(scheme, scheme)
    if scheme == "abfss" and _AZURE_AUTHORITY.fullmatch(authority):
        authority = authority.replace(".blob.", ".dfs.", 1)
    elif "@" in authority or "\\" in authority or "%" in authority:
        raise _refused("not a usable bucket", location)
    _check_segments(path.split("/"), location)
    return ParsedLocation(scheme, authority, path)


def is_in_bucket(location: str) -> bool:
    """Whether a request takes tens of milliseconds, in which a thread does nothing else."""
    match = _SCHEME.match(location)
    scheme = match.group(1).lower() if match else ""
    return _ALIASES.get(scheme, scheme) in _BUCKETS


def requests_of(location: str) -> int:
    """How many requests are made at a time: of a disk one, for threads take longer than it."""
    return READERS_MAX if is_in_bucket(location) else 1


def readers_of(location: str) -> int:
    """How many threads read objects: as many as compute; of a bucket always `READERS_MAX`."""
    return READERS_MAX if is_in_bucket(location) else min(os.cpu_count() or 1, READERS_MAX)


def tables_of(location: str) -> int:
    """For how many tables, of which one is here, a step is done at a time."""
    return IN_BUCKETS if is_in_bucket(location) else AT_ONCE


def canonical_location(location: str) -> str:
    """The one spelling of `location`; equal strings mean the same object.

    Raises:
        InvalidInputError: See `parse_location`.
    """
    return str(parse_location(location))


def local_path(location: str) -> str:
    """The absolute path of a `file` location.

    Raises:
        InvalidInputError: The location is not local, or not usable.
    """
    parsed = parse_location(location)
    if parsed.scheme != "file":
        raise _refused("not a local file", location)
    return parsed.path


class AllowedLocations:
    """The prefixes below which objects may be read, written and deleted. An empty list allows none.

    Prefixes only ever grow, by `admit`. Local prefixes are resolved through symbolic links, and a
    local location must lie below a prefix both as written and with its own links resolved.
    """

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._prefixes: tuple[ParsedLocation, ...] = ()
        self._folders = _RealFolders()
        for prefix in prefixes:
            self.admit(prefix)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The canonical prefixes."""
        return tuple(str(prefix) for prefix in self._prefixes)

    def admit(self, prefix: str) -> None:
        """Allow one more prefix. The caller vouches that the operator wants it."""
        parsed = parse_location(prefix)
        parsed = parsed._replace(path=parsed.path.rstrip("/"))
        if parsed.scheme == "file" and not parsed.path:
            raise _refused("the root folder cannot be an allowed prefix", prefix)
        if parsed not in self._prefixes:
            self._prefixes = (*self._prefixes, parsed)

    def covers(self, location: str) -> bool:
        """Whether `location` is usable and lies below a prefix."""
        try:
            self.check(location)
        except InvalidInputError:
            return False
        return True

    def check(self, location: str) -> ParsedLocation:
        """Refuse a location that is not below a prefix; give its canonical parts.

        Raises:
            InvalidInputError: Outside every prefix, or not usable. Nothing was read: only the
                links in a local path were resolved.
        """
        parsed = parse_location(location)
        for prefix in self._prefixes:
            if _is_below(parsed, prefix) and self._is_really_below(parsed, prefix):
                return parsed
        raise InvalidInputError(
            "location refused: outside the allowed prefixes",
            action="add its prefix to the catalog property 'allowed-locations' if it is meant",
            location=location,
        )

    def _is_really_below(self, location: ParsedLocation, prefix: ParsedLocation) -> bool:
        if location.scheme != "file":
            return True
        real = ParsedLocation("file", "", self._folders.real_file(location.path))
        return _is_below(real, ParsedLocation("file", "", self._folders.real_folder(prefix.path)))


class _RealFolders:
    """Paths with their links resolved; a folder that is the same as before is not walked again.

    A folder is known by device and inode, asked for each time, so a link that somebody puts in its
    place is noticed. What is kept is what the resolved path, free of links, leads to.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], str]] = {}

    def real_file(self, path: str) -> str:
        """Of a path without `.` and `..`; what is not there is taken as written."""
        folder, name = os.path.split(path)
        try:
            if stat.S_ISLNK(os.lstat(path).st_mode):
                return os.path.realpath(path)
        except OSError:
            pass
        return os.path.join(self.real_folder(folder), name)  # noqa: PTH118 - hot

    def real_folder(self, path: str) -> str:
        """Likewise."""
        try:
            identity = _identity(path)
            known = self._known.get(path)
            if known is not None and known[0] == identity:
                return known[1]
            real = os.path.realpath(path)
            if _identity(real) == identity:
                if len(self._known) >= _FOLDERS_MAX:
                    self._known.clear()
                self._known[path] = identity, real
        except OSError:
            return os.path.realpath(path)
        return real


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116 - hot
    return found.st_dev, found.st_ino


def _is_below(location: ParsedLocation, prefix: ParsedLocation) -> bool:
    if location[:2] != prefix[:2]:
        return False
    return (
        not prefix.path
        or location.path == prefix.path
        or location.path.startswith(f"{prefix.path}/")
    )


def _local(path: str, location: str) -> ParsedLocation:
    if not path.startswith("/"):
        raise _refused("a relative path is not a location", location)
    segments = [segment for segment in path.split("/") if segment]
    _check_segments(segments, location)
    return ParsedLocation("file", "", "/" + "/".join(segments))


def _check_segments(segments: Iterable[str], location: str) -> None:
    for segment in segments:
        # Some libraries decode once more on the way; a name of dots alone has no honest use.
        decoded = segment
        while "%" in decoded and (once := unquote(decoded)) != decoded:
            decoded = once
        if decoded.strip() in (".", ".."):
            raise _refused("'.' and '..' are not allowed in a location", location)


def _refused(why: str, location: str) -> InvalidInputError:
    shown = _CONTROL.sub("?", location[:200])
    return InvalidInputError(f"location refused: {why}", location=repr(shown))
