"""Reads some columns of some rows: what declarations about row versions need to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from resolver.index.base import Matches
from resolver.match import Bools, Int64s, group_by_file, rows_by_number
from resolver.position_files import read_position_file
from resolver.runner import Runner, reading
from resolver.target_deletes import deleted_by_key, deleted_positions, folded_deletes
from resolver.target_view import TargetView
from tableformat.codec.parquet.reader import read_data_file
from tableformat.codec.puffin.deletion_vector import build_positions, position_array
from tableformat.environment import Environment
from tableformat.errors import error_context
from tableformat.integer_order import distinct_inverse
from tableformat.scan.key_fields import current_key_schema, key_path
from tableformat.spec.data_file import DataFile
from tableformat.spec.missing_columns import MISSING_FIELD
from tableformat.spec.types import ROW_ID_FIELD, arrow_schema
from tableformat.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class _FileReader:
    """Reads one file; small enough to be sent to every task."""

    store: ObjectStore
    schema: Schema
    specs: Mapping[int, PartitionSpec]
    properties: Mapping[str, str]

    def read(self, item: tuple[DataFile, npt.NDArray[np.int64] | None]) -> pa.Table:
        """The columns of all rows, or of those at some positions (ascending, distinct)."""
        file, positions = item
        with error_context(location=file.file_path):
            batches = read_data_file(
                self.store,
                file,
                schema=self.schema,
                spec=self.specs[file.spec_id],
                properties=self.properties,
                wanted=positions,
            )
            return pa.Table.from_batches(batches, schema=arrow_schema(self.schema))


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """Reads columns by field id from data and delete files of any schema version.

    Attributes:
        environment: Where the files are.
        metadata: Schemas and specs.
        field_ids: The columns; `_row_id` and the text of missing columns by their own ids.
        runner: Where files are read; None: in this process.
    """

    environment: Environment
    metadata: TableMetadata
    field_ids: tuple[int, ...]
    runner: Runner | None = None

    @property
    def schema(self) -> Schema:
        """The columns, optional, nested ones inside their structs."""
        own = {each.field_id: each for each in (ROW_ID_FIELD, MISSING_FIELD)}
        stored = [own[each] for each in self.field_ids if each in own]
        wanted = [each for each in self.field_ids if each not in own]
        columns = current_key_schema(self.metadata, wanted)
        return Schema(*columns.fields, *stored)

    def read_files(self, files: Sequence[DataFile], *, defaults: bool = True) -> pa.Table:
        """The columns of all rows of some files, one file after the other.

        Args:
            files: Data or delete files.
            defaults: Give rows of files that lack a column its initial default; off for delete
                files, where a missing column says nothing.
        """
        return self._read([(file, None) for file in files], defaults=defaults)

    def read_rows(self, files: Sequence[DataFile], file: Int64s, position: Int64s) -> pa.Table:
        """The columns of single rows, in the order given.

        Args:
            files: Data files.
            file: Shape `(rows,)`: which of `files`.
            position: Shape `(rows,)`: 0-based ordinal in it.
        """
        place = file * (int(position.max(initial=0)) + 1) + position
        places, back = distinct_inverse(place)
        groups = group_by_file(*np.divmod(places, int(position.max(initial=0)) + 1))
        found = self._read([(files[g.file], g.positions) for g in groups], defaults=True)
        return found.take(pa.array(back))

    def flat(self, rows: pa.Table) -> list[pa.Array]:
        """The columns of what was read, one array each, in the order of `field_ids`."""
        schema = self.schema
        columns = []
        for field_id in self.field_ids:
            name, *rest = key_path(schema, field_id)
            column = rows.column(name)
            for part in rest:
                column = pc.struct_field(column, part)
            array = column.combine_chunks()
            columns.append(array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks))
        return columns

    def _read(
        self, wanted: Sequence[tuple[DataFile, npt.NDArray[np.int64] | None]], *, defaults: bool
    ) -> pa.Table:
        schema = self.schema
        if not defaults:
            fields = [each.model_copy(update={"initial_default": None}) for each in schema.fields]
            schema = Schema(*fields)
        reader = _FileReader(
            self.environment.store, schema, self.metadata.specs(), self.metadata.properties
        )
        parts = reading(self.runner, self.metadata.location).run(reader.read, list(wanted))
        return pa.concat_tables([arrow_schema(schema).empty_table(), *parts])


def live_matches(view: TargetView, matches: Matches, *, is_in_place: bool = False) -> Bools:
    """Which rows that the index knows are not deleted already; shape `(matches,)`.

    The index does not read deletion vectors of other writers back (see `index.base`). In place, the
    target's equality deletes are what the cycle resolves, and do not count.
    """
    store, metadata, live = view.environment.store, view.metadata, view.live
    alive = np.ones(len(matches), dtype=np.bool_)
    paths = {file_id: file.file_path for file_id, file in matches.files.items()}
    known = deleted_positions(store, metadata, live, paths.values())
    dead = {path: [positions] for path, positions in known.items()}
    if not is_in_place:
        by_key = deleted_by_key(store, metadata, live, paths.values())
        for path, positions in by_key.items():
            dead.setdefault(path, []).append(positions)
    for entry in folded_deletes(metadata, live):
        found = read_position_file(store, metadata, entry.data_file)
        for path, positions in found.items():
            dead.setdefault(path, []).append(positions)
    reached = np.array([file_id for file_id, path in paths.items() if path in dead], np.int64)
    for file_id, rows in zip(reached, rows_by_number(matches.file_id, reached), strict=True):
        position = matches.position[rows]
        for positions in dead[paths[int(file_id)]]:
            # A vector is as large as its file, what is asked for as small as the batch.
            gone = position_array(positions & build_positions(position))
            if len(gone):
                slot = np.minimum(np.searchsorted(gone, position), len(gone) - 1)
                alive[rows[gone[slot] == position]] = False
    return alive
