"""Reads data files with Spark's own Parquet scan and applies deletes to what comes out.

What Spark cannot read here is left to `arrow_scan`; the functions named `obstacle` say why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.types import NestedField
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tableformat.errors import CorruptDataError, NotFoundError
from tableformat.scan.plan import FileScanTask, map_ordered
from tableformat.spark.field_names import FieldNames, paths
from tableformat.spark.file_lookup import LookedUpFile, file_name, helper_columns
from tableformat.spark.native_types import read_schema
from tableformat.spec.data_file import PARQUET_FORMAT, DataFile
from tableformat.store.base import ObjectStore
from tableformat.store.locations import parse_location

FIELD_ID_CONF = "spark.sql.parquet.fieldId.read.enabled"

# Names that Spark shows as they are (others it percent-encodes) and does not take for hidden files.
_PLAIN_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")

_READ_OPTIONS = {
    "__globPaths__": "false",  # a location is one file, whatever characters are in it
    "recursiveFileLookup": "true",  # no columns from folder names
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFields:
    """Top-level fields to read, by id, and the name each has in Spark's scan."""

    fields: tuple[NestedField, ...]
    names: Mapping[int, str] = field(default_factory=dict)

    def column(self, field_id: int) -> Column:
        """The field's column in the frame that `read_files` gives."""
        return sf.col(quoted(self.names[field_id]))


def plan_fields(fields: Iterable[NestedField], names: FieldNames) -> ReadFields:
    """Give every field the name it is read under."""
    chosen = [each.model_copy(update={"name": names.read_name(each)}) for each in fields]
    return ReadFields(fields=tuple(chosen), names={each.field_id: each.name for each in chosen})


def read_files(
    spark: SparkSession,
    locations: Sequence[str],
    fields: ReadFields,
    helpers: Iterable[str],
) -> DataFrame:
    """The files' rows with the fields, under their read names, and helper columns by name.

    Raises:
        NotFoundError: A file is gone.

    Effects: switches field-id matching on in the session; it stays on, since frames are lazy.
    """
    spark.conf.set(FIELD_ID_CONF, "true")
    paths = [spark_location(location) for location in locations]
    try:
        frame = (
            spark.read.options(**_READ_OPTIONS).schema(read_schema(fields.fields)).parquet(*paths)
        )
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise NotFoundError(f"a data file is gone: {error.getMessage()}") from error
    names = [fields.column(each.field_id) for each in fields.fields]
    return frame.select(*names, *helper_columns(frame, helpers))


def file_obstacle(file: DataFile) -> str | None:
    """Why Spark's reader cannot open a file; None if it can."""
    if file.file_format.upper() != PARQUET_FORMAT:
        return f"it is {file.file_format}"
    if parse_location(file.file_path).scheme != "file":
        return "it is not local"
    if not _PLAIN_FILE_NAME.fullmatch(file_name(file.file_path)):
        return "its name has special characters"
    return None


def check_files(store: ObjectStore, files: Sequence[DataFile]) -> None:
    """Check what Spark's reader would not: location, existence and size of every file.

    Raises:
        InvalidInputError: A location outside the store's allowed prefixes.
        NotFoundError: A file is gone.
        CorruptDataError: Its size is not what its manifest entry says.
    """
    sizes = map_ordered(lambda file: store.size_bytes(file.file_path), files)
    for file, size_bytes in zip(files, sizes, strict=True):
        if size_bytes != file.file_size_in_bytes:
            raise CorruptDataError(
                "file size differs from the manifest entry",
                location=file.file_path,
                expected=file.file_size_in_bytes,
                found=size_bytes,
            )


def has_statistics(data: DataFile, column: NestedField) -> bool:
    """Whether the manifest entry proves that the file stores the column (or a part of it)."""
    ids = {field_id for _, field_id in paths(column)}
    return any(
        not ids.isdisjoint(counts)
        for counts in (data.value_counts, data.column_sizes, data.null_value_counts)
        if counts
    )


def quoted(name: str) -> str:
    """A column name as Spark takes it literally, dots and backticks included."""
    return f"`{name.replace('`', '``')}`"


def looked_up(task: FileScanTask) -> LookedUpFile:
    """The task's file as the lookup wants it."""
    data = task.entry.data_file
    return LookedUpFile(data.file_path, data.file_size_in_bytes, data.record_count)


def spark_location(location: str) -> str:
    """A canonical location as Hadoop's file systems read it: percent signs are literal."""
    return str(parse_location(location))
