"""Arrow's reader over column chunks of one Parquet file, checked where the file has checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa
import pyarrow.parquet as pq

from tableformat.codec.parquet.chunk_checksums import ChunkChecksums, has_chunk_checksums
from tableformat.codec.tapped_source import TappedSource
from tableformat.spec.arrow_arrays import without_views

_LENGTH_BYTES = 4
# To hand columns to threads costs a tenth of what it takes to decode them: the more files are read
# at once the less there is to gain, and of few rows there is little in any case.
THREADED_ROWS_MIN = 1 << 17


class ChunkReader:
    """Reads some columns of some row groups; for one thread.

    Args:
        source: The open file.
        footer: Its footer.
        leaves: Which columns, by their place in the file.
        row_groups: Which row groups, ascending.
        keep_codes: Let text come as Arrow dictionaries where the file has it so, for who wants few
            of the rows: making strings of codes costs several times as much as reading them.

    Raises:
        CorruptDataError: What the footer has for checksums does not fit the file. A chunk that is
            not what was written raises it when it is read.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        footer: pq.FileMetaData,
        leaves: Sequence[int],
        row_groups: Sequence[int],
        *,
        keep_codes: bool = False,
    ) -> None:
        self._leaves = list(leaves)
        self._row_groups = list(row_groups)
        rows = sum(footer.row_group(each).num_rows for each in row_groups)
        self._use_threads = rows >= THREADED_ROWS_MIN
        self._errors: Callable[[], AbstractContextManager[None]] = nullcontext
        if has_chunk_checksums(footer):
            checks = ChunkChecksums(source, footer, leaves, row_groups)
            tapped = TappedSource(source, checks)
            self._errors = tapped.errors
            coded = _coded_columns(footer, leaves, row_groups) if keep_codes else ()
            file = parquet_file(tapped, footer, check_pages=False, coded=coded)
        else:
            file = parquet_file(source, footer)
        self._reader = file.reader

    def batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of at most `batch_rows`."""
        stream = self._reader.iter_batches(
            batch_rows,
            row_groups=self._row_groups,
            column_indices=self._leaves,
            use_threads=self._use_threads,
        )
        while True:
            with self._errors():
                batch = next(stream, None)
            if batch is None:
                return
            yield without_views(batch)

    def table(self) -> pa.Table:
        """All rows, read on this thread."""
        with self._errors():
            found = self._reader.read_row_groups(
                self._row_groups, column_indices=self._leaves, use_threads=False
            )
        return without_views(found)


def _coded_columns(
    footer: pq.FileMetaData, leaves: Sequence[int], row_groups: Sequence[int]
) -> list[str]:
    """Top-level columns of text that have a dictionary, by what their chunks say.

    Only for files with checksums: Arrow aborts when it is asked for chunk metadata that is wrong.
    A file may end a dictionary that has grown too large and go on with plain values, each behind a
    length of four bytes; Arrow would look all of them up to make codes.
    """
    found = []
    for leaf in leaves:
        chunks = [footer.row_group(group).column(leaf) for group in row_groups]
        path = footer.schema.column(leaf).path
        if "." not in path and all(
            each.physical_type == "BYTE_ARRAY"
            and each.has_dictionary_page
            and each.total_uncompressed_size < _LENGTH_BYTES * each.num_values
            for each in chunks
        ):
            found.append(path)
    return found


def parquet_file(
    source: pa.NativeFile | TappedSource,
    footer: pq.FileMetaData | None = None,
    *,
    check_pages: bool = True,
    coded: Sequence[str] = (),
) -> pq.ParquetFile:
    """A reader, for one thread at a time; with a footer that is known, nothing is read here.

    Only objects of a bucket are read ahead, on Arrow's threads, for fewer requests. Where such a
    thread lets go of a Python file last, as the interpreter ends, it aborts the process.
    """
    file = source.source if isinstance(source, TappedSource) else source
    return pq.ParquetFile(
        source,
        metadata=footer,
        pre_buffer=isinstance(file, pa.PythonFile),
        read_dictionary=list(coded),
        page_checksum_verification=check_pages,
        coerce_int96_timestamp_unit="us",
    )
