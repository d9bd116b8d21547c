"""One Parquet file: open, append row groups, close; then it is described for a manifest.

The object appears whole when `close` returns and never before. After any error the file is
aborted: nothing appears under its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType

from tableformat.codec.parquet.checksummed_output import ChecksummedOutput
from tableformat.codec.parquet.footer_checksum import FILE_NAME_KEY, file_name
from tableformat.codec.parquet.metrics import FileMetrics, count_nans, file_metrics, leaves_of
from tableformat.codec.parquet.options import ParquetOptions
from tableformat.codec.parquet.schema import stored_rows, stored_schema
from tableformat.errors import InternalError, StoreUnavailableError
from tableformat.spec.data_file import PARQUET_FORMAT, DataFile, FileContent
from tableformat.spec.types import ROW_ID_FIELD, is_string, is_varying_binary
from tableformat.store.base import ObjectStore

# Of so many values so few repeat that there are 300,000 different ones or more. A dictionary of
# these makes files larger, by a twentieth to a third, and takes up to five times as long to write.
ROWS_SAMPLED = 1 << 13
DISTINCT_SHARE = 0.985
LEAST_ROWS = 1 << 10  # of fewer it does not matter
LEAST_BITS = 32  # narrower ones have too few values


class ParquetFileWriter:
    """Writes one file with field ids, checksums of pages, chunks and footer, and exact statistics.

    Args:
        store: Where the object goes.
        location: Its absolute location; must be free.
        schema: What is stored, without what is of type unknown.
        options: Encoding settings.
        properties: Table properties, for the metrics modes.

    Effects: `close` creates the object. A crash before leaves at most what the store documents for
    an unfinished output, never a readable part of a file.
    """

    def __init__(
        self,
        store: ObjectStore,
        location: str,
        *,
        schema: Schema,
        options: ParquetOptions,
        properties: Mapping[str, str],
    ) -> None:
        self.location = location
        self.record_count = 0
        self._leaves = leaves_of(schema, properties)
        self._nan_counts: Counter[int] = Counter()
        self._arrow = stored_schema(schema)
        self._row_groups = 0
        self._options: ParquetOptions | None = options  # until the first rows come
        self._writer: pq.ParquetWriter | None = None
        self._sink: Any = store.open_output(location)
        self._output = ChecksummedOutput(self._sink)

    def _started(self, rows: pa.Table | None) -> pq.ParquetWriter:
        """The writer; `rows` are the first ones, or any; None: there are none."""
        if self._options is not None:
            options, self._options = self._options, None
            self._guard(lambda: self._start(options, rows))
        return self._open_writer

    def _start(self, options: ParquetOptions, rows: pa.Table | None) -> None:
        arguments = options.writer_arguments()
        # Columns that cannot have a Bloom filter are left out: the property names them by mistake.
        wanted = set(options.bloom_filter_columns)
        filtered = {
            ".".join(leaf.path): True
            for leaf in self._leaves
            if not leaf.repeated
            and not isinstance(leaf.kind, BooleanType)
            and ".".join(leaf.path) in wanted
        }
        if filtered:
            arguments["bloom_filter_options"] = filtered
        arguments |= self._encodings(rows)
        self._writer = pq.ParquetWriter(self._output, self._arrow, **arguments)

    def _encodings(self, rows: pa.Table | None) -> dict[str, Any]:
        """Row ids of rewritten files rise in runs: as differences they take next to nothing.

        Columns whose values are seen to differ do not start with a dictionary.
        """
        if any(leaf.repeated for leaf in self._leaves):
            return {}  # the names of columns in lists are the Parquet library's
        names = [".".join(leaf.path) for leaf in self._leaves]
        has_row_ids = any(leaf.field_id == ROW_ID_FIELD.field_id for leaf in self._leaves)
        if rows is not None and has_row_ids:
            rows = rows.drop_columns(ROW_ID_FIELD.name)
        plain = set() if rows is None else distinct_columns(rows)
        found: dict[str, Any] = {}
        if has_row_ids:
            plain.add(ROW_ID_FIELD.name)
            found["column_encoding"] = {ROW_ID_FIELD.name: "DELTA_BINARY_PACKED"}
        if plain:
            found["use_dictionary"] = [name for name in names if name not in plain]
        return found

    @property
    def written_bytes(self) -> int:
        """Bytes of the row groups so far; the footer is not in it."""
        return self._output.tell()

    def write(self, rows: pa.Table) -> None:
        """Append rows as one row group; they have at least the schema's columns."""
        if rows.num_rows == 0:
            return
        stored = stored_rows(rows, self._arrow)
        writer = self._started(stored)
        self._guard(lambda: writer.write_table(stored, row_group_size=rows.num_rows))
        for field_id, count in count_nans(stored, self._leaves).items():
            self._nan_counts[field_id] += count
        self._row_groups += 1
        self.record_count += rows.num_rows

    def close(self) -> tuple[int, FileMetrics]:
        """Write the footer and make the object appear.

        Returns:
            File size in bytes, and the statistics.
        """
        writer = self._started(None)
        writer.add_key_value_metadata(
            {FILE_NAME_KEY: file_name(self.location).decode()}
            | self._output.begin_footer(self._row_groups * len(self._leaves))
        )
        self._guard(writer.close)
        footer = writer.writer.metadata
        self._guard(lambda: self._output.end_footer(footer))
        size_bytes = self._output.tell()
        self._guard(self._sink.close)
        if footer.num_rows != self.record_count:
            raise InternalError("Parquet footer counts other rows", location=self.location)
        return size_bytes, file_metrics(footer, self._leaves, nan_counts=self._nan_counts)

    def abort(self) -> None:
        """Give the file up. Nothing appears; never raises for a file that is closed already."""
        self._options = None
        if self._writer is not None:
            self._writer.is_open = False  # its destructor would write a footer
        self._sink.abort()

    @property
    def _open_writer(self) -> pq.ParquetWriter:
        if self._writer is None or not self._writer.is_open:
            raise InternalError("the Parquet file is closed", location=self.location)
        return self._writer

    def _guard(self, step: Callable[[], object]) -> None:
        try:
            step()
        except OSError as error:
            self.abort()
            raise StoreUnavailableError(
                f"cannot write the file: {error}", location=self.location
            ) from error
        except BaseException:
            self.abort()
            raise


