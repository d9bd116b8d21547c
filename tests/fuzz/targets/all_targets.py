"""Every target by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz.target import Target
from tests.fuzz.targets import (
    avro_files,
    command_line,
    deletion_vectors,
    events,
    index_files,
    locks,
    metadata,
    parquet_files,
    texts,
)

TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        deletion_vectors.DELETION_VECTOR,
        deletion_vectors.PUFFIN,
        avro_files.MANIFEST,
        avro_files.MANIFEST_LIST,
        metadata.METADATA,
        metadata.TABLE_PROPERTIES,
        events.DEBEZIUM_JSON,
        events.CHANGELOG_JSON,
        *index_files.TARGETS,
        locks.LOCK_RECORD,
        parquet_files.PARQUET,
        parquet_files.PARQUET_ROWS,
        parquet_files.THRIFT,
        texts.SQL,
        texts.FILTER,
        texts.ARGUMENTS,
        texts.STREAM_FILE,
        command_line.COMMAND_LINE,
    )
}
