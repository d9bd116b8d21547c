"""Reads data files with Spark's own Parquet scan and applies deletes to what comes out.

Spark finds columns by field id, but pushes filters down by *name*: a filter on a column whose name
another column had in an old file would skip the wrong row groups. Columns whose name was ever
used for another id are therefore read under a name that no file has, and renamed afterwards; they
lose row-group skipping, never rows.

What Spark cannot do here is left to `arrow_scan` (`native_obstacle` says why).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tableformat.errors import NotFoundError
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.spark.file_lookup import LookedUpFile, file_name, helper_columns
from tableformat.spark.native_types import is_native, read_schema
from tableformat.spec.data_file import PARQUET_FORMAT, DataFile
from tableformat.store.locations import parse_location

FIELD_ID_CONF = "spark.sql.parquet.fieldId.read.enabled"
HIDDEN_NAME = "__icefold_field_{}"

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
        return sf.col(f"`{self.names[field_id]}`")


def plan_fields(fields: Iterable[NestedField], schemas: Sequence[Schema]) -> ReadFields:
    """Choose the names to read fields under."""
    ids_by_path = _ids_by_path(schemas)
    chosen: list[NestedField] = []
    names: dict[int, str] = {}
    for each in fields:
        reused = any(
            ids_by_path[path] - {field_id} for path, field_id in _paths(each) if path in ids_by_path
        )
        name = HIDDEN_NAME.format(each.field_id) if reused else each.name
        names[each.field_id] = name
        chosen.append(each.model_copy(update={"name": name}))
    return ReadFields(fields=tuple(chosen), names=names)


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


def native_obstacle(
    task: FileScanTask, plan: ScanPlan, fields: Sequence[NestedField]
) -> str | None:
    """Why Spark's reader cannot read the task's file for these fields; None if it can."""
    data = task.entry.data_file
    obstacle = file_obstacle(data)
    if obstacle is not None:
        return obstacle
    for each in fields:
        if not is_native(each.field_type):
            return f"column {each.name} is {each.field_type}"
    constant = _identity_sources(data, plan)
    for each in fields:
        if not has_statistics(data, each) and each.field_id in constant:
            return f"column {each.name} may be in the partition only"
    return None


def file_obstacle(file: DataFile) -> str | None:
    """Why Spark's reader cannot open a file; None if it can."""
    if file.file_format.upper() != PARQUET_FORMAT:
        return f"it is {file.file_format}"
    if parse_location(file.file_path).scheme != "file":
        return "it is not local"
    if not _PLAIN_FILE_NAME.fullmatch(file_name(file.file_path)):
        return "its name has special characters"
    return None


def has_statistics(data: DataFile, column: NestedField) -> bool:
    """Whether the manifest entry proves that the file stores the column (or a part of it)."""
    ids = {field_id for _, field_id in _paths(column)}
    return any(
        not ids.isdisjoint(counts)
        for counts in (data.value_counts, data.column_sizes, data.null_value_counts)
        if counts
    )


def looked_up(task: FileScanTask) -> LookedUpFile:
    """The task's file as the lookup wants it."""
    data = task.entry.data_file
    return LookedUpFile(data.file_path, data.file_size_in_bytes, data.record_count)


def spark_location(location: str) -> str:
    """A canonical location as Hadoop's file systems read it: percent signs are literal."""
    return str(parse_location(location))


def _identity_sources(data: DataFile, plan: ScanPlan) -> frozenset[int]:
    return frozenset(
        part.source_id
        for part in plan.specs[data.spec_id].fields
        if isinstance(part.transform, IdentityTransform)
    )


def _ids_by_path(schemas: Sequence[Schema]) -> dict[str, set[int]]:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for schema in schemas:
        for each in schema.fields:
            for path, field_id in _paths(each):
                found[path].add(field_id)
    return dict(found)


def _paths(column: NestedField, prefix: str = "") -> Iterable[tuple[str, int]]:
    """Lower-cased paths (Spark ignores case) of a field and everything below it, with ids."""
    path = f"{prefix}{column.name}".lower()
    yield path, column.field_id
    for child in _children(column.field_type):
        yield from _paths(child, f"{path}\0")


def _children(kind: IcebergType) -> tuple[NestedField, ...]:
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    if isinstance(kind, MapType):
        return (kind.key_field, kind.value_field)
    return ()
