"""Versions of a shared index, as they stand in shared storage. JSON with a checksum.

```
<root>/versions/00000000000000000007.json   what the index is at version 7
<root>/files/<uuid>.run                     a run of one shard
<root>/files/<uuid>.sst                     an SST file of the file dictionary
```

A version names everything: the binding, the runs of each shard, and the RocksDB checkpoint that the
dictionary is: its SST files under the names RocksDB gave them, and its MANIFEST. Nothing is
ever overwritten. The number of a version is taken by creating its object, which only one can do, so
two processes that computed version 7 from version 6 cannot both have it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from pyroaring import BitMap, BitMap64

from resolver.index.base import IndexBinding
from resolver.index.damage import damaged
from resolver.index.shard_map import ShardMap, even_starts
from resolver.index.stored_fields import check_fields

# On disk: never change the value for the same meaning of versions, keys and values.
SHARED_FORMAT = 3
_EVEN_FORMAT = 2  # no shard was ever split; `gone_files` has 32-bit ids
_DATABASES_FORMAT = 1  # key shards are checkpoints, too, see `format_1`

# Names become paths: of local files, and of objects below the index's folder.
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file in shared storage.

    Attributes:
        name: The name of a run; or what RocksDB calls the file inside its database.
        object_name: Its unique name in the index's `files` folder.
        size_bytes: Its size.
        sha256: Digest of its content, hex.
    """

    name: str
    object_name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardVersion:
    """One immutable state of one database.

    Attributes:
        state: The change that made it; the database's own header names it too.
        manifest_name: RocksDB's MANIFEST file.
        manifest: Its content.
        files: The SST files it refers to.
    """

    state: str
    manifest_name: str
    manifest: bytes
    files: tuple[StoredFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexVersion:
    """One immutable state of a shared index.

    Attributes:
        number: Versions are numbered upwards, across rebuilds.
        generation: The build it descends from.
        binding: What the content is true for.
        next_file_id: The next free file id.
        gone_files: A serialized 64-bit roaring bitmap: ids of files that have left the table.
        dictionary: The file dictionary.
        shards: The runs of each key shard, the newest first.
        starts: The first hash of each key shard, see `ShardMap`.
        shard_rows: Rows that a shard should have; None: by the size of the table.
        databases: The key shards of a version of format 1; then `shards` is empty.
    """

    number: int
    generation: str
    binding: IndexBinding
    next_file_id: int
    gone_files: bytes
    dictionary: ShardVersion
    shards: tuple[tuple[StoredFile, ...], ...]
    starts: tuple[int, ...]
    shard_rows: int | None = None
    databases: tuple[ShardVersion, ...] = ()

    @property
    def map(self) -> ShardMap:
        """Which shard has a key."""
        return ShardMap(self.starts, self.shard_rows)

    @property
    def files(self) -> list[StoredFile]:
        """The files that this version needs."""
        databases = (self.dictionary, *self.databases)
        return [file for each in (*self.shards, *(one.files for one in databases)) for file in each]

    def object_names(self) -> set[str]:
        """The names of the files that this version needs."""
        return {file.object_name for file in self.files}

    def encode(self) -> bytes:
        """The stored form."""
        body = {
            "format": SHARED_FORMAT,
            "number": self.number,
            "generation": self.generation,
            "binding": asdict(self.binding),
            "next_file_id": self.next_file_id,
            "gone_files": base64.b64encode(self.gone_files).decode(),
            "dictionary": _shard_json(self.dictionary),
            "starts": self.starts,
            "shard_rows": self.shard_rows,
            "shards": [[asdict(run) for run in shard] for shard in self.shards],
        }
        text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        return hashlib.sha256(text).hexdigest().encode() + b"\n" + text

    @staticmethod
    def decode(data: bytes, location: str) -> IndexVersion:
        """The inverse of `encode`.

        Raises:
            IndexDamagedError: Cut, changed, of another format, or no version at all.
        """
        digest, _, text = data.partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != digest:
            raise damaged("a version of the index does not match its checksum", location)
        try:
            body = json.loads(text)
            is_old = body["format"] == _DATABASES_FORMAT
            is_current = body["format"] == SHARED_FORMAT
            if not is_current and body["format"] not in (_DATABASES_FORMAT, _EVEN_FORMAT):
                raise damaged(
                    "the index has another format",
                    location,
                    found=body["format"],
                    expected=SHARED_FORMAT,
                )
            version = IndexVersion(
                number=body["number"],
                generation=body["generation"],
                binding=IndexBinding(**body["binding"]),
                next_file_id=body["next_file_id"],
                gone_files=_gone_of(body["gone_files"], is_wide=is_current),
                dictionary=_shard_of(body["dictionary"]),
                shards=() if is_old else tuple(map(_runs_of, body["shards"])),
                starts=tuple(body["starts"]) if is_current else even_starts(len(body["shards"])),
                shard_rows=body["shard_rows"] if is_current else None,
                databases=tuple(map(_shard_of, body["shards"])) if is_old else (),
            )
            check_fields(version)
            check_fields(version.binding)
            version.map.check_count(len(body["shards"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise damaged("a version of the index is unreadable", location) from error
        return version


def _gone_of(text: str, *, is_wide: bool) -> bytes:
    data = base64.b64decode(text, validate=True)
    if not data:
        raise ValueError("no bitmap of the files that are gone")
    gone = BitMap64.deserialize(data) if is_wide else BitMap64(BitMap.deserialize(data))
    return gone.serialize()


def _shard_json(shard: ShardVersion) -> dict[str, Any]:
    return {
        "state": shard.state,
        "manifest_name": shard.manifest_name,
        "manifest": base64.b64encode(shard.manifest).decode(),
        "files": [asdict(file) for file in shard.files],
    }


def _shard_of(content: dict[str, Any]) -> ShardVersion:
    shard = ShardVersion(
        state=content["state"],
        manifest_name=content["manifest_name"],
        manifest=base64.b64decode(content["manifest"], validate=True),
        files=tuple(StoredFile(**file) for file in content["files"]),
    )
    check_fields(shard)
    _check_files(shard.files, shard.manifest_name)
    return shard


def _runs_of(content: list[dict[str, Any]]) -> tuple[StoredFile, ...]:
    runs = tuple(StoredFile(**file) for file in content)
    _check_files(runs)
    return runs


def _check_files(files: tuple[StoredFile, ...], *names: str) -> None:
    for file in files:
        check_fields(file)
        names += (file.name, file.object_name)
    if not all(map(_FILE_NAME.fullmatch, names)):
        raise ValueError("a file name with other characters")
