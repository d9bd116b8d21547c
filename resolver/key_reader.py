"""Reads the key columns of data and delete files as canonical key bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from resolver.keys import EncodedKeys, KeySchema, concat_keys, encode_batch
from resolver.match import Int64s
from resolver.runner import LocalRunner, Runner
from tableformat.errors import error_context
from tableformat.files.parquet_reader import read_data_file
from tableformat.scan.key_fields import key_schema
from tableformat.spec.data_file import DataFile
from tableformat.store.base import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKeys:
    """The keys of several files, one after the other.

    Attributes:
        keys: n keys.
        file: Shape `(n,)`, int64: ordinal of the file each key is from.
        position: Shape `(n,)`, int64: its row in the file.
    """

    keys: EncodedKeys
    file: Int64s
    position: Int64s


class KeyReader:
    """Reads one set of key columns, whichever schema a file was written with.

    Columns are found by field id in all schemas of the table, also dropped ones (R22), and read
    optional, since foreign delete files may hold NULL keys.
    """

    def __init__(
        self, store: ObjectStore, metadata: TableMetadata, field_ids: Sequence[int]
    ) -> None:
        self._store = store
        self._schema = key_schema(metadata.schemas, field_ids)
        self._specs = metadata.specs()
        self._properties = metadata.properties
        self.key = KeySchema.of(self._schema, field_ids)

    def read_rows(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """The key columns and `_pos` (int64) of every row of one file, in row order."""
        return read_data_file(
            self._store,
            file,
            schema=self._schema,
            spec=self._specs[file.spec_id],
            properties=self._properties,
            positions=True,
        )

    def read_file(self, file: DataFile) -> EncodedKeys:
        """The keys of every row of one file, in row order.

        Raises:
            CorruptDataError: The file is damaged, or not what its manifest says.
        """
        with error_context(location=file.file_path):
            batches = read_data_file(
                self._store,
                file,
                schema=self._schema,
                spec=self._specs[file.spec_id],
                properties=self._properties,
                batch_rows=1 << 20,
            )
            rows = pa.Table.from_batches(batches) if file.record_count else None
            if rows is None:
                return EncodedKeys.empty()
            return encode_batch(rows, self.key)

    def read_files(self, files: Iterable[DataFile], runner: Runner | None = None) -> FileKeys:
        """The keys of several files; read side by side, returned in the order given."""
        parts = (runner or LocalRunner()).run(self.read_file, list(files))
        counts = [len(part) for part in parts]
        return FileKeys(
            keys=concat_keys(parts),
            file=np.repeat(np.arange(len(parts), dtype=np.int64), counts),
            position=_ordinals(counts),
        )


def _ordinals(counts: Sequence[int]) -> Int64s:
    if not counts:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
