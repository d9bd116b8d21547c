"""v2 position delete files as positions by data file, for every data file they name."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from tableformat.codec.parquet.reader import read_data_file
from tableformat.codec.puffin.deletion_vector import build_positions
from tableformat.integer_order import stable_order
from tableformat.scan.position_deletes import POSITION_DELETE_SCHEMA
from tableformat.spec.data_file import DataFile
from tableformat.store.base import ObjectStore


def read_position_file(
    store: ObjectStore, metadata: TableMetadata, file: DataFile
) -> dict[str, BitMap64]:
    """Deleted positions by data file path.

    Raises:
        CorruptDataError: The file is damaged, or has nulls.
    """
    found: dict[str, BitMap64] = {}
    batches = read_data_file(
        store, file, schema=POSITION_DELETE_SCHEMA, spec=metadata.specs()[file.spec_id]
    )
    for batch in batches:
        paths = pc.dictionary_encode(batch.column(0))
        code = paths.indices.to_numpy(zero_copy_only=False)
        order = stable_order(code)
        position = batch.column(1).to_numpy(zero_copy_only=False)[order]
        ends = np.searchsorted(code[order], np.arange(len(paths.dictionary)), side="right")
        for path, positions in zip(
            paths.dictionary.to_pylist(), np.split(position, ends[:-1]), strict=True
        ):
            bitmap = build_positions(positions)
            known = found.get(path)
            found[path] = bitmap if known is None else known | bitmap
    return found
