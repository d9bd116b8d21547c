"""Versions of a shared index, as they stand in shared storage. JSON with a checksum.

```
<root>/versions/00000000000000000007.json   what the index is at version 7
<root>/files/<uuid>.sst                     an immutable SST file of one shard
```

A version names everything: the binding, the shards, and for each shard the RocksDB checkpoint that
it is: its SST files under the names RocksDB gave them, and the bytes of its MANIFEST. Nothing is
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

from resolver.index.base import IndexBinding
from resolver.index.damage import damaged
from resolver.index.stored_fields import check_fields

# On disk: never change the value for the same meaning of versions, keys and values.
SHARED_FORMAT = 1

# Names become paths: of local files, and of objects below the index's folder.
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One SST file of a shard.

    Attributes:
        name: What RocksDB calls it inside the shard.
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
    """One immutable state of one shard.

    Attributes:
        state: The change that made it; the shard's own header names it too.
        manifest_name: RocksDB's MANIFEST file.
        manifest: Its content.
        files: The SST files it refers to.
    """

    state: str
    manifest_name: str
    manifest: bytes
    files: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexVersion:
    """One immutable state of a shared index.

    Attributes:
        number: Versions are numbered upwards, across rebuilds.
        generation: The build it descends from.
        binding: What the content is true for.
        next_file_id: The next free file id.
        gone_files: A serialized 32-bit roaring bitmap: ids of files that have left the table.
        dictionary: The file dictionary.
        shards: The key shards.
    """

    number: int
    generation: str
    binding: IndexBinding
    next_file_id: int
    gone_files: bytes
    dictionary: ShardVersion
    shards: tuple[ShardVersion, ...]

    def object_names(self) -> set[str]:
        """The files that this version needs."""
        return {
            file.object_name for shard in (self.dictionary, *self.shards) for file in shard.files
        }

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
            "shards": [_shard_json(shard) for shard in self.shards],
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
            if body["format"] != SHARED_FORMAT:
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
                gone_files=base64.b64decode(body["gone_files"], validate=True),
                dictionary=_shard_of(body["dictionary"]),
                shards=tuple(_shard_of(shard) for shard in body["shards"]),
            )
            check_fields(version)
            check_fields(version.binding)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise damaged("a version of the index is unreadable", location) from error
        return version


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
    names = [shard.manifest_name]
    for file in shard.files:
        check_fields(file)
        names += [file.name, file.object_name]
    if not all(map(_FILE_NAME.fullmatch, names)):
        raise ValueError("a file name with other characters")
    return shard
