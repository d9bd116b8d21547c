"""What a shard says about itself: which index and which state it belongs to. JSON, on disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resolver.index.base import IndexBinding, IndexDamagedError
from resolver.index.damage import damaged
from resolver.index.stored_fields import check_fields

# On disk: never change the value for the same meaning of headers, keys and values.
HEADER_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """Header of a key shard: `state` is the last change that touched it."""

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
        fields = _fields(content, location)
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
        previous: The change before; what `state` was computed on.
        shards: The last change of each key shard.
        next_file_id: The next free file id.
        binding: What the content is true for.
    """

    generation: str
    state: str
    previous: str
    shards: tuple[str, ...]
    next_file_id: int
    binding: IndexBinding

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return {"format": HEADER_FORMAT, **asdict(self)}

    @staticmethod
    def parse(content: dict[str, Any], location: Path) -> FilesHeader:
        """The inverse of `to_json`.

        Raises:
            IndexDamagedError: Another format, or not a header.
        """
        fields = _fields(content, location)
        try:
            fields["binding"] = IndexBinding(**fields["binding"])
            fields["shards"] = tuple(fields["shards"])
            header = FilesHeader(**fields)
            check_fields(header)
            check_fields(header.binding)
        except (TypeError, KeyError) as error:
            raise _unreadable(location) from error
        return header


def _fields(content: Any, location: Path) -> dict[str, Any]:
    if not isinstance(content, dict) or "format" not in content:
        raise _unreadable(location)
    if content["format"] != HEADER_FORMAT:
        raise damaged(
            "the index has another format",
            location,
            found=content["format"],
            expected=HEADER_FORMAT,
        )
    return {name: value for name, value in content.items() if name != "format"}


def _unreadable(location: Path) -> IndexDamagedError:
    return damaged("the header of an index shard is unreadable", location)
