"""Checks of a changeset that need no history: what cannot be right on any version of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.errors import CommitConflictError, InvalidInputError, UnsupportedError
from tableformat.spec.data_file import DataFile, DeleteFileKey, FileContent
from tableformat.spec.properties import publishing

ENCRYPTION_KEY = "encryption.key-id"
WRITABLE_FROM = 2  # v1 has neither sequence numbers nor deletes
UPGRADE = "icefold table upgrade makes it one (docs/upgrade.md); there is no way back"


def check_writable(metadata: TableMetadata, *, table: str) -> None:
    """Commits write v2, with position delete files, and v3, with deletion vectors and row ids.

    Raises:
        UnsupportedError: The table is v1, or encrypted.
    """
    if ENCRYPTION_KEY in metadata.properties or (metadata.model_extra or {}).get("encryption-keys"):
        raise UnsupportedError(
            "cannot write to an encrypted table: anybody could read the new files",
            action="write to it with Iceberg's own writers, which know its keys",
            table=table,
        )
    if metadata.format_version < WRITABLE_FROM:
        raise UnsupportedError(
            f"cannot commit to a v{metadata.format_version} table: v3 is needed, or v2",
            action=UPGRADE,
            table=table,
        )


def check_v3(metadata: TableMetadata, *, table: str, what: str, why: str) -> None:
    """Refuse on older tables what only v3 can hold.

    Args:
        metadata: The table.
        table: Its name.
        what: What is refused, after "cannot".
        why: What of v3 it needs.

    Raises:
        UnsupportedError: The table is v1 or v2.
    """
    if metadata.format_version < 3:
        raise UnsupportedError(
            f"cannot {what} a v{metadata.format_version} table: {why} need v3",
            action=UPGRADE,
            table=table,
        )


def check_publishing(properties: Mapping[str, str], format_version: int, *, table: str) -> None:
    """Refuse staged rows that no cycle could publish.

    Raises:
        UnsupportedError: They are to be written once more, with row ids, on a v1 or v2 table.
    """
    if format_version < 3 and publishing(properties) == "rewrite":
        raise UnsupportedError(
            f"icefold.publish=rewrite keeps row ids, which a v{format_version} table does not have",
            action=f"set icefold.publish to link; or {UPGRADE}",
            table=table,
        )


def check_changeset(changeset: Changeset) -> None:
    """Whether the parts of a changeset fit each other.

    Raises:
        InvalidInputError: They do not, whatever the table looks like.
    """
    removed = [entry.data_file for entry in changeset.removed_entries]
    _check_contents(changeset)
    _check_unique(changeset, removed)
    _check_kind(changeset, removed)
    removed_data = {file.file_path for file in removed if file.content == FileContent.DATA}
    for file in changeset.added_delete_files:
        if file.is_dv and file.referenced_data_file in removed_data:
            raise InvalidInputError(
                "cannot remove a data file and give it a deletion vector in one commit",
                location=file.referenced_data_file,
            )


def check_files(changeset: Changeset, metadata: TableMetadata) -> None:
    """Whether added files fit the table: known specs, partition tuples of the right length.

    Raises:
        InvalidInputError: They do not.
    """
    specs: Mapping[int, PartitionSpec] = metadata.specs()
    for file in (*changeset.added_data_files, *changeset.added_delete_files):
        spec = specs.get(file.spec_id)
        if spec is None:
            raise InvalidInputError(
                "added file has a partition spec that the table does not have",
                location=file.file_path,
                spec_id=file.spec_id,
            )
        if len(file.partition) != len(spec.fields):
            raise InvalidInputError(
                "added file's partition does not fit its spec",
                location=file.file_path,
                spec_id=file.spec_id,
                expected=len(spec.fields),
                found=len(file.partition),
            )


def check_delete_forms(changeset: Changeset, metadata: TableMetadata) -> None:
    """Whether deletes by position are vectors on v3, and position delete files on v2.

    Raises:
        InvalidInputError: They are not.
        CommitConflictError: They were when they were planned, on a table that was v2 then.
    """
    for file in changeset.added_delete_files:
        _check_form(file, metadata.format_version, is_planned=changeset.strict_head)


def operation_of_change(changeset: Changeset) -> Operation:
    """The summary's operation, by the spec's rules as Java's producers apply them."""
    if changeset.operation is not None:
        return changeset.operation
    adds_data = bool(changeset.added_data_files)
    adds_deletes = bool(changeset.added_delete_files)
    removes = [entry.data_file for entry in changeset.removed_entries]
    removes_data = any(file.content == FileContent.DATA for file in removes)
    match changeset.kind:
        case CommitKind.APPEND:
            return Operation.APPEND
        case CommitKind.REWRITE:
            return Operation.REPLACE
        case CommitKind.DELETE:
            return Operation.DELETE
        case CommitKind.OVERWRITE if removes_data and not adds_data:
            return Operation.DELETE
        case CommitKind.OVERWRITE if adds_data and not removes_data and not adds_deletes:
            return Operation.APPEND
        case CommitKind.ROW_DELTA if not removes and not adds_deletes:
            return Operation.APPEND
        case CommitKind.ROW_DELTA if not adds_data and (adds_deletes or removes_data):
            return Operation.DELETE
    return Operation.OVERWRITE


