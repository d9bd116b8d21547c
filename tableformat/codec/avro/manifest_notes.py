"""What is known of manifests that this process has not read: a file beside an index.

A manifest never changes, so what one process has seen in it saves the next one from reading it:
the hashes of the names in it, four bytes each, and whether its live delete files are vectors only.
A table of a million data files is 547 manifests that take a second to inflate; its notes are 8 MB.

    BLAKE2b-128 of the rest | JSON: format, [location, count, vectors only] * | LF | values

What every file is like (`live_columns`) is noted in the same way, in a file of its own: a cycle
does not ask for it. Such files are derived: one that is lost, old or damaged costs reading the
manifests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tableformat.cached import cached_property
from tableformat.codec.avro.container import AvroBlock
from tableformat.codec.avro.live_columns import LiveColumns
from tableformat.codec.avro.manifest_entries import EncodedManifest, delete_files_of
from tableformat.codec.avro.named_files import Hashes, Wanted, hashes_of, wanted
from tableformat.limits import UNNOTED_FILES_MAX, UNNOTED_MANIFESTS_MAX, UNNOTED_SHARE_MAX
from tableformat.spec.data_file import ManifestEntry
from tableformat.spec.manifest_file import ManifestFile

# On disk: never change the value for the same layout.
NOTES_FORMAT = 1
HASHES = np.dtype("<u4")
_CHECKSUM_SIZE = 16


@dataclass(frozen=True, slots=True)
class ManifestNote:
    """Of one manifest. `hashes` are those of all names in it, sorted."""

    hashes: Hashes
    has_vectors_only: bool

    @staticmethod
    def of(manifest: EncodedManifest) -> ManifestNote:
        """Of one that was read."""
        return ManifestNote(manifest.hashes, manifest.has_vectors_only)

    @staticmethod
    def of_entries(entries: Sequence[ManifestEntry]) -> ManifestNote:
        """Of one that was written or decoded."""
        files = [entry.data_file for entry in entries]
        named = {file.file_path for file in files}
        named.update(f.referenced_data_file for f in files if f.referenced_data_file is not None)
        return ManifestNote(hashes_of(named), not delete_files_of(entries))

    @property
    def stored(self) -> Note:
        """For `write_notes`."""
        return self.hashes.astype(HASHES), self.has_vectors_only

    def may_name(self, locations: Wanted) -> bool:
        """Whether an entry may be, or be for, one of some files; False is a proof."""
        if locations.others:
            return True
        at = np.searchsorted(self.hashes, locations.hashes)
        inside = at < len(self.hashes)
        return bool((self.hashes[at[inside]] == locations.hashes[inside]).any())


class NotedManifest:
    """A manifest that is read when its note does not answer; see `EncodedManifest`."""

    def __init__(
        self, note: ManifestNote, entry_count: int, read: Callable[[], EncodedManifest]
    ) -> None:
        """Wrap; `read` is called once at most."""
        self.note = note
        self.entry_count = entry_count
        self._read = read

    @cached_property
    def _encoded(self) -> EncodedManifest:
        return self._read()

    def decode(self) -> list[ManifestEntry]:
        """Reads it."""
        return self._encoded.decode()

    @property
    def live_delete_files(self) -> tuple[ManifestEntry, ...]:
        """Reads it, unless it is known that there are none but vectors."""
        return () if self.note.has_vectors_only else self._encoded.live_delete_files

    def live_columns(self) -> LiveColumns:
        """Reads it."""
        return self._encoded.live_columns()

    def blocks_naming(self, locations: Collection[str]) -> list[AvroBlock]:
        """Reads it, unless it names none of them."""
        names = wanted(locations)
        return self._encoded.blocks_naming(names) if self.note.may_name(names) else []

    def decode_blocks(self, blocks: Sequence[AvroBlock]) -> list[ManifestEntry]:
        """See `EncodedManifest.decode_blocks`."""
        return self._encoded.decode_blocks(blocks)


# Of one manifest: values; whether its live delete files are vectors only.
Note = tuple[npt.NDArray[Any], bool]


def read_notes(path: Path, dtype: npt.DTypeLike) -> dict[str, Note]:
    """Notes by the location of the manifest; none where there is no file, or no good one."""
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    checksum, body = data[:_CHECKSUM_SIZE], memoryview(data)[_CHECKSUM_SIZE:]
    if checksum != _checksum(body):
        return {}
    end = data.index(b"\n", _CHECKSUM_SIZE)  # megabytes are not copied to be split
    header = json.loads(data[_CHECKSUM_SIZE:end])
    if header["format"] != NOTES_FORMAT:
        return {}
    known = np.frombuffer(data, dtype=dtype, offset=end + 1)
    notes, start = {}, 0
    for location, count, vectors_only in header["manifests"]:
        notes[location] = (known[start : start + count], vectors_only)
        start += count
    return notes


def write_notes(path: Path, notes: Mapping[str, Note]) -> None:
    """Replace the file, all at once; values in the order of bytes that they are read in.

    Raises:
        OSError: It cannot be written.

    Effects: A crash leaves the old file, and perhaps one beside it that the next call replaces.
    """
    rows = [(each, len(values), vectors_only) for each, (values, vectors_only) in notes.items()]
    header = json.dumps({"format": NOTES_FORMAT, "manifests": rows}).encode()
    body = b"".join([header, b"\n", *(values.tobytes() for values, _ in notes.values())])
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(_checksum(body) + body)
    fresh.replace(path)


def lacks_much(
    manifests: Sequence[ManifestFile], noted: Container[str], *, decode_cost: int = 1
) -> bool:
    """Whether a file with some notes is to be written anew.

    Args:
        manifests: Those of a snapshot.
        noted: Locations of those that it has.
        decode_cost: What it takes to make the note of an entry, in that of the notes on names.
    """
    lacking = [each for each in manifests if each.manifest_path not in noted]
    files_max = UNNOTED_FILES_MAX + UNNOTED_SHARE_MAX * sum(map(count_entries, manifests))
    files = sum(map(count_entries, lacking))
    return len(lacking) > UNNOTED_MANIFESTS_MAX or files * decode_cost > files_max


def count_entries(manifest: ManifestFile) -> int:
    """As its manifest list says."""
    return sum(manifest.counts[:3])


def _checksum(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_SIZE).digest()
