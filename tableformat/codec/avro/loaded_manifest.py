"""A manifest in memory: its entries, decoded at the first look, and look-ups that are made once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

from tableformat.codec.avro.manifest_entries import EncodedManifest
from tableformat.spec.data_file import DeleteFileKey, ManifestEntry

SEARCHED_MAX = 64  # look-ups of one file in an encoded manifest


class LoadedManifest:
    """The entries of a manifest, and look-ups into the live ones. Shared; not to be changed."""

    def __init__(self, content: EncodedManifest | tuple[ManifestEntry, ...]) -> None:
        self._content = content
        self._searched = 0
        self.entry_count = len(content) if isinstance(content, tuple) else content.entry_count

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        """All of them; a manifest that was read is decoded the first time."""
        content = self._content
        if not isinstance(content, tuple):
            content = self._content = tuple(content.decode())
        return content

    def live_files(self, paths: Collection[str]) -> list[ManifestEntry]:
        """The live entries of some data files; `first_row_id` may be missing.

        A few are looked for in the encoded manifest: decoding it all takes as long as many of them.
        """
        content = self._content
        self._searched += len(paths)
        if not isinstance(content, tuple) and self._searched <= SEARCHED_MAX:
            return [entry for entry in content.find(paths) if entry.is_live]
        known, named = self.live_by_identity, [(path, None, None) for path in paths]
        return [known[identity] for identity in named if identity in known]

    @cached_property
    def live_by_identity(self) -> Mapping[DeleteFileKey, ManifestEntry]:
        """Live entries by location, offset and size."""
        return {entry.data_file.identity: entry for entry in self.entries if entry.is_live}

    @cached_property
    def live_by_referenced_file(self) -> Mapping[str, tuple[ManifestEntry, ...]]:
        """Live deletion vectors and file-scoped position deletes by the data file they are for."""
        found: dict[str, list[ManifestEntry]] = {}
        for entry in self.entries:
            referenced = entry.data_file.referenced_data_file
            if entry.is_live and referenced is not None:
                found.setdefault(referenced, []).append(entry)
        return {path: tuple(entries) for path, entries in found.items()}