def _check_contents(changeset: Changeset) -> None:
    for file in changeset.added_data_files:
        if file.content != FileContent.DATA:
            raise InvalidInputError(
                "a delete file is among the added data files", location=file.file_path
            )
    for file in changeset.added_delete_files:
        if file.content == FileContent.DATA:
            raise InvalidInputError(
                "a data file is among the added delete files", location=file.file_path
            )
        if file.content == FileContent.EQUALITY_DELETES and not file.equality_ids:
            raise InvalidInputError(
                "equality delete file has no equality ids", location=file.file_path
            )
        if file.content == FileContent.POSITION_DELETES:
            _check_vector(file)


def _check_form(file: DataFile, format_version: int, *, is_planned: bool) -> None:
    if file.content != FileContent.POSITION_DELETES:
        return
    if is_planned and (format_version >= 3) != file.is_dv:
        raise CommitConflictError(
            "the table was upgraded since the change was planned: its deletes have another form",
            action="plan again on the current head",
            location=file.file_path,
            format_version=format_version,
        )
    if format_version >= 3 and not file.is_dv:
        raise InvalidInputError(
            "a v3 table takes deletion vectors, not new position delete files (spec: Deletion "
            "Vectors)",
            location=file.file_path,
        )
    if format_version < 3 and file.is_dv:
        raise InvalidInputError(
            "a v2 table takes position delete files, not deletion vectors",
            location=file.file_path,
        )


def _check_vector(file: DataFile) -> None:
    if file.is_dv and (
        file.referenced_data_file is None
        or file.content_offset is None
        or file.content_size_in_bytes is None
    ):
        raise InvalidInputError(
            "deletion vector lacks its data file, offset or size", location=file.file_path
        )


def _check_unique(changeset: Changeset, removed: Iterable[DataFile]) -> None:
    added = (*changeset.added_data_files, *changeset.added_delete_files)
    named = Counter(file.identity for file in (*added, *removed))
    _refuse_repeated(named, "a file is named twice in one change")
    referenced: Counter[DeleteFileKey] = Counter(
        (str(file.referenced_data_file), None, None)
        for file in changeset.added_delete_files
        if file.is_dv
    )
    _refuse_repeated(referenced, "a data file is given two deletion vectors in one change")


def _refuse_repeated(counts: Mapping[DeleteFileKey, int], message: str) -> None:
    for (path, _, _), count in counts.items():
        if count > 1:
            raise InvalidInputError(message, location=path)


def _check_kind(changeset: Changeset, removed: list[DataFile]) -> None:
    kind = changeset.kind
    if kind == CommitKind.APPEND and (removed or changeset.added_delete_files):
        raise InvalidInputError("an append only adds data files", kind=kind.value)
    if kind == CommitKind.DELETE and (changeset.added_data_files or changeset.added_delete_files):
        raise InvalidInputError("a delete by metadata only removes files", kind=kind.value)
    if changeset.data_sequence_number is not None and kind != CommitKind.REWRITE:
        raise InvalidInputError("only a rewrite keeps data sequence numbers", kind=kind.value)
    removes_data = any(file.content == FileContent.DATA for file in removed)
    if (
        removes_data
        and kind != CommitKind.DELETE
        and not changeset.strict_head
        and changeset.validation.starting_snapshot_id is None
    ):
        raise InvalidInputError(
            "a change that replaces data files must say which snapshot its scan read",
            action="set validation.starting_snapshot_id, or strict_head",
            kind=kind.value,
        )
    if kind == CommitKind.REWRITE:
        _check_rewrite(changeset, removed)


def _check_rewrite(changeset: Changeset, removed: list[DataFile]) -> None:
    if not removed:
        raise InvalidInputError("a rewrite must remove files")
    added = sum(file.record_count for file in changeset.added_data_files)
    replaced = sum(file.record_count for file in removed if file.content == FileContent.DATA)
    if added > replaced:
        raise InvalidInputError(
            "a rewrite cannot add rows", added_records=added, replaced_records=replaced
        )
