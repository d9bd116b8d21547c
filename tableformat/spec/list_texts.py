"""The JSON text of a table's long lists, of which a commit changes the end.

Thousands of snapshots, serialized each time, would make the two-thousandth commit several times
slower than the twentieth. So their text is kept in chunks, compressed where the files are, and it
is the only copy: a hot table has megabytes of it, and a process may hold many tables. A chunk
serves every version that has its parts in its order; those of a version are kept with it
(`metadata_models.remember_lists`), go on to the next one, and go when it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import is_

from pyiceberg.typedef import IcebergBaseModel

from tableformat.spec.json_texts import text_once
from tableformat.spec.kept_text import KEPT_BYTES_MIN, KeptText


@dataclass(frozen=True, slots=True)
class Chunk:
    """The text of `count` parts that follow each other, with commas between."""

    count: int
    text: bytes | KeptText


@dataclass(frozen=True, slots=True)
class ListTexts:
    """A list and its chunks, in order. Only the last one is no `KeptText`, and grows."""

    parts: Sequence[IcebergBaseModel] = ()
    chunks: tuple[Chunk, ...] = ()
    is_zipped: bool = False

    def joined(self) -> list[bytes | KeptText]:
        """All of the text, to be joined."""
        found: list[bytes | KeptText] = []
        for chunk in self.chunks:
            found += [b",", chunk.text] if found else [chunk.text]
        return found


def texts_of(parts: Sequence[IcebergBaseModel], before: ListTexts, *, is_zipped: bool) -> ListTexts:
    """The text of immutable parts.

    Args:
        parts: The list.
        before: Of an earlier version of it, or of none.
        is_zipped: Whether it is written compressed.

    Cost: of a list that grew, of what is new; of one that shrank, of what is left of chunks of
    which some is gone. A microsecond for a hundred parts to see which it is.
    """
    if before.is_zipped != is_zipped:
        before = ListTexts()
    if len(before.parts) <= len(parts) and all(map(is_, before.parts, parts)):
        chunks, begin = list(before.chunks), len(before.parts)
    else:
        chunks, begin = [], 0
    kept = {} if begin else _kept_by_first_part(before)
    growing = _Growing(chunks, is_zipped)
    while begin < len(parts):
        chunk = kept.get(id(parts[begin]))
        if chunk is None or not _is_at(chunk, before.parts, parts, begin):
            growing.add(text_once(parts[begin]))
            begin += 1
        else:
            growing.end()
            chunks.append(chunk[1])
            begin += chunk[1].count
    growing.end(is_last=True)
    return ListTexts(parts, tuple(chunks), is_zipped)


class _Growing:
    """The last chunk, which grows until it is large enough. Begins with one that did not."""

    def __init__(self, chunks: list[Chunk], is_zipped: bool) -> None:
        self._chunks = chunks
        self._is_zipped = is_zipped
        self._texts: list[bytes] = []
        self._count = self._size_bytes = 0
        last = chunks[-1] if chunks else None
        if last is not None and isinstance(last.text, bytes):
            chunks.pop()
            self._texts, self._count, self._size_bytes = [last.text], last.count, len(last.text)

    def add(self, text: bytes) -> None:
        """One part more."""
        self._texts.append(text)
        self._count += 1
        self._size_bytes += len(text)
        if self._size_bytes >= KEPT_BYTES_MIN:
            self.end()

    def end(self, *, is_last: bool = False) -> None:
        """Parts that come now are of the next one; `is_last`: in a later version, of this one."""
        if not self._texts:
            return
        text = b",".join(self._texts)
        kept = text if is_last else KeptText(text, is_zipped=self._is_zipped)
        self._chunks.append(Chunk(self._count, kept))
        self._texts, self._count, self._size_bytes = [], 0, 0


def _kept_by_first_part(before: ListTexts) -> dict[int, tuple[int, Chunk]]:
    """Where the chunks that do not grow begin, and they, by the `id` of their first part."""
    begins = accumulate((chunk.count for chunk in before.chunks), initial=0)
    return {
        id(before.parts[begin]): (begin, chunk)
        for begin, chunk in zip(begins, before.chunks, strict=False)
        if isinstance(chunk.text, KeptText)
    }


def _is_at(
    found: tuple[int, Chunk],
    former: Sequence[IcebergBaseModel],
    parts: Sequence[IcebergBaseModel],
    begin: int,
) -> bool:
    at, chunk = found
    there = parts[begin : begin + chunk.count]
    return len(there) == chunk.count and all(map(is_, former[at : at + chunk.count], there))
