"""Summaries of this process's own commits, kept small.

A table keeps thousands of snapshots, and a process that streams into many tables makes dozens a
second, each with some thirty properties: as a dict of texts 4 kB, which hardly anybody reads again.
Here the names are shared by all summaries that have the same ones, and the values are one
compressed text, which begins where the first summary with those names left off: 0.2 kB.

Which names there are takes no look at the values; those take ten microseconds.
"""

from __future__ import annotations

import json
import weakref
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.typedef import IcebergBaseModel

from tableformat.sized_cache import SizedCache

_WINDOW_BITS = -12  # 4 KiB to look back at; twice that makes 1 % less of it
_LEVEL = 6
_MEMORY_LEVEL = 5
RECENT_SUMMARIES = 32  # of tables whose summaries have the same names; 4 kB each
_encode = json.JSONEncoder(separators=(",", ":")).encode  # ASCII: whatever text it is


class _Names:
    """The names of a summary's properties.

    Attributes:
        at: The place of each.
        first: The values of the first summary that had them, encoded.
        recent: The values of summaries that were packed or looked at last, by what they are packed
            as. Most often they are heads, which a commit looks at a dozen times.
    """

    __slots__ = ("__weakref__", "at", "first", "recent")

    def __init__(self, names: tuple[str, ...], first: bytes) -> None:
        self.at = {name: place for place, name in enumerate(names)}
        self.first = first
        self.recent: SizedCache[list[str]] = SizedCache(RECENT_SUMMARIES, lambda _: 1)


_names: weakref.WeakValueDictionary[tuple[str, ...], _Names] = weakref.WeakValueDictionary()


class PackedProperties(Mapping[str, str]):
    """The properties of a packed summary; unpacks at a look at a value."""

    __slots__ = ("_names", "_packed")

    def __init__(self, names: _Names, packed: bytes) -> None:
        self._names = names
        self._packed = packed

    def __contains__(self, name: object) -> bool:
        return name in self._names.at

    def __getitem__(self, name: str) -> str:
        place = self._names.at[name]
        return _unpacked(self._names, self._packed)[place]

    def get(self, name: str, default: Any = None) -> Any:
        """The value, if there is one."""
        return self[name] if name in self._names.at else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.at)

    def __len__(self) -> int:
        return len(self._names.at)

    def __repr__(self) -> str:
        return repr(dict(self))


class PackedSummary(Summary):
    """PyIceberg's summary, of which nothing can be changed."""

    model_config = ConfigDict(frozen=True)
    __slots__ = ("_names", "_packed")

    if TYPE_CHECKING:  # else pydantic would take them as its own
        _names: _Names
        _packed: bytes

    @property
    def _additional_properties(self) -> PackedProperties:  # type: ignore[override]
        # What all methods of PyIceberg's class look at.
        return PackedProperties(self._names, self._packed)

    @property
    def properties(self) -> PackedProperties:
        """What `additional_properties` has; few looks at it cost little."""
        return PackedProperties(self._names, self._packed)

    @property
    def additional_properties(self) -> dict[str, str]:
        """See `Summary.additional_properties`; another dict each time."""
        return dict(self.properties)

    def __copy__(self) -> PackedSummary:
        return self

    def __deepcopy__(self, memo: Any = None) -> PackedSummary:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _pack, (self.operation, self.additional_properties)


def compact(snapshot: Snapshot) -> Snapshot:
    """An equal snapshot that takes little memory; the same where it has fields of its own."""
    summary = snapshot.summary
    if type(snapshot) is not Snapshot or type(summary) is not Summary:
        return snapshot
    values = summary.additional_properties
    if not all(type(value) is str for value in values.values()):
        return snapshot
    found = snapshot.model_copy(update={"summary": _pack(summary.operation, values)})
    share_fields_set(found)
    return found


def share_fields_set(model: IcebergBaseModel) -> None:
    """Let a model of which nothing is changed name the fields it was made with by a shared set.

    One of its own takes up to 700 bytes.
    """
    fields = model.__pydantic_fields_set__
    shared = _fields_sets.setdefault(frozenset(fields), fields)
    object.__setattr__(model, "__pydantic_fields_set__", shared)


_fields_sets: dict[frozenset[str], set[str]] = {}
_FIELDS = {operation: {"operation": operation} for operation in Operation}  # nobody changes one
_FIELDS_SET = {"operation"}


def _pack(operation: Operation, values: Mapping[str, str]) -> PackedSummary:
    encoded = _encode(list(values.values())).encode()
    key = tuple(values)
    names = _names.get(key)
    if names is None:
        _names[key] = names = _Names(key, encoded)
    compressor = zlib.compressobj(
        _LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY, names.first
    )
    packed = compressor.compress(encoded) + compressor.flush()
    names.recent.put(packed, list(values.values()))
    found = PackedSummary.__new__(PackedSummary)
    for slot, value in (
        ("__dict__", _FIELDS[operation]),
        ("__pydantic_fields_set__", _FIELDS_SET),
        ("__pydantic_extra__", None),
        ("__pydantic_private__", None),
        ("_names", names),
        ("_packed", packed),
    ):
        object.__setattr__(found, slot, value)
    return found


def _unpacked(names: _Names, packed: bytes) -> list[str]:
    values = names.recent.get(packed)
    if values is None:
        encoded = zlib.decompressobj(_WINDOW_BITS, zdict=names.first).decompress(packed)
        values = json.loads(encoded)
        names.recent.put(packed, values)
    return values
