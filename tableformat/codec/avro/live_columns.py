"""What the live files of a manifest are like, as columns: 24 bytes a file, and no entry is kept.

Of a manifest of data files its data files, of a manifest of deletes its deletion vectors. Who looks
at all files of a table (how large are they, which are worth a rewrite) needs little of each, and a
million entries would take gigabytes. Locations and partitions are hashes: those that differ may
have the same, those that are the same have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tableformat.codec.avro.records import Projection
from tableformat.spec.data_file import PUFFIN_FORMAT, DataFile, FileContent, canonical_partition

# On disk, in notes: never change.
LIVE_FILE = np.dtype(
    [
        ("location", "<u4"),  # of the data file; of a vector that of the file it is for
        ("partition", "<u4"),  # with the partition spec
        ("rows", "<i8"),  # dead ones included; of a vector those that it kills
        ("size_bytes", "<i8"),  # of the file
    ]
)
SEEN_FIELDS = (134, 100, 101, 102, 103, 104, 143)


class LiveColumns(NamedTuple):
    """Of one manifest, in the order of its live entries.

    `is_complete`: no live file but data files and vectors, so that none is missing here.
    """

    files: npt.NDArray[Any]
    is_complete: bool


def seen_of(data_file: Projection) -> Projection:
    """Of the fields of a data file those that `live_columns` takes."""
    return {field_id: data_file[field_id] for field_id in SEEN_FIELDS}


def seen_of_file(file: DataFile) -> tuple[Any, ...]:
    """The values of `SEEN_FIELDS`."""
    return (
        file.content,
        file.file_path,
        file.file_format,
        file.partition,
        file.record_count,
        file.file_size_in_bytes,
        file.referenced_data_file,
    )


def live_columns(files: Iterable[Sequence[Any]], spec_id: int) -> LiveColumns:
    """The columns of live files of one partition spec, each the values of `SEEN_FIELDS`."""
    rows: list[tuple[int, int, int, int]] = []
    partitions: dict[tuple[Any, ...], int] = {}
    is_complete = True
    for content, location, file_format, values, count, size_bytes, referenced in files:
        if content:
            is_dv = content == FileContent.POSITION_DELETES and file_format.upper() == PUFFIN_FORMAT
            if not is_dv or referenced is None:
                is_complete = False
                continue
            location = referenced
        partition = partitions.get(values)
        if partition is None:
            partition = crc32(repr((spec_id, canonical_partition(values))).encode())
            partitions[values] = partition
        rows.append((crc32(location.encode()), partition, count, size_bytes))
    return LiveColumns(np.array(rows, dtype=LIVE_FILE), is_complete)
