"""Which deletes reach which data file (spec: Scan Planning).

| delete               | reaches a data file when                                                  |
|----------------------|---------------------------------------------------------------------------|
| deletion vector      | it references the file; data seq <= DV seq; same spec and partition       |
| position delete file | no DV does; the file may be listed in it; data seq <= delete seq;         |
|                      | same spec and partition                                                   |
| equality delete file | data seq < delete seq, strictly: rows of its own commit live on;          |
|                      | same spec and partition, or written under an unpartitioned spec: global   |

A row filter never decides about a delete (R14): a delete on column `a` kills rows that a filter
on column `b` selects.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.types import NestedField

from tableformat.errors import CorruptDataError
from tableformat.scan.bounds import KeyRange, key_range, ranges_overlap
from tableformat.spec.data_file import DataFile, FileContent, ManifestEntry, PartitionKey
from tableformat.spec.names import DELETE_FILE_PATH_FIELD_ID
from tableformat.spec.unpartitioned import is_unpartitioned


@dataclass(frozen=True, slots=True)
class FileDeletes:
    """The delete entries that reach one data file, oldest first."""

    dv: ManifestEntry | None = None
    position_deletes: tuple[ManifestEntry, ...] = ()
    equality_deletes: tuple[ManifestEntry, ...] = ()


@dataclass(slots=True)
class _BySequence:
    """Delete entries ordered by data sequence number."""

    entries: list[ManifestEntry] = field(default_factory=list)
    sequence_numbers: list[int] = field(default_factory=list)

    def close(self) -> None:
        self.entries.sort(key=lambda entry: (sequence_number(entry), entry.data_file.file_path))
        self.sequence_numbers = [sequence_number(entry) for entry in self.entries]

    def at_least(self, sequence: int) -> list[ManifestEntry]:
        return self.entries[bisect_left(self.sequence_numbers, sequence) :]

    def after(self, sequence: int) -> list[ManifestEntry]:
        return self.entries[bisect_right(self.sequence_numbers, sequence) :]


class DeleteIndex:
    """The live delete entries of one snapshot, ready to be asked file by file.

    Args:
        entries: Live entries of delete manifests, inheritance applied.
        specs: Partition specs by id.
        key_fields: Field of every id that an equality delete may compare, of all schemas.

    Raises:
        CorruptDataError: Two DVs for one data file, or an entry that is no delete.
    """

    def __init__(
        self,
        entries: Iterable[ManifestEntry],
        *,
        specs: Mapping[int, PartitionSpec],
        key_fields: Mapping[int, NestedField],
    ) -> None:
        self._specs = specs
        self._key_fields = key_fields
        self._dvs: dict[str, ManifestEntry] = {}
        self._by_path: defaultdict[str, _BySequence] = defaultdict(_BySequence)
        self._by_partition: defaultdict[PartitionKey, _BySequence] = defaultdict(_BySequence)
        self._equality: defaultdict[PartitionKey, _BySequence] = defaultdict(_BySequence)
        self._global = _BySequence()
        self._ranges: dict[tuple[object, ...], dict[int, KeyRange]] = {}
        for entry in entries:
            self._add(entry)
        for group in (self._by_path, self._by_partition, self._equality):
            for deletes in group.values():
                deletes.close()
        self._global.close()

    @property
    def is_empty(self) -> bool:
        """Whether no delete exists at all."""
        return not (
            self._dvs
            or self._by_path
            or self._by_partition
            or self._equality
            or self._global.entries
        )

    def for_data_file(self, entry: ManifestEntry) -> FileDeletes:
        """The deletes that reach `entry`, a live data file.

        Raises:
            CorruptDataError: A DV that is older than its file, or of another partition.
        """
        if self.is_empty:
            return FileDeletes()
        dv = self._dvs.get(entry.data_file.file_path)
        if dv is not None:
            _check_dv(dv, entry, self._specs)
        return FileDeletes(
            dv=dv,
            position_deletes=() if dv is not None else self._position_deletes(entry),
            equality_deletes=self._equality_deletes(entry),
        )

    def _add(self, entry: ManifestEntry) -> None:
        delete = entry.data_file
        if delete.content == FileContent.EQUALITY_DELETES:
            if not delete.equality_ids:
                raise CorruptDataError(
                    "an equality delete file names no columns", location=delete.file_path
                )
            if is_unpartitioned(self._specs[delete.spec_id]):
                self._global.entries.append(entry)
            else:
                self._equality[delete.partition_key].entries.append(entry)
        elif delete.is_dv:
            self._add_dv(entry)
        elif delete.content == FileContent.POSITION_DELETES:
            path = referenced_path(delete)
            if path is not None:
                self._by_path[path].entries.append(entry)
            else:
                self._by_partition[delete.partition_key].entries.append(entry)
        else:
            raise CorruptDataError("a delete manifest lists a data file", location=delete.file_path)

    def _add_dv(self, entry: ManifestEntry) -> None:
        path = entry.data_file.referenced_data_file
        if path is None:
            raise CorruptDataError(
                "a deletion vector references no data file", location=entry.data_file.file_path
            )
        other = self._dvs.setdefault(path, entry)
        if other is not entry:
            raise CorruptDataError(
                f"Can't index multiple DVs for {path}: {describe_dv(other.data_file)} and "
                f"{describe_dv(entry.data_file)}",
                location=entry.data_file.file_path,
            )

    def _position_deletes(self, entry: ManifestEntry) -> tuple[ManifestEntry, ...]:
        data = entry.data_file
        sequence = sequence_number(entry)
        found: list[ManifestEntry] = []
        if data.file_path in self._by_path:
            scoped = self._by_path[data.file_path].at_least(sequence)
            found += [
                delete for delete in scoped if delete.data_file.partition_key == data.partition_key
            ]
        if data.partition_key in self._by_partition:
            shared = self._by_partition[data.partition_key].at_least(sequence)
            found += [delete for delete in shared if _may_list(delete.data_file, data.file_path)]
        return tuple(found)

    def _equality_deletes(self, entry: ManifestEntry) -> tuple[ManifestEntry, ...]:
        data = entry.data_file
        sequence = sequence_number(entry)
        found = self._global.after(sequence)
        if data.partition_key in self._equality:
            found = found + self._equality[data.partition_key].after(sequence)
        if not found:
            return ()
        return tuple(delete for delete in found if self._may_match(delete.data_file, data))

    def _may_match(self, delete: DataFile, data: DataFile) -> bool:
        """Whether statistics leave it open that a key of `delete` is in `data`."""
        for field_id in delete.equality_ids or ():
            key_field = self._key_fields.get(field_id)
            if key_field is None:
                continue
            if not ranges_overlap(self._range(delete, key_field), self._range(data, key_field)):
                return False
        return True

    def _range(self, file: DataFile, key_field: NestedField) -> KeyRange:
        ranges = self._ranges.setdefault(file.identity, {})
        if key_field.field_id not in ranges:
            ranges[key_field.field_id] = key_range(file, key_field)
        return ranges[key_field.field_id]


def sequence_number(entry: ManifestEntry) -> int:
    """The entry's data sequence number.

    Raises:
        CorruptDataError: It has none, although it was read from a manifest.
    """
    if entry.sequence_number is None:
        raise CorruptDataError(
            "a manifest entry has no sequence number", location=entry.data_file.file_path
        )
    return entry.sequence_number


def referenced_path(delete: DataFile) -> str | None:
    """The one data file a position delete file is about; None if there may be several.

    Writers before `referenced_data_file` existed show it by equal bounds of the path column; a
    truncated upper bound is always larger than the lower one, so equal bounds are whole paths.
    """
    if delete.referenced_data_file is not None:
        return delete.referenced_data_file
    lower = (delete.lower_bounds or {}).get(DELETE_FILE_PATH_FIELD_ID)
    upper = (delete.upper_bounds or {}).get(DELETE_FILE_PATH_FIELD_ID)
    return lower.decode() if lower is not None and lower == upper else None


def describe_dv(dv: DataFile) -> str:
    """A DV as one word for messages: path, offset and size tell DVs apart (R44)."""
    return f"{dv.file_path}[{dv.content_offset}:+{dv.content_size_in_bytes}]"


def _may_list(delete: DataFile, path: str) -> bool:
    lower = (delete.lower_bounds or {}).get(DELETE_FILE_PATH_FIELD_ID)
    upper = (delete.upper_bounds or {}).get(DELETE_FILE_PATH_FIELD_ID)
    encoded = path.encode()
    return (lower is None or lower <= encoded) and (upper is None or encoded <= upper)


def _check_dv(dv: ManifestEntry, data: ManifestEntry, specs: Mapping[int, PartitionSpec]) -> None:
    """The spec's conditions on a DV and its file; the texts are the reference reader's."""
    delete, file = dv.data_file, data.data_file
    if sequence_number(dv) < sequence_number(data):
        raise CorruptDataError(
            f"DV data sequence number ({dv.sequence_number}) must be greater than or equal to "
            f"data file sequence number ({data.sequence_number})",
            location=delete.file_path,
            data_file=file.file_path,
        )
    if delete.spec_id != file.spec_id:
        what, left, right = "specs", str(specs[delete.spec_id]), str(specs[file.spec_id])
    elif delete.partition_key != file.partition_key:
        what, left, right = "tuples", str(delete.partition), str(file.partition)
    else:
        return
    raise CorruptDataError(
        f"Mismatched partition {what} ({left}, {right}) for delete file {describe_dv(delete)} "
        f"and data file {file.file_path}: metadata is corrupted",
        location=delete.file_path,
    )
