"""What the databases of an index say about themselves: whose they are, of when. JSON, on disk."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resolver.index.base import IndexBinding, IndexDamagedError
from resolver.index.damage import damaged
from resolver.index.shard_map import ShardMap, even_starts
from resolver.index.stored_fields import check_fields

# On disk: never change the values for the same meaning of headers and what they lead to.
HEADER_FORMAT = 1
FILES_FORMAT = 3
_EVEN_FORMAT = (
    2  # all shards are of equal ranges, none was ever split; rows had other bits in memory
)
# 1: key shards are databases, see `format_1`

RUN_NAME = re.compile(r"[A-Za-z0-9_-]+")  # becomes the name of a file


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """Header of one database: `state` is the last change that touched it."""

    generation: str
    shard: int
    shards: int
    state: str

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return {"format": HEADER_FORMAT, **asdict(self)}

    @staticmethod
    def parse(content: dict[str, Any], location: Path) -> ShardHeader:
        """The inverse of `to_json`.

        Raises:
            IndexDamagedError: Another format, or not a header.
        """
        fields = _fields(content, location, HEADER_FORMAT)
        try:
            header = ShardHeader(**fields)
            check_fields(header)
        except TypeError as error:
            raise _unreadable(location) from error
        return header


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesHeader:
    """Header of the file dictionary: the state of the whole index.

    Attributes:
        generation: The index it belongs to.
        state: The last change.
        runs: The runs of each key shard, the newest first; None: of format 1, not converted yet.
        starts: The first hash of each key shard (see `ShardMap`); of format 1 nothing.
        shard_rows: Rows that a shard should have; None: by the size of the table.
        next_file_id: The next free file id.
        binding: What the content is true for.
    """

    generation: str
    state: str
    runs: tuple[tuple[str, ...], ...] | None
    starts: tuple[int, ...]
    shard_rows: int | None = None
    next_file_id: int
    binding: IndexBinding

    @property
    def shards(self) -> ShardMap:
        """Which shard has a key."""
        return ShardMap(self.starts, self.shard_rows)

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return {"format": FILES_FORMAT, **asdict(self)}

    @staticmethod
    def parse(content: dict[str, Any], location: Path) -> FilesHeader:
        """The inverse of `to_json`; also of formats 1 and 2.

        Raises:
            IndexDamagedError: Another format, or not a header.
        """
        fields = _fields(content, location, HEADER_FORMAT, _EVEN_FORMAT, FILES_FORMAT)
        try:
            fields["binding"] = IndexBinding(**fields["binding"])
            if content["format"] == HEADER_FORMAT:
                fields |= {"runs": None, "starts": ()}
                del fields["shards"], fields["previous"]
            else:
                fields["runs"] = tuple(map(tuple, fields["runs"]))
                if content["format"] == _EVEN_FORMAT:
                    fields["starts"] = even_starts(len(fields["runs"]))
                fields["starts"] = tuple(fields["starts"])
            header = FilesHeader(**fields)
            check_fields(header)
            check_fields(header.binding)
            if header.runs is not None:
                header.shards.check_count(len(header.runs))
        except (TypeError, ValueError, KeyError) as error:
            raise _unreadable(location) from error
        if not all(RUN_NAME.fullmatch(name) for shard in header.runs or () for name in shard):
            raise _unreadable(location)
        return header


def _fields(content: Any, location: Path, *known: int) -> dict[str, Any]:
    if not isinstance(content, dict) or "format" not in content:
        raise _unreadable(location)
    if content["format"] not in known:
        raise damaged(
            "the index has another format",
            location,
            found=content["format"],
            expected=max(known),
        )
    return {name: value for name, value in content.items() if name != "format"}


def _unreadable(location: Path) -> IndexDamagedError:
    return damaged("the header of an index is unreadable", location)
