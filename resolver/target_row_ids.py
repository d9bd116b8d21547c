"""The row ids of rows on the target, remembered from cycle to cycle.

Files store the ids of rows that were written once more. A batch is spread over a table, so it asks
for some of nearly every page: all ids of a file are decoded for it. Data files never change, so
these are kept, four bytes a row, and the next cycle, or the next part of a large batch, reads none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from resolver.index.base import Matches
from resolver.match import Int64s, rows_by_number
from resolver.row_identity import NO_ROW_ID
from resolver.row_values import ColumnReader
from resolver.runner import LocalRunner
from resolver.target import LiveFiles
from tableformat.catalog.base import TableState
from tableformat.codec.parquet.reader import read_data_file
from tableformat.environment import Environment
from tableformat.limits import ROW_IDS_BYTES_MAX
from tableformat.object_memory import MadeOnce
from tableformat.sized_cache import SizedCache
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import ROW_ID_FIELD_ID
from tableformat.spec.types import ROW_ID_FIELD
from tableformat.store.base import ObjectStore

ROW_BYTES = 4
# So many rows of a file for each one that is asked for: more are not worth decoding all.
ROWS_PER_WANTED_MAX = 4096

# Of all rows of a file. Of 32 bits where that is enough; `NO_ROW_ID` is not.
_Ids = npt.NDArray[np.uint32] | Int64s


def _new_cache() -> SizedCache[_Ids]:
    return SizedCache(ROW_IDS_BYTES_MAX, lambda ids: ids.nbytes)


_remembered: MadeOnce[ObjectStore, SizedCache[_Ids]] = MadeOnce(_new_cache)


def row_ids_of(
    environment: Environment,
    state: TableState,
    live: LiveFiles,
    matches: Matches,
    *,
    remembers: bool = True,
) -> Int64s:
    """The `_row_id` of each match, shape `(matches,)`; `NO_ROW_ID` where the row has none.

    Args:
        environment: Where data files are read.
        state: The table version.
        live: The live files of the target, which has the matches' files.
        matches: Rows of the target.
        remembers: Keep what is decoded, `ROW_IDS_BYTES_MAX` per store; else nothing stays kept.

    Raises:
        CorruptDataError, NotFoundError: A file is damaged or gone.
    """
    file_ids = np.array(sorted(matches.files), dtype=np.int64)
    paths = [matches.files[int(file_id)].file_path for file_id in file_ids]
    entries = live.find_whole(paths)
    files = [entries[path].data_file for path in paths]
    rows = rows_by_number(matches.file_id, file_ids)
    found = np.full(len(matches), NO_ROW_ID, dtype=np.int64)
    if not remembers:
        _remembered.forget(environment.store)
    worthy = _worth_keeping(files, [len(each) for each in rows]) if remembers else []
    whole = _all_ids(environment.store, state.metadata, [files[at] for at in worthy])
    for at, ids in zip(worthy, whole, strict=True):
        found[rows[at]] = ids[matches.position[rows[at]]]
    others = sorted(set(range(len(files))) - set(worthy))
    if others:
        left = np.concatenate([rows[at] for at in others])
        slot = np.searchsorted(file_ids, matches.file_id[left])
        reader = ColumnReader(environment, state.metadata, (ROW_ID_FIELD_ID,))
        [column] = reader.flat(reader.read_rows(files, slot, matches.position[left]))
        found[left] = column.fill_null(NO_ROW_ID).to_numpy()
    return found


def _worth_keeping(files: Sequence[DataFile], wanted: Sequence[int]) -> list[int]:
    """Ordinals of files whose ids are kept, together within the bound; the same in every cycle."""
    size = np.array([file.record_count for file in files], dtype=np.int64)
    dense = np.flatnonzero(np.array(wanted, dtype=np.int64) * ROWS_PER_WANTED_MAX >= size)
    kept: list[int] = dense[np.cumsum(size[dense]) * ROW_BYTES <= ROW_IDS_BYTES_MAX].tolist()
    return kept


def _all_ids(store: ObjectStore, metadata: TableMetadata, files: Sequence[DataFile]) -> list[_Ids]:
    cache = _remembered.of(store) or _new_cache()
    keys = [(file.file_path, file.file_size_in_bytes, file.first_row_id) for file in files]
    known = {key: cache.get(key) for key in keys}
    unread = [(key, file) for key, file in zip(keys, files, strict=True) if known[key] is None]
    decoded = LocalRunner().run(partial(_decoded, store, metadata), [file for _, file in unread])
    for (key, _), ids in zip(unread, decoded, strict=True):
        known[key] = ids
        cache.put(key, ids)
    return [found for key in keys if (found := known[key]) is not None]


def _decoded(store: ObjectStore, metadata: TableMetadata, file: DataFile) -> _Ids:
    batches = read_data_file(
        store,
        file,
        schema=Schema(ROW_ID_FIELD),
        spec=metadata.specs()[file.spec_id],
        properties=metadata.properties,
    )
    parts = (_packed(batch.column(0)) for batch in batches)
    return np.concatenate([np.empty(0, dtype=np.uint32), *parts])


def _packed(row_id: pa.Array) -> _Ids:
    # Filling copies, also where there is nothing to fill.
    whole = row_id.fill_null(NO_ROW_ID) if row_id.null_count else row_id
    ids: Int64s = whole.to_numpy()
    is_narrow = ids.view(np.uint64).max(initial=0) <= np.iinfo(np.uint32).max
    return ids.astype(np.uint32) if is_narrow else ids
