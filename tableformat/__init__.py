"""Apache Iceberg v3 tables with a primary key: write, stage, scan, commit."""

from __future__ import annotations

from importlib import metadata

from tableformat.environment import Environment
from tableformat.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitUnknownError,
    CorruptDataError,
    ErrorKind,
    FencedError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    Retry,
    StoreUnavailableError,
    TableError,
    UnsupportedError,
)
from tableformat.lookup.result import LookupResult, LookupSource
from tableformat.lookup.session import Lookup
from tableformat.runtime import Runtime
from tableformat.spec import nanoseconds as _nanoseconds  # noqa: F401 - registers conversions
from tableformat.table import Table
from tableformat.table_catalog import TableCatalog, open_catalog
from tableformat.table_scan import Scan


def __getattr__(name: str) -> str:
    if name == "__version__":  # asked for rarely; a checkout need not be installed
        return metadata.version("icefold")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AlreadyExistsError",
    "CommitConflictError",
    "CommitUnknownError",
    "CorruptDataError",
    "Environment",
    "ErrorKind",
    "FencedError",
    "InternalError",
    "InvalidInputError",
    "Lookup",
    "LookupResult",
    "LookupSource",
    "NotFoundError",
    "Retry",
    "Runtime",
    "Scan",
    "StoreUnavailableError",
    "Table",
    "TableCatalog",
    "TableError",
    "UnsupportedError",
    "open_catalog",
]
