"""Deleted positions in the form that a table's format version has: vectors, or v2's files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyiceberg.table.metadata import TableMetadata

from tableformat.codec.puffin.dv_file import DeletionVector, write_deletion_vectors
from tableformat.environment import Environment
from tableformat.paths import puffin_locations
from tableformat.runtime import IdSource
from tableformat.spec.data_file import DataFile
from tableformat.spec.properties import delete_granularity, dv_placement
from tableformat.store.base import ObjectStore
from tableformat.write.position_deletes import (
    DeletedInFiles,
    by_granularity,
    write_position_deletes,
)


def has_vectors(metadata: TableMetadata) -> bool:
    """Whether rows are deleted by deletion vectors; else by position delete files."""
    return metadata.format_version >= 3


def is_cumulative(metadata: TableMetadata) -> bool:
    """Whether a new delete of a data file's rows takes over what was deleted of it before.

    A vector always does, since a data file has one at most; and so does a position delete file for
    one data file, which would have as many as there were cycles.
    """
    return has_vectors(metadata) or delete_granularity(metadata.properties) == "file"


def deletes_written_together(
    metadata: TableMetadata, deleted: Iterable[DeletionVector]
) -> list[DeletedInFiles]:
    """What cannot be told apart once it is written: it is written, kept and left out as one."""
    if has_vectors(metadata):
        return [(each,) for each in deleted]
    return by_granularity(metadata, deleted)


def write_row_deletes(
    environment: Environment, metadata: TableMetadata, groups: Sequence[DeletedInFiles]
) -> list[tuple[DataFile, ...]]:
    """Write groups of `deletes_written_together`.

    Args:
        environment: Store and ids.
        metadata: The table.
        groups: One data file is in one group, and has deleted positions.

    Returns:
        The delete files to commit, by group.

    Raises:
        InternalError: Two vectors for one data file, or a position past its rows.
        StoreUnavailableError: A file could not be stored; those stored before stay behind.

    Effects: puts objects. They mean nothing until a commit refers to them; a crash leaves them for
    orphan removal.
    """
    store, ids = environment.store, environment.runtime.ids
    if not has_vectors(metadata):
        return [write_position_deletes(store, metadata, ids, group) for group in groups]
    vectors = [vector for group in groups for vector in group]
    return [(file,) for file in write_vectors(store, ids, metadata, vectors)]


def write_vectors(
    store: ObjectStore, ids: IdSource, metadata: TableMetadata, vectors: Sequence[DeletionVector]
) -> list[DataFile]:
    """Write deletion vectors of a v3 table as its properties say; see `write_deletion_vectors`."""
    return write_deletion_vectors(
        store,
        vectors,
        location_for=puffin_locations(metadata, ids),
        placement=dv_placement(metadata.properties),
        bounds_of=metadata.schema().identifier_field_ids,
    )
