"""The file dictionary: every data file path once, under a small number.

| key | value |
|---|---|
| `` (empty) | the index header, JSON |
| `i` + file id, int32 big-endian | JSON `[path, spec id, partition values]` |
| `I` + file id, int64 big-endian | the same, of ids that have more bits |
| `p` + path, UTF-8 | file id, int32 or int64 big-endian |
| `s` + state of the header | the byte 1; of a local index only |

An id is given once and never again, so that entries of a file that has left the table are
recognized as dead. Partition values are JSON; those that JSON lacks are tagged objects.

Each change of a local index notes its state and removes the state that it was made on. RocksDB
replays a log on whatever tables lie beside it: an older copy's, say, under the log of a process
that was killed. Then files would be missing, and their rows be taken for dead; but the state of
those tables is still noted, beside that of the log.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from resolver.index.base import IndexedFile
from resolver.index.damage import damaged
from resolver.index.entry import FILE_ID_LIMIT
from resolver.index.shard import Shard
from resolver.index.stored_fields import check_fields
from tableformat.errors import InvalidInputError

_ID = struct.Struct(">i")
_LONG_ID = struct.Struct(">q")
_LONG_IDS_FROM = 1 << 31
_BY_ID = b"i"
_BY_LONG_ID = b"I"
_BY_PATH = b"p"
_STATE = b"s"  # sorts after all others
_CACHED_FILES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class FileChanges:
    """What a change does to the dictionary: pairs to write (an empty value deletes), sorted."""

    keys: tuple[bytes, ...]
    values: tuple[bytes, ...]


class FileDictionary:
    """Reads the dictionary, with a bounded cache; only what a cycle touches is read."""

    __slots__ = ("_cache", "_shard")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._cache: dict[int, IndexedFile | None] = {}

    def by_ids(self, ids: Sequence[int]) -> dict[int, IndexedFile]:
        """Files that are in the table; ids of files that left are not in the result."""
        cache = self._cache
        found = {file_id: cache[file_id] for file_id in ids if file_id in cache}
        missing = [file_id for file_id in ids if file_id not in found]
        values = self._shard.get(list(map(_id_key, missing)))
        for file_id, value in zip(missing, values, strict=True):
            found[file_id] = decode_file(value) if value else None
        if missing:
            # A new dict, not a changed one: other threads may be reading the old one.
            self._cache = cache | found if len(cache) < _CACHED_FILES_MAX else found
        return {file_id: file for file_id, file in found.items() if file is not None}

    def by_paths(self, paths: Iterable[str]) -> dict[str, int]:
        """Ids of those paths that are known."""
        wanted = list(paths)
        if not wanted:
            return {}
        values = self._shard.get([_BY_PATH + path.encode() for path in wanted])
        return {
            path: _unpack_id(value) for path, value in zip(wanted, values, strict=True) if value
        }

    def assign_ids(
        self, added: Sequence[IndexedFile], dropped: Mapping[str, int], next_file_id: int
    ) -> tuple[npt.NDArray[np.int64], int]:
        """An id per added file, its own when it stays; and the next free id after that.

        Raises:
            IndexDamagedError: There are no more ids.
        """
        known = self.by_paths(file.file_path for file in added)
        known = {path: file_id for path, file_id in known.items() if path not in dropped}
        ids = []
        for file in added:
            if file.file_path not in known:
                known[file.file_path], next_file_id = next_file_id, next_file_id + 1
            ids.append(known[file.file_path])
        if next_file_id > FILE_ID_LIMIT:
            raise damaged("the index has used up its file ids", self._shard.path)
        return np.array(ids, dtype=np.int64), next_file_id

    def all(self) -> dict[int, IndexedFile]:
        """Every file."""
        return {
            _unpack_id(key[len(prefix) :]): decode_file(value)
            for prefix in (_BY_ID, _BY_LONG_ID)
            for batch in self._shard.scan(prefix=prefix)
            for key, value in batch
        }

    def check_state(self, state: str) -> None:
        """Check that no change before `state` is missing.

        Raises:
            IndexDamagedError: One is. (An earlier release notes none, and is believed.)
        """
        noted = {key for batch in self._shard.scan(prefix=_STATE) for key, _ in batch}
        if noted and noted != {_state_key(state)}:
            raise damaged("the file dictionary lacks changes of the index", self._shard.path)

    def forget(self, changes: FileChanges) -> None:
        """Read anew what has changed."""
        cache = self._cache.copy()  # as above
        for key in changes.keys:
            if not key.startswith(_BY_PATH):
                cache.pop(_unpack_id(key[1:]), None)
        self._cache = cache


def file_changes(
    dropped: Iterable[tuple[str, int]], added: Iterable[tuple[int, IndexedFile]]
) -> FileChanges:
    """Dictionary pairs for files that leave (path, id) and files that come or are renewed."""
    pairs: dict[bytes, bytes] = {}
    for path, file_id in dropped:
        pairs[_id_key(file_id)] = b""
        pairs[_BY_PATH + path.encode()] = b""
    for file_id, file in added:
        pairs[_id_key(file_id)] = encode_file(file)
        pairs[_BY_PATH + file.file_path.encode()] = _pack_id(file_id)
    keys = tuple(sorted(pairs))
    return FileChanges(keys, tuple(pairs[key] for key in keys))


def noting_state(changes: FileChanges, state: str, base: str | None = None) -> FileChanges:
    """The changes that lead to a state, with its note; None: they are made on nothing."""
    noted = {_state_key(state): b"\1"}
    if base is not None:
        noted[_state_key(base)] = b""
    keys = tuple(sorted(noted))
    return FileChanges(changes.keys + keys, changes.values + tuple(noted[key] for key in keys))


def _state_key(state: str) -> bytes:
    return _STATE + state.encode()


def _pack_id(file_id: int) -> bytes:
    return (_ID if file_id < _LONG_IDS_FROM else _LONG_ID).pack(file_id)


def _unpack_id(data: bytes) -> int:
    """Raises IndexDamagedError: Not what `_pack_id` gives."""
    if len(data) not in (_ID.size, _LONG_ID.size):
        raise damaged("a file id of the index dictionary cannot be read", "files")
    (file_id,) = (_ID if len(data) == _ID.size else _LONG_ID).unpack(data)
    return int(file_id)


def _id_key(file_id: int) -> bytes:
    return (_BY_ID if file_id < _LONG_IDS_FROM else _BY_LONG_ID) + _pack_id(file_id)


def encode_file(file: IndexedFile) -> bytes:
    """The stored form of one file."""
    partition = [_to_json(value) for value in file.partition]
    return json.dumps([file.file_path, file.spec_id, partition]).encode()


def decode_file(data: bytes) -> IndexedFile:
    """The inverse of `encode_file`.

    Raises:
        IndexDamagedError: Not what `encode_file` writes.
    """
    try:
        path, spec_id, partition = json.loads(data)
        file = IndexedFile(
            file_path=path,
            spec_id=spec_id,
            partition=tuple(_from_json(value) for value in partition),
        )
        check_fields(file)
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise damaged("a file of the index dictionary cannot be read", "files") from error
    return file


def _to_json(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"float": value.hex()}
        case bytes():
            return {"bytes": value.hex()}
        case Decimal():
            return {"decimal": str(value)}
        case UUID():
            return {"uuid": str(value)}
    raise InvalidInputError("not a partition value", value_type=type(value).__name__)


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        raise TypeError("a list is no partition value")
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    if not isinstance(text, str):
        raise TypeError("a tagged partition value is a text")
    return _TAGGED[kind](text)


_TAGGED: dict[str, Any] = {
    "float": float.fromhex,
    "bytes": bytes.fromhex,
    "decimal": Decimal,
    "uuid": UUID,
}
