"""The manifests of the next snapshot: what is new, what loses files, what merges, what goes.

```
parent's manifests ─> drop those without live files
                   ─> rewrite those that hold a removed file   (DELETED + the others EXISTING;
                                                                those that lose all, as one)
                   ─> + new manifests of the added files       (encoded once, over all attempts)
                   ─> merge small ones                   (this snapshot's entries keep their status)
                   ─> store what is in the list, and only that
```

A rewritten entry carries its sequence numbers and its `first_row_id` in full, because a new
manifest would make it inherit others (spec: Manifest Entry Fields). Whatever is written is noted,
so that a definite failure can remove exactly that (I10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyiceberg.table.metadata import TableMetadata

from tableformat.codec.avro.manifest import describe_manifest, encode_manifest
from tableformat.codec.avro.manifest_store import open_manifest, remember_manifest
from tableformat.codec.avro.partition_values import (
    partition_normalizer,
    partition_type,
    schema_for_spec,
)
from tableformat.commit.merging import MergePolicy, plan_merges
from tableformat.environment import Environment
from tableformat.spec.data_file import (
    DataFile,
    DeleteFileKey,
    EntryStatus,
    FileContent,
    ManifestEntry,
)
from tableformat.spec.manifest_file import ManifestContent, ManifestFile

# A new manifest is cut before it is encoded, so by count: entries with a handful of statistics
# columns take 30-60 bytes compressed, wide ones several hundred.
BYTES_PER_ENTRY_GUESS = 256


@dataclass(slots=True)
class _Draft:
    """An encoded manifest that may not be stored yet."""

    manifest: ManifestFile
    entries: Sequence[ManifestEntry]
    data: bytes
    is_stored: bool = False


@dataclass(slots=True)
class ManifestWriter:
    """Writes the manifests of one commit, over all its attempts.

    `snapshot_id` is fixed for the commit, so a rewritten manifest of one attempt serves the next
    when the parent still has the original.
    """

    environment: Environment
    snapshot_id: int
    location_for: Callable[[], str]
    written: list[str] = field(default_factory=list)
    _drafts: dict[str, _Draft] = field(default_factory=dict)
    _rewritten: dict[tuple[str, frozenset[DeleteFileKey]], _Draft] = field(default_factory=dict)
    _emptied: dict[tuple[str, ...], list[ManifestFile]] = field(default_factory=dict)
    _merged: dict[tuple[str, ...], _Draft] = field(default_factory=dict)

    def add(
        self, metadata: TableMetadata, entries: Sequence[ManifestEntry], policy: MergePolicy
    ) -> list[ManifestFile]:
        """Encode manifests for entries of any spec and content; nothing is stored yet."""
        per_manifest = max(policy.target_size_bytes // BYTES_PER_ENTRY_GUESS, 1)
        manifests = []
        for (content, spec_id), of_kind in sorted(_by_kind(entries).items()):
            for start in range(0, len(of_kind), per_manifest):
                part = of_kind[start : start + per_manifest]
                draft = self._encode(metadata, part, spec_id=spec_id, content=content)
                manifests.append(draft.manifest)
        return manifests

    def without(
        self,
        metadata: TableMetadata,
        manifests: Sequence[ManifestFile],
        removed: Mapping[str, frozenset[DeleteFileKey]],
        policy: MergePolicy,
    ) -> list[ManifestFile]:
        """`manifests` with the live files in `removed`, by manifest and not empty, DELETED.

        Those that lose all they have come last, as few: a manifest each would cost a commit that
        replaces many small files more than all the rest of it.
        """
        kept, emptied = [], []
        for manifest in manifests:
            if manifest.manifest_path not in removed:
                kept.append(manifest)
            elif len(removed[manifest.manifest_path]) == manifest.live_files_count:
                emptied.append(manifest)
            else:
                kept.append(self._rewrite(metadata, manifest, removed[manifest.manifest_path]))
        key = tuple(each.manifest_path for each in emptied)
        if key not in self._emptied:
            entries = [
                self._deleted(entry)
                for manifest in emptied
                for entry in self._load(manifest)
                if entry.is_live
            ]
            self._emptied[key] = self.add(metadata, entries, policy)
        return [*kept, *self._emptied[key]]

    def _rewrite(
        self, metadata: TableMetadata, manifest: ManifestFile, removed: frozenset[DeleteFileKey]
    ) -> ManifestFile:
        key = (manifest.manifest_path, removed)
        draft = self._rewritten.get(key)
        if draft is None:
            entries = [
                self._deleted(entry) if entry.data_file.identity in removed else _existing(entry)
                for entry in self._load(manifest)
                if entry.is_live
            ]
            draft = self._encode(
                metadata, entries, spec_id=manifest.partition_spec_id, content=manifest.content
            )
            self._rewritten[key] = draft
        return draft.manifest

    def merge(
        self, metadata: TableMetadata, manifests: Sequence[ManifestFile], policy: MergePolicy
    ) -> list[ManifestFile]:
        """The same files in fewer manifests; a merged one stands where its first part stood."""
        merged_at: dict[str, ManifestFile] = {}
        for group in plan_merges(manifests, policy):
            merged = self._merge_group(metadata, group)
            merged_at.update(dict.fromkeys((each.manifest_path for each in group), merged))
        result: dict[str, ManifestFile] = {}
        for manifest in manifests:
            final = merged_at.get(manifest.manifest_path, manifest)
            result.setdefault(final.manifest_path, final)
        return list(result.values())

    def store(
        self, manifests: Iterable[ManifestFile], list_location: str, list_data: bytes
    ) -> None:
        """Put the list, and those of `manifests` that are drafts; a draft is put once.

        Side by side, as an object store takes its time for each: nobody reads any of them before
        the table names the list.
        """
        drafts = filter(None, (self._drafts.get(each.manifest_path) for each in manifests))
        steps = [partial(self._store_draft, draft) for draft in drafts if not draft.is_stored]
        put_list = partial(self._put, "commit.before_list_put", list_location, list_data)
        self.environment.runtime.each(lambda step: step(), [*steps, put_list])

    def _store_draft(self, draft: _Draft) -> None:
        self._put("commit.before_manifest_put", draft.manifest.manifest_path, draft.data)
        draft.is_stored = True
        draft.data = b""

    def _put(self, fail_point: str, location: str, data: bytes) -> None:
        """Store an object of this commit, noted first: a put that fails may have landed."""
        self.environment.runtime.fail_point(fail_point)
        self.written.append(location)
        self.environment.store.put(location, data)

    def remember(self, manifests: Iterable[ManifestFile]) -> None:
        """Hand the manifests of the landed snapshot to the manifest cache, numbers assigned."""
        for manifest in manifests:
            draft = self._drafts.get(manifest.manifest_path)
            if draft is not None:
                remember_manifest(self.environment.store, manifest, draft.entries)

    def _load(self, manifest: ManifestFile) -> Sequence[ManifestEntry]:
        """Entries of a manifest, drafts of this commit included."""
        draft = self._drafts.get(manifest.manifest_path)
        if draft is not None:
            return draft.entries
        return open_manifest(self.environment.store, manifest).entries

    def _merge_group(self, metadata: TableMetadata, group: Sequence[ManifestFile]) -> ManifestFile:
        key = tuple(each.manifest_path for each in group)
        draft = self._merged.get(key)
        if draft is None:
            entries = [
                entry if self._is_new(manifest) else _existing(entry)
                for manifest in group
                for entry in self._load(manifest)
                if entry.is_live or self._is_new(manifest)
            ]
            first = group[0]
            draft = self._encode(
                metadata, entries, spec_id=first.partition_spec_id, content=first.content
            )
            self._merged[key] = draft
        return draft.manifest

    def _is_new(self, manifest: ManifestFile) -> bool:
        return manifest.manifest_path in self._drafts

    def _deleted(self, entry: ManifestEntry) -> ManifestEntry:
        return replace(entry, status=EntryStatus.DELETED, snapshot_id=self.snapshot_id)

    def _encode(
        self,
        metadata: TableMetadata,
        entries: Sequence[ManifestEntry],
        *,
        spec_id: int,
        content: ManifestContent,
    ) -> _Draft:
        spec = metadata.specs()[spec_id]
        schema = schema_for_spec(spec, metadata.schema(), metadata.schemas)
        data = encode_manifest(
            entries,
            schema=schema,
            spec=spec,
            content=content,
            format_version=metadata.format_version,
        )
        location = self.location_for()
        manifest = describe_manifest(
            entries,
            location=location,
            length=len(data),
            schema=schema,
            spec=spec,
            content=content,
            snapshot_id=self.snapshot_id,
        )
        draft = _Draft(manifest=manifest, entries=entries, data=data)
        self._drafts[location] = draft
        return draft


def added_entries(
    metadata: TableMetadata, files: Iterable[DataFile], *, data_sequence_number: int | None
) -> list[ManifestEntry]:
    """ADDED entries; the data sequence number is inherited unless a rewrite keeps an older one.

    Partition values are made what a reader of the manifest will see; a row id that a file brings
    from elsewhere is dropped (spec: First Row ID Assignment).
    """
    normalizers = {
        spec_id: partition_normalizer(
            partition_type(spec, schema_for_spec(spec, metadata.schema(), metadata.schemas))
        )
        for spec_id, spec in metadata.specs().items()
    }
    return [
        ManifestEntry(
            status=EntryStatus.ADDED,
            snapshot_id=None,
            sequence_number=data_sequence_number if file.content == FileContent.DATA else None,
            file_sequence_number=None,
            data_file=file.with_(
                first_row_id=None, partition=normalizers[file.spec_id](file.partition)
            ),
        )
        for file in files
    ]


def _existing(entry: ManifestEntry) -> ManifestEntry:
    if entry.status == EntryStatus.EXISTING:
        return entry
    return replace(entry, status=EntryStatus.EXISTING)


def _by_kind(
    entries: Iterable[ManifestEntry],
) -> Mapping[tuple[ManifestContent, int], list[ManifestEntry]]:
    kinds: dict[tuple[ManifestContent, int], list[ManifestEntry]] = {}
    for entry in entries:
        file = entry.data_file
        content = (
            ManifestContent.DATA if file.content == FileContent.DATA else ManifestContent.DELETES
        )
        kinds.setdefault((content, file.spec_id), []).append(entry)
    return kinds
