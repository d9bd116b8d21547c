"""Where an index stands and what it takes, without opening it for work."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resolver.index.base import IndexBinding
from resolver.index.depot import IndexDepot
from resolver.index.folder import current_generation
from resolver.index.header import FilesHeader
from resolver.index.shard import Shard, open_cache
from tableformat.errors import TableError

_CACHE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPosition:
    """What an index folder or shared storage holds.

    Attributes:
        size_bytes: Of all its files; 0: there is no index.
        shard_count: Key shards.
        binding: What it reflects; None: none, or it cannot be read.
        problem: Why it cannot be read.
    """

    size_bytes: int = 0
    shard_count: int = 0
    binding: IndexBinding | None = None
    problem: str | None = None


def read_position(folder: Path) -> IndexPosition:
    """Look at the index in `folder` while others may be working with it. Never raises."""
    size_bytes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # files come and go
            size_bytes += path.stat().st_size if path.is_file() else 0
    try:
        generation = current_generation(folder)
        if generation is None:
            return IndexPosition(size_bytes=size_bytes)
        shard = Shard.open_read_only(generation.files_path, open_cache(_CACHE_BYTES))
        try:
            header = FilesHeader.parse(shard.header(), shard.path)
        finally:
            shard.close()
    except TableError as error:
        return IndexPosition(size_bytes=size_bytes, problem=str(error))
    shard_count = generation.shard_count if header.runs is None else len(header.runs)
    return IndexPosition(size_bytes=size_bytes, shard_count=shard_count, binding=header.binding)


def read_shared_position(depot: IndexDepot) -> IndexPosition:
    """Look at the newest version of an index in shared storage. Never raises for what is wrong."""
    try:
        number = depot.newest_number()
        if not number:
            return IndexPosition()
        version = depot.load(number)
    except TableError as error:
        return IndexPosition(problem=str(error))
    return IndexPosition(
        size_bytes=sum(file.size_bytes for file in version.files),
        shard_count=len(version.shards or version.databases),
        binding=version.binding,
    )
