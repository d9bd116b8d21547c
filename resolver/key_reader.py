"""Reads the key columns of data and delete files as canonical key bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform

from resolver.keys import EncodedKeys, KeySchema, concat_keys, encode_batch
from resolver.match import Bools, Int64s
from resolver.runner import Runner, reading
from tableformat.codec.parquet.reader import read_data_file
from tableformat.errors import error_context
from tableformat.scan.key_fields import current_key_schema
from tableformat.spec.data_file import DataFile, canonical_partition
from tableformat.store.base import ObjectStore
from tableformat.write.partitioning import Partitioner, encode_values

SMALL_FROM_ROWS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKeys:
    """The keys of several files, one after the other.

    Attributes:
        keys: n keys.
        file: Shape `(n,)`: ordinal of the file each key is from.
        position: Shape `(n,)`: its row in the file.
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
        self._location = metadata.location
        self._schema = current_key_schema(metadata, field_ids)
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
            rows = self._read(file)
            return EncodedKeys.empty() if rows is None else encode_batch(rows, self.key)

    def read_filed(self, file: DataFile) -> tuple[EncodedKeys, Bools]:
        """The keys of a delete file, and which of them belong in the partition it is filed under.

        Only where the key columns decide the partition can a key belong in another one.
        """
        with error_context(location=file.file_path):
            rows = self._read(file)
            if rows is None:
                return EncodedKeys.empty(), np.zeros(0, dtype=np.bool_)
            return encode_batch(rows, self.key), self._is_at_home(file, rows)

    def _is_at_home(self, file: DataFile, rows: pa.Table) -> Bools:
        spec = self._specs[file.spec_id]
        at_home = np.ones(rows.num_rows, dtype=np.bool_)
        fields = [
            (field, value)
            for field, value in zip(spec.fields, canonical_partition(file.partition), strict=True)
            if not isinstance(field.transform, VoidTransform)
        ]
        if not set(self.key.field_ids).issuperset(field.source_id for field, _ in fields):
            return at_home
        columns = Partitioner(spec, self._schema).columns(rows)
        for (_, value), column in zip(fields, columns, strict=True):
            codes, values = encode_values(column)
            fits = [canonical_partition((each,)) == (value,) for each in values]
            at_home &= np.array(fits, dtype=np.bool_)[codes]
        return at_home

    def _read(self, file: DataFile) -> pa.Table | None:
        batches = read_data_file(
            self._store,
            file,
            schema=self._schema,
            spec=self._specs[file.spec_id],
            properties=self._properties,
            batch_rows=1 << 20,
        )
        return pa.Table.from_batches(batches) if file.record_count else None

    def read_files(self, files: Iterable[DataFile], runner: Runner | None = None) -> FileKeys:
        """The keys of several files; read side by side, returned in the order given."""
        wanted = list(files)
        return file_keys(reading(runner, self._location).run(self.read_file, wanted))


def file_keys(parts: Sequence[EncodedKeys]) -> FileKeys:
    """The keys of several files, each read on its own."""
    counts = [len(part) for part in parts]
    rows = sum(counts)
    small = small_integers(rows, max(counts, default=0))
    ordinals = [np.arange(count, dtype=small) for count in counts]
    return FileKeys(
        keys=concat_keys(parts),
        file=np.repeat(np.arange(len(parts), dtype=small_integers(rows, len(parts))), counts),
        position=np.concatenate([np.empty(0, dtype=small), *ordinals]),
    )


def small_integers(rows: int, last: int) -> np.dtype[np.int64]:
    """Integers up to `last`, -1 included, for so many rows.

    As few bytes as possible for many, since all of them are in memory: parts are made wide again.
    """
    return (
        np.dtype(np.int64)
        if rows <= SMALL_FROM_ROWS
        else np.result_type(np.int16, np.min_scalar_type(-1 - last))
    )
