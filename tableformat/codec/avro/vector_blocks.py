"""Which blocks of a delete manifest list live deletion vectors and nothing else, undecoded.

Values of Avro say where they end, so bytes are records in one way only. A regular expression made
of the writer's schema, in which `content` is position deletes, `file_format` is PUFFIN and all
else any value of its type, matches a whole block just if all its records are vectors: a proof, at
a fiftieth of what decoding takes. A string's length stands before it, and expressions do not count,
so lengths are learned from entries that were decoded. A block that does not match is decoded.

Source: Apache Avro specification 1.11, "Binary Encoding"; Iceberg spec, "Manifests".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from tableformat.codec.avro.values import write_long
from tableformat.spec.data_file import ManifestEntry

# Lengths of strings that one expression knows; each makes it slower.
LENGTHS_MAX = 48
_VARINT = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_PLAIN = {
    "null": b"",
    "boolean": rb"[\x00\x01]",
    "int": _VARINT,
    "long": _VARINT,
    "float": b".{4}",
    "double": b".{8}",
}
# By the field that a record is the type of, None for the outermost: fields that it must have, with
# their types and what a live vector has there.
_INTEGRAL, _TEXT = ("int", "long"), ("string",)
_OF_VECTORS: Mapping[int | None, Mapping[int, tuple[tuple[str, ...], bytes]]] = {
    None: {0: (_INTEGRAL, rb"[\x00\x02]")},  # status: EXISTING, ADDED
    2: {134: (_INTEGRAL, rb"\x02"), 101: (_TEXT, rb"\x0c(?i:PUFFIN)")},
}
_DATA_FILE = 2
_NEVER_NULL = frozenset((143, 144, 145))  # where a vector is, and for which file


class VectorBlocks:
    """Tells blocks of one manifest that hold vectors only."""

    def __init__(self, schema: Any) -> None:
        """Wrap the writer's schema, JSON values."""
        self._schema = json.dumps(schema)
        self._lengths: frozenset[int] = frozenset()

    def learn(self, entries: Iterable[ManifestEntry]) -> None:
        """Take over how long the strings of some entries are, unless they differ much."""
        lengths = self._lengths.union(*map(_lengths, entries))
        if len(lengths) <= LENGTHS_MAX:
            self._lengths = lengths

    def only(self, data: bytes) -> bool:
        """Whether the records of a block are live vectors; False: nobody knows."""
        pattern = _compiled(self._schema, self._lengths)
        return pattern is not None and pattern.fullmatch(data) is not None


def _lengths(entry: ManifestEntry) -> Iterator[int]:
    """Of the strings and bytes of an entry, encoded; those of numbers do no harm."""
    file = entry.data_file
    for value in (file.file_path, file.referenced_data_file, *file.partition):
        if isinstance(value, str):
            yield len(value.encode())
        elif isinstance(value, bytes):
            yield len(value)


@lru_cache(maxsize=64)
def _compiled(schema: str, lengths: frozenset[int]) -> re.Pattern[bytes] | None:
    """Of any number of records; None where the schema has something that none is made of."""
    try:
        record = _pattern(json.loads(schema), None, lengths)
    except (_NoPatternError, KeyError, TypeError):
        return None
    return re.compile(b"(?>%s)*+" % record, re.DOTALL)


class _NoPatternError(Exception):
    """There is no expression for a type: a list, a map, one that was named before."""


def _pattern(schema: Any, field_id: int | None, lengths: frozenset[int]) -> bytes:
    """Of the values of one type, that of field `field_id`."""
    if isinstance(schema, list):
        return _union(schema, field_id, lengths)
    kind = schema if isinstance(schema, str) else schema["type"]
    if not isinstance(kind, str):
        return _pattern(kind, field_id, lengths)
    if kind == "record":
        return _record(schema["fields"], field_id, lengths)
    if kind == "fixed":
        return b".{%d}" % schema["size"]
    if kind in ("string", "bytes") and lengths:
        texts = [_long(length) + b".{%d}" % length for length in sorted(lengths)]
        return b"(?>%s)" % b"|".join(texts)
    if kind not in _PLAIN:
        raise _NoPatternError
    return _PLAIN[kind]


def _record(fields: list[Any], owner: int | None, lengths: frozenset[int]) -> bytes:
    """One value after the other."""
    wanted = _OF_VECTORS.get(owner, {})
    ids = {field.get("field-id") for field in fields}
    needed = {None: {_DATA_FILE}, _DATA_FILE: _NEVER_NULL}.get(owner, set())
    if not ids >= {*wanted, *needed}:
        raise _NoPatternError
    parts = []
    for field in fields:
        kinds, value = wanted.get(field.get("field-id"), ((), b""))
        if kinds and field["type"] not in kinds:
            raise _NoPatternError
        parts.append(value or _pattern(field["type"], field.get("field-id"), lengths))
    return b"".join(parts)


def _union(branches: list[Any], field_id: int | None, lengths: frozenset[int]) -> bytes:
    """Of the branches that there is an expression for."""
    found = []
    for number, branch in enumerate(branches):
        if branch == "null" and field_id in _NEVER_NULL:
            continue
        with suppress(_NoPatternError):
            found.append(_long(number) + _pattern(branch, field_id, lengths))
    if not found:
        raise _NoPatternError
    return b"(?>%s)" % b"|".join(found)


def _long(value: int) -> bytes:
    out = bytearray()
    write_long(out, value)
    return re.escape(bytes(out))
