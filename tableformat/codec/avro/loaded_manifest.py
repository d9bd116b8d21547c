"""A manifest in memory: its entries, decoded at the first look, and look-ups that are made once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tableformat.cached import cached_property
from tableformat.codec.avro.live_columns import LiveColumns, live_columns, seen_of_file
from tableformat.codec.avro.manifest_entries import EncodedManifest, delete_files_of
from tableformat.codec.avro.manifest_notes import ManifestNote, NotedManifest
from tableformat.codec.avro.named_files import Wanted, wanted
from tableformat.spec.data_file import DeleteFileKey, ManifestEntry

# Entries of the blocks to look into, as a share of all: beyond, all are decoded, once.
DECODED_SHARE_MAX = 0.5


class LoadedManifest:
    """The entries of a manifest, and look-ups into the live ones. Shared; not to be changed."""

    def __init__(
        self,
        content: EncodedManifest | NotedManifest | tuple[ManifestEntry, ...],
        on_decoded: Callable[[LoadedManifest], None] | None = None,
    ) -> None:
        """Wrap.

        Args:
            content: The manifest as it was read, what was noted of it, or its entries.
            on_decoded: Called when the entries have been decoded, and are worth keeping.
        """
        self._content = content
        self._on_decoded = on_decoded
        self.entry_count = len(content) if isinstance(content, tuple) else content.entry_count

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        """All of them; a manifest that was read is decoded the first time."""
        content = self._content
        if not isinstance(content, tuple):
            content = self._content = tuple(content.decode())
            if self._on_decoded is not None:
                self._on_decoded(self)
        return content

    def may_name(self, locations: Collection[str]) -> bool:
        """Whether an entry may be one of some files, or for one of them; False is a proof."""
        content = self._content
        return isinstance(content, tuple) or bool(content.blocks_naming(locations))

    def live_files(self, paths: Collection[str]) -> list[ManifestEntry]:
        """The live entries of some data files; `first_row_id` may be missing.

        Only the blocks that name one are decoded, unless that is a good part of the manifest.
        """
        names = wanted(paths)
        some = self._some(names)
        if some is not None:
            return [e for e in some if e.is_live and e.data_file.file_path in names]
        known, named = self.live_by_identity, [(path, None, None) for path in paths]
        return [known[identity] for identity in named if identity in known]

    def live_vectors(self, paths: Collection[str]) -> list[ManifestEntry]:
        """The live deletion vectors of some data files; decodes as `live_files` does."""
        names = wanted(paths)
        some = self._some(names)
        if some is None:
            known = self.live_by_referenced_file
            some = [entry for path in paths for entry in known.get(path, ())]
        return [
            entry
            for entry in some
            if entry.is_live
            and entry.data_file.is_dv
            and entry.data_file.referenced_data_file in names
        ]

    @property
    def live_delete_files(self) -> tuple[ManifestEntry, ...]:
        """The live delete files of a delete manifest that are no vectors."""
        content = self._content
        return delete_files_of(content) if isinstance(content, tuple) else content.live_delete_files

    def live_columns(self) -> LiveColumns:
        """What its live files are like; decodes no entry."""
        content = self._content
        if not isinstance(content, tuple):
            return content.live_columns()
        files = [entry.data_file for entry in content if entry.is_live]
        return live_columns(map(seen_of_file, files), files[0].spec_id if files else 0)

    def note(self) -> ManifestNote:
        """What is worth remembering of it."""
        content = self._content
        if isinstance(content, tuple):
            return ManifestNote.of_entries(content)
        return content.note if isinstance(content, NotedManifest) else ManifestNote.of(content)

    def _some(self, paths: Wanted) -> list[ManifestEntry] | None:
        """Entries among which are all that name one of `paths`; None: look into all."""
        content = self._content
        if isinstance(content, tuple):
            return None
        blocks = content.blocks_naming(paths)
        if not blocks:
            return []
        if sum(block.record_count for block in blocks) > DECODED_SHARE_MAX * self.entry_count:
            return None
        return content.decode_blocks(blocks)

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
