"""Deleted positions of a data file from equality delete files.

The key columns of the data file are read once, alone, and looked up in the set of deleted keys;
what comes out are positions, which join those of the deletion vector. So the columns a reader asks
for are read in one pass, whatever the keys are, and memory is the key columns of one batch plus
the distinct deleted keys.

One key set serves every data file of a scope: for each key it knows the newest delete, and a row
dies when that is newer than its file (strictly: a row of the delete's own commit lives on).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from tableformat.codec.puffin.deletion_vector import Positions, build_positions
from tableformat.errors import error_context
from tableformat.scan.delete_index import sequence_number
from tableformat.scan.file_source import POSITIONS, FileSource
from tableformat.scan.key_fields import key_path, key_schema
from tableformat.scan.key_set import Column, Int64s, KeySet, build_key_set, plain
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.scan.shared_loads import SharedLoads
from tableformat.spec.data_file import DeleteFileKey, ManifestEntry, PartitionKey
from tableformat.spec.unpartitioned import is_unpartitioned

KEY_BATCH_ROWS = 1 << 20
KEY_BATCH_ROWS_MIN = 1 << 17
COMPACT_ROWS_MIN = 4 << 20

# Equality ids in ascending order, and the partition the deletes are confined to (None: global).
Scope = tuple[tuple[int, ...], PartitionKey | None]


class EqualityDeletes:
    """Loads key sets for the tasks of one scan and applies them."""

    def __init__(self, source: FileSource, plan: ScanPlan, tasks: Iterable[FileScanTask]) -> None:
        self._source = source
        self._plan = plan
        self._key_schema = cache(self._new_key_schema)
        self._deletes: defaultdict[Scope, dict[DeleteFileKey, ManifestEntry]] = defaultdict(dict)
        uses: list[Scope] = []
        for task in tasks:
            scopes = self._scopes(task)
            uses.extend(scopes)
            for scope, entries in scopes.items():
                self._deletes[scope].update((each.data_file.identity, each) for each in entries)
        self._sets: SharedLoads[KeySet] = SharedLoads(uses)

    def load(self, task: FileScanTask) -> Positions | None:
        """The positions whose keys an equality delete kills; None if none reaches the file.

        Raises:
            CorruptDataError: A file is damaged, or a delete names an unknown column.
            NotFoundError: A file is gone.
        """
        if not task.equality_deletes:
            return None
        found = Positions()
        for scope in self._scopes(task):
            keys = self._sets.get(scope, lambda each=scope: self._load_keys(each))  # type: ignore[misc]
            found |= self._killed(task, scope[0], keys)
            self._sets.release(scope)
        return found

    def _scopes(self, task: FileScanTask) -> dict[Scope, list[ManifestEntry]]:
        scopes: defaultdict[Scope, list[ManifestEntry]] = defaultdict(list)
        for entry in task.equality_deletes:
            delete = entry.data_file
            is_global = is_unpartitioned(self._plan.specs[delete.spec_id])
            ids = tuple(sorted(delete.equality_ids or ()))
            scopes[ids, None if is_global else delete.partition_key].append(entry)
        return scopes

    def _new_key_schema(self, equality_ids: tuple[int, ...]) -> Schema:
        return key_schema((*self._plan.schemas, self._plan.schema), equality_ids)

    def _load_keys(self, scope: Scope) -> KeySet:
        """Read every delete file of a scope; repeated keys are folded as they pile up."""
        ids, _ = scope
        parts = _KeyParts(len(ids))
        for entry in self._deletes[scope].values():
            with error_context(location=entry.data_file.file_path):
                schema = self._key_schema(ids)
            for batch in self._source.read(entry, schema, batch_rows=KEY_BATCH_ROWS):
                parts.add(_key_columns(batch, schema, ids), sequence_number(entry))
        return parts.finish()

    def _killed(self, task: FileScanTask, ids: tuple[int, ...], keys: KeySet) -> Positions:
        schema = self._key_schema(ids)
        data_sequence = sequence_number(task.entry)
        found = Positions()
        for batch in self._source.read(
            task.entry, schema, batch_rows=_lookup_rows(len(keys)), positions=True
        ):
            newest = keys.newest_delete(_key_columns(batch, schema, ids))
            killed = np.flatnonzero(newest > data_sequence)
            if killed.size:
                positions = batch.column(POSITIONS).to_numpy(zero_copy_only=False)
                found |= build_positions(positions[killed])
        return found


def _lookup_rows(key_count: int) -> int:
    """Rows per look-up: each costs a pass over the keys, so there are at least as many."""
    return max(KEY_BATCH_ROWS_MIN, min(KEY_BATCH_ROWS, key_count))


class _KeyParts:
    """Key columns of delete files, collected and folded into distinct keys now and then."""

    def __init__(self, width: int) -> None:
        self._columns: list[list[pa.Array]] = [[] for _ in range(width)]
        self._sequences: list[Int64s] = []
        self._rows = 0
        self._limit = COMPACT_ROWS_MIN

    def add(self, columns: Sequence[Column], sequence: int) -> None:
        for kept, column in zip(self._columns, columns, strict=True):
            kept.append(plain(column))
        self._sequences.append(np.full(len(columns[0]), sequence, dtype=np.int64))
        self._rows += len(columns[0])
        if self._rows > self._limit:
            self._fold()

    def finish(self) -> KeySet:
        return build_key_set(*self._joined())

    def _joined(self) -> tuple[list[pa.ChunkedArray], Int64s]:
        empty = [pa.array([], pa.int64())]
        columns = [pa.chunked_array(kept or empty) for kept in self._columns]
        sequences = np.concatenate(self._sequences) if self._sequences else np.empty(0, np.int64)
        return columns, sequences

    def _fold(self) -> None:
        columns, sequences = self._joined()
        names = [str(ordinal) for ordinal in range(len(columns))]
        table = pa.table([*columns, pa.array(sequences)], names=[*names, "sequence"])
        folded = table.group_by(names).aggregate([("sequence", "max")])
        self._columns = [[plain(folded.column(name))] for name in names]
        self._sequences = [folded.column("sequence_max").to_numpy().astype(np.int64)]
        self._rows = folded.num_rows
        self._limit = max(COMPACT_ROWS_MIN, 2 * self._rows)


def _key_columns(batch: pa.RecordBatch, schema: Schema, ids: Sequence[int]) -> list[Column]:
    """The leaf columns of the keys; a null struct makes its leaves null."""
    columns = []
    for field_id in ids:
        first, *rest = key_path(schema, field_id)
        column = batch.column(first)
        for name in rest:
            column = pc.struct_field(column, name)
        columns.append(column)
    return columns
