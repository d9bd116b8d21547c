"""The files of a load: which there are, how they are cut into pieces, and their rows.

A piece is what one commit holds: some row groups of Parquet files, or whole CSV files. The same
files are cut into the same pieces whenever they are looked at, so that a load can go on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import TimestamptzType

from tableformat.errors import InvalidInputError, NotFoundError, UnsupportedError
from tableformat.side_by_side import IN_BUCKETS, run_in_parts
from tableformat.spec.decimal_casts import parse_decimals
from tableformat.spec.types import arrow_schema
from tableformat.spec.unicode import check_unicode
from tableformat.write.data_files import check_row_columns

PIECE_BYTES = 256 << 20  # of row groups before compression, of CSV as it lies there
PARQUET, CSV = "parquet", "csv"
_KINDS = {".parquet": PARQUET, ".csv": CSV, ".csv.gz": CSV}
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_GLOB = re.compile(r"[*?\[]")
_ROWS = 65_536  # of a batch: some megabytes
_END_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Part:
    """Row groups `first` to `stop` of a Parquet file; a CSV file has one."""

    path: str
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class LoadSource:
    """Files of one kind. Made by `open_source`.

    Attributes:
        files: Paths and sizes in bytes, by path.
        kind: `parquet` or `csv`.
    """

    filesystem: pafs.FileSystem
    files: tuple[tuple[str, int], ...]
    kind: str

    def fingerprint(self) -> str:
        """The same for the same files, cut in the same way: by names, sizes, and how they end.

        Raises:
            InvalidInputError: A file cannot be read.
        """
        ends = run_in_parts(self._end, self.files, at_once=IN_BUCKETS)
        return _digest([self.kind, PIECE_BYTES, self.files, ends])

    def former_fingerprint(self) -> str:
        """What loads that 0.1 has begun go by: names and sizes."""
        return _digest([self.kind, PIECE_BYTES, self.files])

    def _end(self, file: tuple[str, int]) -> str:
        """Of Parquet the footer, with bounds and places of its columns; of gzip a checksum."""
        path, size = file
        with _telling(path), self.filesystem.open_input_file(path) as source:
            end = source.read_at(min(size, _END_BYTES), max(size - _END_BYTES, 0))
        return hashlib.sha256(end).hexdigest()

    def pieces(self, schema: Schema | None = None) -> list[tuple[Part, ...]]:
        """The pieces, in order. Reads the footers of Parquet files.

        Args:
            schema: The columns that each file has to fit; of CSV the first block is looked at.

        Raises:
            InvalidInputError: A file cannot be read, or its columns do not fit.
        """
        found: list[tuple[Part, ...]] = []
        parts: list[Part] = []
        filled = 0
        for path, first, stop, size in self._groups(schema):
            if parts and filled + size > PIECE_BYTES:
                found.append(tuple(parts))
                parts, filled = [], 0
            filled += size
            if parts and parts[-1].path == path:
                parts[-1] = Part(path, parts[-1].first, stop)
            else:
                parts.append(Part(path, first, stop))
        return [*found, tuple(parts)] if parts else found

    def _groups(self, schema: Schema | None) -> Iterator[tuple[str, int, int, int]]:
        for path, size in self.files:
            if self.kind == CSV:
                if schema is not None:
                    with _telling(path):
                        for batch in islice(self._csv(path, schema), 1):
                            check_row_columns(batch.schema, schema)
                yield path, 0, 1, size
                continue
            with _telling(path), self._open(path) as file:
                if schema is not None:
                    check_row_columns(_with_instants(file, schema), schema)
                sizes = [
                    file.metadata.row_group(number).total_byte_size
                    for number in range(file.metadata.num_row_groups)
                ]
            for number, of_group in enumerate(sizes):
                yield path, number, number + 1, of_group

    def schema(self) -> pa.Schema:
        """The columns of the first file; of CSV as Arrow takes its first block for.

        Raises:
            InvalidInputError: It cannot be read, or is not UTF-8.
        """
        path = self.files[0][0]
        with _telling(path):
            if self.kind == PARQUET:
                with self._open(path) as file:
                    return file.schema_arrow.remove_metadata()
            with self.filesystem.open_input_stream(path, compression="detect") as stream:
                found = pacsv.open_csv(stream).schema
        for each in found:
            if pa.types.is_binary(each.type):  # Arrow's word for a text that is not UTF-8
                raise InvalidInputError("a CSV file is not UTF-8", file=path, column=each.name)
        return found

    def rows(self, piece: Sequence[Part], schema: Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a piece.

        Raises:
            InvalidInputError: A file cannot be read, or holds what its column cannot.
        """
        for part in piece:
            with _telling(part.path):
                if self.kind == CSV:
                    yield from self._csv(part.path, schema)
                    continue
                with self._open(part.path) as file:
                    groups = list(range(part.first, part.stop))
                    kinds = _with_instants(file, schema)
                    for batch in file.iter_batches(batch_size=_ROWS, row_groups=groups):
                        yield batch if batch.schema.equals(kinds) else batch.cast(kinds)

    def _open(self, path: str) -> pq.ParquetFile:
        source = self.filesystem.open_input_file(path)
        # In nanoseconds, years beyond 2262 would be others, without a word.
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")

    def _csv(self, path: str, schema: Schema) -> Iterator[pa.RecordBatch]:
        kinds = {
            each.name: each.type
            for each in arrow_schema(schema, with_field_ids=False)
            if not (pa.types.is_nested(each.type) or isinstance(each.type, pa.BaseExtensionType))
        }
        decimals = {name: kind for name, kind in kinds.items() if pa.types.is_decimal(kind)}
        # Empty is null and "" is an empty text, as databases write it; NA and null are texts.
        options = pacsv.ConvertOptions(
            column_types=kinds | dict.fromkeys(decimals, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        with self.filesystem.open_input_stream(path, compression="detect") as stream:
            parse = pacsv.ParseOptions(newlines_in_values=True)
            batches = pacsv.open_csv(stream, parse_options=parse, convert_options=options)
            for batch in batches:
                yield _with_decimals(batch, decimals)


def _with_instants(file: pq.ParquetFile, schema: Schema) -> pa.Schema:
    """The file's columns; INT96 is an instant where the table's column says so.

    Spark writes both kinds of timestamps as INT96, which does not say whether it is UTC.
    """
    found = file.schema_arrow
    leaves = [file.schema.column(number) for number in range(len(file.schema))]
    int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    for field in schema.fields:
        if field.name in int96 and isinstance(field.field_type, TimestamptzType):
            at = found.get_field_index(field.name)
            found = found.set(at, found.field(at).with_type(pa.timestamp("us", "UTC")))
    return found


def _with_decimals(batch: pa.RecordBatch, kinds: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """With decimals from their texts: Arrow's reader of CSV makes other numbers of large ones."""
    for name in kinds.keys() & set(batch.schema.names):
        try:
            values = parse_decimals(pc.utf8_trim_whitespace(batch.column(name)), kinds[name])
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"column '{name}': {error}") from None
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, pa.field(name, kinds[name]), values)
    return batch


def _digest(said: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


def open_source(text: str) -> LoadSource:
    """The files that a path, a glob or a URL names.

    Args:
        text: A file, a folder (with those below it) or a glob of one; local, or a URL that Arrow's
            file systems read (`s3://`, `gs://`, `file://`).

    Raises:
        UnsupportedError: Another kind of URL.
        NotFoundError: There is no such file.
        InvalidInputError: The files are of several kinds, of none that is read, or their folders
            hold values.
    """
    check_unicode(text, what="name of the files")
    filesystem, path = _located(text)
    try:
        found = _listed(filesystem, path)
        files = {each.path: int(each.size or 0) for each in found if _is_data(each.path)}
    except UnicodeDecodeError:  # of the first such name: which one, nobody says
        raise InvalidInputError(
            "cannot list the files: the name of one is not UTF-8",
            action="rename it, or name the others",
            path=_shown(text),
        ) from None
    except OSError as error:
        raise InvalidInputError(
            f"cannot list the files: {_line(error)}", path=_shown(text)
        ) from None
    if not files:
        raise NotFoundError("there is no file to load", path=_shown(text))
    kinds = {_kind(each) for each in files}
    if len(kinds) > 1 or None in kinds:
        wrong = next((each for each in sorted(files) if _kind(each) is None), sorted(files)[0])
        raise InvalidInputError(
            "a load takes Parquet files or CSV files",
            action="name those of one kind by a glob",
            file=wrong,
        )
    for each in files:
        if any("=" in part for part in each.split("/")[:-1]):
            raise InvalidInputError(
                "folders named column=value hold a column that the files may not have",
                action="write the files with all columns and without such folders",
                file=each,
            )
    (kind,) = kinds
    assert kind is not None
    return LoadSource(filesystem, tuple(sorted(files.items())), kind)


def _located(text: str) -> tuple[pafs.FileSystem, str]:
    if not text:
        raise InvalidInputError("a file, a folder or a glob needs a name")
    scheme = _SCHEME.match(text)
    if scheme is None or len(scheme[1]) == 1:  # C: is a drive
        return pafs.LocalFileSystem(), Path(text).absolute().as_posix()
    name = scheme[1].lower()
    if name == "jdbc":
        raise UnsupportedError(
            "a load reads Parquet and CSV files, no database",
            action="export the table first: COPY ... TO, or Spark's read.jdbc and write.parquet",
        )
    if name in ("http", "https"):
        raise UnsupportedError("a load does not read from web servers", action="download the files")
    try:
        filesystem, path = pafs.FileSystem.from_uri(text)
        return filesystem, str(path)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"cannot read from this URL: {_line(error)}", path=_shown(text)
        ) from None


def _listed(filesystem: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    parts = path.split("/")
    at = next((place for place, part in enumerate(parts) if _GLOB.search(part)), None)
    if at is not None:
        below = pafs.FileSelector("/".join(parts[:at]) or "/", recursive=at < len(parts) - 1,
                                  allow_not_found=True)  # fmt: skip
        listed = filesystem.get_file_info(below)
        return [each for each in listed if each.is_file and _fits(each.path.split("/"), parts)]
    info = filesystem.get_file_info(path.rstrip("/") or "/")
    if info.type == pafs.FileType.Directory:
        below = pafs.FileSelector(info.path, recursive=True)
        return [each for each in filesystem.get_file_info(below) if each.is_file]
    return [info] if info.is_file else []


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))


def _is_data(path: str) -> bool:
    """Not what engines write beside data: `_SUCCESS`, `.crc`."""
    return not path.rpartition("/")[2].startswith(("_", "."))


def _kind(path: str) -> str | None:
    return next((kind for end, kind in _KINDS.items() if path.lower().endswith(end)), None)


def _shown(text: str) -> str:
    """Without credentials that a URL may hold."""
    return re.sub(r"//[^/@]*@", "//", text).partition("?")[0]


def _line(error: Exception) -> str:
    return _shown(str(error).splitlines()[0] if str(error) else type(error).__name__)


@contextmanager
def _telling(path: str) -> Iterator[None]:
    """Says which file cannot be read."""
    try:
        yield
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"a file cannot be read: {_line(error)}", file=path) from error
