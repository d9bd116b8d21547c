"""Finding live files in a snapshot: those a commit removes, and the deletes that go with them.

What holds after every commit of ours, whoever planned it (I6):

* every removed file was live in the parent, as the entry that was planned: a data file that left
  and came back (rollback, published again) has other row ids, which a rewrite would undo;
* a data file leaves together with its deletion vector and its file-scoped position deletes (R45);
* a data file has at most one live deletion vector, found by the file it references, whatever filter
  the statement had (iceberg #15966, R43).

Manifests are skipped by content, spec, partition summary and sequence number, then by the names in
them; in the rest the files are looked up. They come from the manifest cache in a process that
commits often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import PrimitiveType

from tableformat.cached import cached_property
from tableformat.codec.avro.loaded_manifest import LoadedManifest
from tableformat.codec.avro.named_files import Wanted, wanted
from tableformat.codec.avro.partition_values import partition_type, schema_for_spec
from tableformat.errors import AlreadyExistsError, CommitConflictError
from tableformat.spec.data_file import DataFile, DeleteFileKey, FileContent, ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile, PartitionFieldSummary

PARTITIONS_COMPARED_MAX = 64  # beyond, a manifest is rarely skipped and comparing costs more

OpenManifest = Callable[[ManifestFile], LoadedManifest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What leaves the table in one attempt.

    Attributes:
        by_manifest: Manifest path to the identities of its files that go.
        files: All of them; more than was asked for when deletes go with their data files.
    """

    by_manifest: Mapping[str, frozenset[DeleteFileKey]]
    files: tuple[DataFile, ...]


@dataclass
class _Search:
    """What to look for among delete files or among data files, and what was found.

    Files that name the data file they are for are looked up by it, all others by identity: so a
    commit that only moves vectors builds one index per manifest.
    """

    identities: set[DeleteFileKey]
    by_identity: set[DeleteFileKey]
    sequence_numbers: Mapping[str, int | None] = field(default_factory=dict)
    referenced: frozenset[str] = frozenset()
    data_files: frozenset[str] = frozenset()
    new_vectors: frozenset[str] = frozenset()
    found: dict[str, set[DeleteFileKey]] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    clashes: list[ManifestEntry] = field(default_factory=list)

    @classmethod
    def of_data_files(
        cls, paths: Iterable[str], sequence_numbers: Mapping[str, int | None] | None = None
    ) -> _Search:
        """Look for data files; for those with a sequence number, only under that number."""
        identities: set[DeleteFileKey] = {(path, None, None) for path in paths}
        return cls(
            identities=identities,
            by_identity=set(identities),
            sequence_numbers=sequence_numbers or {},
        )

    @classmethod
    def of_deletes(
        cls, removed: Sequence[DataFile], data_files: frozenset[str], vectors: Sequence[DataFile]
    ) -> _Search:
        """Look for `removed`, for what goes with `data_files`, for what clashes with `vectors`."""
        new_vectors = frozenset(str(file.referenced_data_file) for file in vectors)
        named = [file.referenced_data_file for file in removed]
        return cls(
            identities={file.identity for file in removed},
            by_identity={f.identity for f in removed if f.referenced_data_file is None},
            referenced=data_files | new_vectors | {path for path in named if path is not None},
            data_files=data_files,
            new_vectors=new_vectors,
        )

    @cached_property
    def names(self) -> Wanted:
        """Locations, one of which is in every manifest that has something to find."""
        return wanted(self.referenced | {location for location, _, _ in self.by_identity})

    @property
    def is_over(self) -> bool:
        """Whether all is found: a file is live once, but anything may refer to a data file."""
        return not (self.identities or self.data_files or self.new_vectors)

    def look_into(self, path: str, manifest: LoadedManifest) -> None:
        """Find what the manifest has, by look-ups: its size does not matter."""
        if not manifest.may_name(self.names):
            return
        if self.referenced:
            by_file = manifest.live_by_referenced_file
            for data_file in self.referenced & by_file.keys():
                for entry in by_file[data_file]:
                    self._look_at(path, entry)
        if self.by_identity:
            for identity in self.by_identity & manifest.live_by_identity.keys():
                entry = manifest.live_by_identity[identity]
                if self.sequence_numbers.get(identity[0]) in (None, entry.sequence_number):
                    self._take(path, entry.data_file)

    def _look_at(self, path: str, entry: ManifestEntry) -> None:
        file = entry.data_file
        if file.identity in self.identities or file.referenced_data_file in self.data_files:
            self._take(path, file)  # removed, or goes with its data file
        elif file.is_dv and file.referenced_data_file in self.new_vectors:
            self.clashes.append(entry)

    def _take(self, path: str, file: DataFile) -> None:
        self.identities.discard(file.identity)
        self.by_identity.discard(file.identity)
        self.found.setdefault(path, set()).add(file.identity)
        self.files.append(file)


