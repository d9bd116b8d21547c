"""Puts staged rows aside that leave out columns and have no row to fill them from.

They go to the table's dead-letter table before the publish that leaves them out: with the columns
that they have, as JSON. A cycle that is run again finds its letters there, and adds none twice.
"""

from __future__ import annotations

import json
import zlib

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from resolver.cycle_input import CycleInput
from resolver.match import Int64s, group_by_file
from tableformat.catalog.base import TableState
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.dead_letter import (
    DEAD_LETTER_SCHEMA,
    commit_dead_letters,
    dead_letter_table,
    load_dead_letter_table,
)
from tableformat.codec.parquet.reader import read_data_file
from tableformat.environment import Environment
from tableformat.paths import data_file_locations
from tableformat.spec.arrow_arrays import python_rows
from tableformat.spec.missing_columns import MISSING, MISSING_FIELD, RowMasks
from tableformat.write.data_files import write_data_files

REASON = "the change leaves out columns, and there is no row to fill them from"
QUERY = "unfilled-rows-of-"  # + what the rows are


def put_aside(environment: Environment, state: TableState, batch: CycleInput, rows: Int64s) -> None:
    """Commit rows of a batch to the dead-letter table, once.

    Args:
        environment: Catalog, store, ids.
        state: The table.
        batch: The cycle's input.
        rows: Ordinals in the batch; nothing happens without any.

    Effects: may create the dead-letter table; a data file there and one commit.
    """
    if not len(rows):
        return
    schema = Schema(*state.metadata.schema().fields, MISSING_FIELD)
    key = [schema.find_column_name(i) for i in sorted(state.metadata.schema().identifier_field_ids)]
    letters = []
    told = state.metadata.table_uuid.bytes
    for group in group_by_file(batch.rows.file[rows], batch.rows.position[rows]):
        file = batch.files[group.file].file
        found = read_data_file(
            environment.store,
            file,
            schema=schema,
            spec=state.metadata.specs()[file.spec_id],
            properties=state.metadata.properties,
            wanted=group.positions,
        )
        carried = _carried(pa.Table.from_batches(found), schema)
        told += file.file_path.encode() + np.ascontiguousarray(group.positions).tobytes()
        letters += [
            {
                "from_table": state.name,
                "position": f"{file.file_path}:{position + 1}",
                "reason": REASON,
                "value": _json(row),
                "key": _json({name: row.get(str(name)) for name in key}),
            }
            for position, row in zip(group.positions.tolist(), carried, strict=True)
        ]
    identifier = dead_letter_table(state)
    table = load_dead_letter_table(environment, identifier)
    files = write_data_files(
        environment.store,
        pa.Table.from_pylist(letters, DEAD_LETTER_SCHEMA),
        schema=table.metadata.schema(),
        spec=table.metadata.spec(),
        properties=table.metadata.properties,
        location_for=data_file_locations(table.metadata, environment.runtime.ids),
    )
    once = BatchId(f"{QUERY}{zlib.crc32(told):08x}{len(told)}", 1)
    commit_dead_letters(environment, identifier, files, once)


def _carried(rows: pa.Table, schema: Schema) -> list[dict[str, object]]:
    """The rows without the columns that they lack."""
    masks = RowMasks.parse(rows.column(MISSING))
    lacks = {f.name: masks.lacks(f.field_id) for f in schema.fields if f.name != MISSING}
    return [
        {name: row[name] for name, lacking in lacks.items() if not lacking[at]}
        for at, row in enumerate(python_rows(rows))
    ]


def _json(row: dict[str, object] | dict[str | None, object]) -> bytes:
    return json.dumps(row, default=str, ensure_ascii=False).encode()