def describe_file(
    *,
    location: str,
    content: FileContent,
    spec_id: int,
    partition: tuple[Any, ...],
    record_count: int,
    size_bytes: int,
    metrics: FileMetrics,
    equality_ids: tuple[int, ...] | None = None,
) -> DataFile:
    """The manifest entry's data for a finished file. Rows are unsorted: sort order 0."""
    return DataFile(
        content=content,
        file_path=location,
        file_format=PARQUET_FORMAT,
        spec_id=spec_id,
        partition=partition,
        record_count=record_count,
        file_size_in_bytes=size_bytes,
        column_sizes=metrics.column_sizes,
        value_counts=metrics.value_counts,
        null_value_counts=metrics.null_value_counts,
        nan_value_counts=metrics.nan_value_counts,
        lower_bounds=metrics.lower_bounds,
        upper_bounds=metrics.upper_bounds,
        split_offsets=metrics.split_offsets,
        equality_ids=equality_ids,
        sort_order_id=0,
    )


def distinct_columns(rows: pa.Table) -> set[str]:
    """Columns of numbers, times, texts and bytes of which hardly a value comes twice.

    None where rows are few.

    A dictionary of them holds nearly as many values as there are rows, or grows until it is given
    up; either way the file grows with it, and a sixth of the work is for nothing.
    """
    if rows.num_rows < LEAST_ROWS:
        return set()
    if rows.num_rows > ROWS_SAMPLED:  # from everywhere: what is close together repeats by itself
        drawn = np.unique(np.random.default_rng(0).integers(rows.num_rows, size=ROWS_SAMPLED))
        candidates = [each.name for each in rows.schema if _may_be_distinct(each.type)]
        rows = rows.select(candidates).take(pa.array(drawn))
    return {
        name
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        if _may_be_distinct(column.type) and _distinct(column) >= DISTINCT_SHARE * len(column)
    }


def _may_be_distinct(kind: pa.DataType) -> bool:
    if pa.types.is_primitive(kind):
        return bool(kind.bit_width >= LEAST_BITS)
    return is_string(kind) or is_varying_binary(kind)


def _distinct(column: pa.ChunkedArray) -> int:
    """How many values there are; nulls are none."""
    if not pa.types.is_primitive(column.type):
        return int(pc.count_distinct(column).as_py())
    # Sorted as integers: quicker than counting with a hash table (Arrow, np.unique).
    values = column.combine_chunks().drop_null().view(f"int{column.type.bit_width}").to_numpy()
    return int(np.count_nonzero(np.diff(np.sort(values)))) + 1