def plan_removal(
    metadata: TableMetadata,
    manifests: Sequence[ManifestFile],
    *,
    removed: Sequence[ManifestEntry],
    added_deletes: Sequence[DataFile],
    open_manifest: OpenManifest,
) -> Removal:
    """Find everything that has to go when `removed` goes and `added_deletes` come.

    Args:
        metadata: The table, for partition types.
        manifests: The parent snapshot's.
        removed: Entries as the scan saw them.
        added_deletes: Delete files that the commit adds.
        open_manifest: Reads one manifest.

    Raises:
        CommitConflictError: A file is not live any more, or a data file would have two vectors.
    """
    data = [e for e in removed if e.data_file.content == FileContent.DATA]
    deletes = [e for e in removed if e.data_file.content != FileContent.DATA]
    vectors = [file for file in added_deletes if file.is_dv]
    data_files = frozenset(e.data_file.file_path for e in data)
    planned = {e.data_file.file_path: e.sequence_number for e in data}
    data_search = _Search.of_data_files(data_files, planned)
    if data:
        reach = _Reach(metadata, [e.data_file for e in data], data)
        _search(manifests, ManifestContent.DATA, data_search, reach, open_manifest)
        _check_found(data_search.identities, "data files")
    delete_search = _Search.of_deletes([e.data_file for e in deletes], data_files, vectors)
    if data or deletes or vectors:
        files = [e.data_file for e in (*data, *deletes)] + vectors
        reach = _Reach(metadata, files, deletes if not data and not vectors else None)
        _search(manifests, ManifestContent.DELETES, delete_search, reach, open_manifest)
        _check_found(delete_search.identities, "delete files")
        _check_vectors(delete_search.clashes)
    found = {**data_search.found, **delete_search.found}
    return Removal(
        by_manifest={path: frozenset(identities) for path, identities in found.items()},
        files=(*data_search.files, *delete_search.files),
    )


def missing_data_files(
    metadata: TableMetadata,
    manifests: Sequence[ManifestFile],
    *,
    paths: frozenset[str],
    open_manifest: OpenManifest,
) -> set[str]:
    """Those of `paths` that are no live data file. Reads data manifests until all are found."""
    search = _Search.of_data_files(paths)
    reach = _Reach(metadata, None, None)
    _search(manifests, ManifestContent.DATA, search, reach, open_manifest)
    return {path for path, _, _ in search.identities}


def check_not_live(
    metadata: TableMetadata,
    manifests: Sequence[ManifestFile],
    *,
    added: Sequence[DataFile],
    open_manifest: OpenManifest,
) -> None:
    """Whether added data files are new to the branch (spec: a file is listed once).

    Raises:
        AlreadyExistsError: One of them is live.
    """
    search = _Search.of_data_files(file.file_path for file in added)
    reach = _Reach(metadata, added, None)
    _search(manifests, ManifestContent.DATA, search, reach, open_manifest)
    if search.files:
        raise AlreadyExistsError(
            "data files to add are live on the branch already",
            location=min(file.file_path for file in search.files),
            count=len(search.files),
        )


