"""The JSON text of immutable metadata parts, remembered for as long as the part itself lives.

A commit writes every snapshot of the table again. Thousands of them, serialized each time, would
make the two-thousandth commit several times slower than the twentieth; their text never changes, so
it is made once. The memory is by object identity and weak: it holds nothing alive, and a changed
copy is another object.

It also carries text that a model cannot: a schema or ref read from a file keeps the fields that
PyIceberg drops, as long as the object itself is passed along.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from pyiceberg.typedef import IcebergBaseModel

from tableformat.errors import InvalidInputError
from tableformat.object_memory import ObjectMemory
from tableformat.sized_cache import SizedCache

_texts: ObjectMemory[IcebergBaseModel, bytes] = ObjectMemory()

_LISTS_BYTES_MAX = 64 << 20  # together; a stream into many tables says 2 kB in each snapshot
CHUNK_BYTES_MIN = 64 << 10
_lists: SizedCache[tuple[Sequence[IcebergBaseModel], list[bytes]]] = SizedCache(
    _LISTS_BYTES_MAX, lambda texts: sum(map(len, texts[1]))
)  # by the identity of the last part


def remember_text(part: IcebergBaseModel, text: bytes) -> None:
    """Use `text` as the JSON of `part` from here on."""
    _texts.put(part, text)


def text_of(part: IcebergBaseModel) -> bytes:
    """The JSON of an immutable part, UTF-8."""
    known = _texts.get(part)
    if known is not None:
        return known
    # TableMetadataV3 and its like override `model_dump_json`; parts do not, and None is omitted.
    text = model_json(part)
    remember_text(part, text)
    return text


def model_json(part: IcebergBaseModel) -> bytes:
    """The JSON of a model, UTF-8.

    Raises:
        InvalidInputError: A text in it holds half a character, as Python has the bytes of a
            command line that were no UTF-8.
    """
    try:
        return part.model_dump_json().encode()
    except ValueError as error:
        raise InvalidInputError(f"a text cannot be stored as UTF-8: {error}") from error


def texts_of(parts: Sequence[IcebergBaseModel]) -> list[bytes]:
    """The JSON of immutable parts with commas between, in chunks that only have to be joined.

    Keeps the chunks of many lists, by their last part: one part more than last time costs one part.
    A list that grew otherwise, or shrank, is put together anew from the texts of its parts.
    """
    if not parts:
        return []
    chunks = _remembered(parts)
    if chunks is None:
        before = _remembered(parts[:-1]) if len(parts) > 1 else None
        if before is None:
            chunks = _chunked(parts)
        else:
            chunks = _longer(before, text_of(parts[-1]))
            _lists.drop(id(parts[-2]))  # nobody writes that version again
        _lists.put(id(parts[-1]), (parts, chunks))
    return chunks


def _chunked(parts: Sequence[IcebergBaseModel]) -> list[bytes]:
    chunks: list[bytes] = []
    texts: list[bytes] = []
    size_bytes = 0
    for part in parts:
        texts.append(text_of(part))
        size_bytes += len(texts[-1])
        if size_bytes >= CHUNK_BYTES_MIN:
            chunks.append(b",".join([b"", *texts] if chunks else texts))
            texts, size_bytes = [], 0
    if texts:
        chunks.append(b",".join([b"", *texts] if chunks else texts))
    return chunks


def _longer(chunks: list[bytes], text: bytes) -> list[bytes]:
    """One part more; the last chunk grows until it is large enough."""
    if len(chunks[-1]) < CHUNK_BYTES_MIN:
        return [*chunks[:-1], b"%s,%s" % (chunks[-1], text)]
    return [*chunks, b",%s" % text]


def _remembered(parts: Sequence[IcebergBaseModel]) -> list[bytes] | None:
    entry = _lists.get(id(parts[-1]))
    if entry is None or len(entry[0]) != len(parts):
        return None
    same = all(map(is_, entry[0], parts))
    return entry[1] if same else None
