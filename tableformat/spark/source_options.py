"""Options of `format("icefold")`: declared once, for checks, messages and the documentation.

Spark hands over option names in lower case, so all of ours are. Options that begin with
`property.` are catalog properties (`property.s3.endpoint`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pydantic import Field

from tableformat.backend import LOCAL_CATALOG, open_backend
from tableformat.catalog.base import Identifier
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.spec.options import Names, Options
from tableformat.table_definition import parse_table_name

PROPERTY_PREFIX = "property."
# What Spark itself adds to the options of streams.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})


class TableOptions(Options):
    """Which table."""

    owner = "format 'icefold'"
    table: str | None = Field(
        None, description="`namespace.table`; `load` and `save` take it as path, too"
    )
    catalog: str = Field(
        LOCAL_CATALOG, description="`local`, or a catalog of PyIceberg's configuration"
    )
    warehouse: str | None = Field(None, description="folder or URI of the warehouse")


class BranchOptions(Options):
    """Which branch."""

    branch: str | None = Field(
        None, min_length=1, description="a branch; default `main`, for change formats `staging`"
    )


class ReadOptions(BranchOptions):
    """Of reads, rows and changes, at once or as a stream."""

    owner = "reading"
    read: Literal["rows", "changes"] = Field(
        "rows", description="the rows of one version, or the changes between two"
    )
    tag: str | None = Field(None, description="a tag")
    snapshot_id: int | None = Field(None, description="a snapshot")
    as_of_ms: int | None = Field(
        None, description="what the branch held then, in milliseconds since 1970 UTC"
    )
    columns: Names = Field(
        (),
        description="columns to read, metadata columns like `_file` included: Spark does not say "
        "which columns a query needs",
    )
    filter: str | None = Field(
        None, description="rows wanted, e.g. `amount > 10 and region = 'EU'`"
    )
    from_: str | None = Field(
        None, description="changes after this snapshot id, branch or tag; default: all"
    )
    to: str | None = Field(
        None, description="changes up to this snapshot id, branch or tag; default: `branch`"
    )
    net: bool = Field(False, description="one set of changes, not one per snapshot")
    max_snapshots_per_batch: int | None = Field(
        None,
        ge=1,
        description="where a micro-batch of a stream ends; from Spark 4.2. Default: at the head",
    )


class ChangeOptions(BranchOptions):
    """Of writes of change events."""

    format: str | None = Field(
        None,
        description="rows are change events of this format; its options and the sink's may follow",
    )


class WriteOptions(ChangeOptions):
    """Of batch writes."""

    owner = "writing"
    overwrite_mode: Literal["static", "dynamic"] = Field(
        "static",
        description="`mode('overwrite')` replaces the whole table, or the partitions of the new "
        "rows",
    )


class StreamWriteOptions(ChangeOptions):
    """Of stream writes."""

    owner = "writing a stream"
    query_id: str = Field(
        min_length=1,
        description="identity of the stream in the branch's history, as unique as its checkpoint",
    )


OPTION_MODELS: tuple[type[Options], ...] = (
    TableOptions,
    ReadOptions,
    WriteOptions,
    StreamWriteOptions,
)
Chosen = TypeVar("Chosen", bound=BranchOptions, covariant=True)


@dataclass(frozen=True, slots=True)
class SourceOptions(Generic[Chosen]):
    """Checked options of one use of the format. Picklable; may hold secrets."""

    identifier: Identifier
    catalog: str
    properties: Mapping[str, str]
    values: Chosen

    def open(self) -> Environment:
        """The catalog and its store."""
        return open_backend(self.catalog, dict(self.properties))


AnySource = SourceOptions[BranchOptions]


def parse_source_options(
    given: Mapping[str, str], model: type[Chosen], *beside: type[Options]
) -> SourceOptions[Chosen]:
    """Check the options of a read or write, with options of other owners beside them.

    Raises:
        InvalidInputError: An option is unknown, missing or wrong; the message lists the known ones.
    """
    own = own_options(given)
    path = own.pop("path", None)
    if path is not None and own.setdefault("table", path) != path:
        raise InvalidInputError("the table is given twice", table=own["table"], path=path)
    location = TableOptions.parse(own, model, *beside)
    values = model.parse(own, TableOptions, *beside)
    if location.table is None:
        owners: tuple[type[Options], ...] = (TableOptions, model, *beside)
        known = ", ".join(name for each in owners for name in each.names())
        raise InvalidInputError("missing option 'table' of format 'icefold'", known=known)
    properties = {
        key.removeprefix(PROPERTY_PREFIX): text
        for key, text in given.items()
        if key.startswith(PROPERTY_PREFIX)
    }
    if location.warehouse is not None:
        properties["warehouse"] = location.warehouse
    return SourceOptions(
        identifier=parse_table_name(location.table),
        catalog=location.catalog,
        properties=properties,
        values=values,
    )


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """What is neither a catalog property nor Spark's own."""
    return {
        key: text
        for key, text in given.items()
        if not key.startswith(PROPERTY_PREFIX) and key not in SPARKS_OWN
    }
