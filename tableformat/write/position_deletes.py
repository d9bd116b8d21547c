"""Position delete files: how v2 says which rows of a data file are deleted.

Rows `(file_path, pos)`, sorted (spec: Position Delete Files). One file for each partition, or for
each data file, as the table property `write.delete.granularity` says: a reader opens few files of
the former, of which it needs a part, or one for each data file of the latter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from tableformat.codec.parquet.options import parquet_options
from tableformat.codec.parquet.writer import ParquetFileWriter, describe_file
from tableformat.codec.puffin.deletion_vector import position_array
from tableformat.codec.puffin.dv_file import DeletionVector
from tableformat.errors import TableError
from tableformat.paths import position_delete_location
from tableformat.runtime import IdSource
from tableformat.scan.position_deletes import POSITION_DELETE_SCHEMA
from tableformat.spec.data_file import DataFile, FileContent, PartitionKey
from tableformat.spec.names import DELETE_FILE_PATH_FIELD_ID, DELETE_POS_FIELD_ID
from tableformat.spec.properties import delete_granularity
from tableformat.store.base import ObjectStore
from tableformat.write.one_partition import OnePartition

ROWS_PER_GROUP = 1 << 18  # the paths are written out: some 25 MiB
ROWS_PER_FILE = 1 << 24  # about the 64 MiB that delete files have elsewhere

DeletedInFiles = tuple[DeletionVector, ...]


def by_granularity(
    metadata: TableMetadata, deleted: Iterable[DeletionVector]
) -> list[DeletedInFiles]:
    """What goes into one position delete file each, or into several if it is large."""
    if delete_granularity(metadata.properties) == "file":
        return [(each,) for each in deleted]
    partitions: dict[PartitionKey, list[DeletionVector]] = {}
    for each in deleted:
        partitions.setdefault(each.data_file.partition_key, []).append(each)
    return [tuple(found) for found in partitions.values()]


def write_position_deletes(
    store: ObjectStore, metadata: TableMetadata, ids: IdSource, deleted: DeletedInFiles
) -> tuple[DataFile, ...]:
    """Write the deleted positions of some data files of one partition.

    Args:
        store: Where the files go.
        metadata: Specs and properties.
        ids: Their names.
        deleted: Data files of one spec and partition, with positions in them; not empty.

    Returns:
        The delete files to commit. One of a single data file names it.

    Raises:
        StoreUnavailableError: A file could not be stored.

    Effects: creates the files. If it raises they are deleted again; a crash leaves them
    unreferenced, for orphan removal.
    """
    partition = OnePartition.of(metadata, deleted[0].data_file)
    options = parquet_options(metadata.properties, for_deletes=True)
    written: list[DataFile] = []
    try:
        for part in _files(deleted):
            file = ParquetFileWriter(
                store,
                position_delete_location(partition.directory, partition.folder, ids),
                schema=POSITION_DELETE_SCHEMA,
                options=options,
                properties={},  # the bounds of paths are never cut: readers find files by them
            )
            for rows in _row_groups(part):
                file.write(rows)
            written.append(_closed(file, part))
    except TableError:
        store.delete([each.file_path for each in written])
        raise
    return tuple(written)


def _files(deleted: DeletedInFiles) -> Iterator[DeletedInFiles]:
    part: list[DeletionVector] = []
    rows = 0
    for each in sorted(deleted, key=lambda each: each.data_file.file_path.encode()):
        if part and rows + len(each.positions) > ROWS_PER_FILE:
            yield tuple(part)
            part, rows = [], 0
        part.append(each)
        rows += len(each.positions)
    yield tuple(part)


def _row_groups(part: Sequence[DeletionVector]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    count = 0
    for each in part:
        positions = position_array(each.positions)
        for start in range(0, len(positions), ROWS_PER_GROUP):
            some = positions[start : start + ROWS_PER_GROUP]
            path = pa.repeat(pa.scalar(each.data_file.file_path, pa.string()), len(some))
            waiting.append(pa.table([path, pa.array(some, pa.int64())], names=_NAMES))
            count += len(some)
            if count >= ROWS_PER_GROUP:
                yield pa.concat_tables(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


_NAMES = [field.name for field in POSITION_DELETE_SCHEMA.fields]


def _closed(file: ParquetFileWriter, part: Sequence[DeletionVector]) -> DataFile:
    size_bytes, metrics = file.close()
    first, last = part[0].data_file, part[-1].data_file
    described = describe_file(
        location=file.location,
        content=FileContent.POSITION_DELETES,
        spec_id=first.spec_id,
        partition=first.partition,
        record_count=file.record_count,
        size_bytes=size_bytes,
        metrics=metrics,
    )
    lower = {DELETE_FILE_PATH_FIELD_ID: first.file_path.encode()}
    upper = {DELETE_FILE_PATH_FIELD_ID: last.file_path.encode()}
    if len(part) == 1:
        positions = part[0].positions
        lower[DELETE_POS_FIELD_ID] = struct.pack("<q", positions.min())
        upper[DELETE_POS_FIELD_ID] = struct.pack("<q", positions.max())
    return described.with_(
        lower_bounds=lower,
        upper_bounds=upper,
        sort_order_id=None,  # spec: readers ignore it, the order is given
        referenced_data_file=first.file_path if len(part) == 1 else None,
    )