def _search(
    manifests: Iterable[ManifestFile],
    content: ManifestContent,
    search: _Search,
    reach: _Reach,
    open_manifest: OpenManifest,
) -> None:
    """Look through the manifests, newest first, until nothing more can be found."""
    for manifest in manifests:
        if manifest.content != content or not manifest.has_live_files:
            continue
        if search.is_over:
            return
        if reach.may_hold(manifest):
            search.look_into(manifest.manifest_path, open_manifest(manifest))


class _Reach:
    """Which manifests can hold the files that are looked for."""

    def __init__(
        self,
        metadata: TableMetadata,
        files: Sequence[DataFile] | None,
        entries: Sequence[ManifestEntry] | None,
    ) -> None:
        """Prepare.

        Args:
            metadata: The table.
            files: Give the partitions; None: all.
            entries: Give the sequence numbers, when nothing but these entries is looked for.
        """
        self._metadata = metadata
        self._partitions: dict[int, set[tuple[Any, ...]]] | None = None
        if files is not None:
            self._partitions = {}
            for file in files:
                self._partitions.setdefault(file.spec_id, set()).add(file.partition)
        numbers = [e.sequence_number for e in entries or ()]
        self._newest_number = max((n for n in numbers if n is not None), default=None)
        if None in numbers:
            self._newest_number = None
        self._types: dict[int, list[Any]] = {}

    def may_hold(self, manifest: ManifestFile) -> bool:
        """Whether to read the manifest."""
        oldest = manifest.min_sequence_number
        if self._newest_number is not None and oldest is not None and oldest > self._newest_number:
            return False
        if self._partitions is None:
            return True
        partitions = self._partitions.get(manifest.partition_spec_id)
        if partitions is None:
            return False
        if not manifest.partitions or len(partitions) > PARTITIONS_COMPARED_MAX:
            return True
        types = self._types_of(manifest.partition_spec_id)
        return any(_within(values, manifest.partitions, types) for values in partitions)

    def _types_of(self, spec_id: int) -> list[Any]:
        types = self._types.get(spec_id)
        if types is None:
            metadata = self._metadata
            spec = metadata.specs()[spec_id]
            schema = schema_for_spec(spec, metadata.schema(), metadata.schemas)
            types = [each.field_type for each in partition_type(spec, schema).fields]
            self._types[spec_id] = types
        return types


def _within(
    values: Sequence[Any], summaries: Sequence[PartitionFieldSummary], types: Sequence[Any]
) -> bool:
    """Whether the tuple may be among those that the summaries span; any doubt says yes."""
    if not len(values) == len(summaries) == len(types):
        return True
    return all(map(_field_within, values, summaries, types))


def _field_within(value: Any, summary: PartitionFieldSummary, field_type: Any) -> bool:
    if value is None:
        return summary.contains_null
    low, high = summary.lower_bound, summary.upper_bound
    if value != value:  # NaN
        return summary.contains_nan is not False
    if low is None or high is None or not isinstance(field_type, PrimitiveType):
        return low is not None or high is not None or summary.contains_nan is None
    try:
        return bool(from_bytes(field_type, low) <= value <= from_bytes(field_type, high))
    except (ValueError, TypeError, ArithmeticError):
        return True


def _check_found(missing: set[DeleteFileKey], kind: str) -> None:
    if missing:
        paths = sorted({path for path, _, _ in missing})
        raise CommitConflictError(
            f"missing {kind}: files to remove are not live in the branch's head",
            conflicts=paths,
            action="plan again on the current head",
            count=len(missing),
            location=paths[0],
        )


def _check_vectors(clashes: Sequence[ManifestEntry]) -> None:
    if clashes:
        clashes = sorted(clashes, key=lambda entry: str(entry.data_file.referenced_data_file))
        first = clashes[0]
        raise CommitConflictError(
            "data files would have two deletion vectors",
            conflicts=[
                f"snapshot {entry.snapshot_id}: {entry.data_file.referenced_data_file}"
                for entry in clashes
            ],
            action="plan again on the current head, merge the vector and remove the old one",
            count=len(clashes),
            data_file=first.data_file.referenced_data_file,
            location=first.data_file.file_path,
            snapshot_id=first.snapshot_id,
        )
