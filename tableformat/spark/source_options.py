"""Options of `format("icefold")`: declared once, for checks, messages and the documentation.

Spark hands over option names in lower case, so all of ours are. Options that begin with
`property.` are catalog properties (`property.s3.endpoint`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tableformat.catalog.base import Identifier
from tableformat.catalog.open import LOCAL_CATALOG, open_backend
from tableformat.cdc.formats import FACTORIES
from tableformat.cdc.options import (
    GivenOptions,
    Option,
    OptionKind,
    OptionTable,
    OptionValues,
    parse_options,
)
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.table_definition import parse_table_name

PROPERTY_PREFIX = "property."
ROWS, CHANGES = "rows", "changes"
STATIC, DYNAMIC = "static", "dynamic"
# What Spark itself adds to the options of streams.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})

TABLE_OPTIONS = OptionTable(
    "format 'icefold'",
    (
        Option(name="table", help="`namespace.table`; `load` and `save` take it as path, too"),
        Option(
            name="catalog",
            default=LOCAL_CATALOG,
            help="`local`, or a catalog of PyIceberg's configuration",
        ),
        Option(name="warehouse", help="folder or URI of the warehouse"),
    ),
)
BRANCH = Option(name="branch", help="a branch; default `main`, for change formats `staging`")
READ_OPTIONS = OptionTable(
    "reading",
    (
        Option(
            name="read",
            kind=OptionKind.CHOICE,
            choices=(ROWS, CHANGES),
            default=ROWS,
            help="the rows of one version, or the changes between two",
        ),
        BRANCH,
        Option(name="tag", help="a tag"),
        Option(name="snapshot-id", kind=OptionKind.INTEGER, help="a snapshot"),
        Option(
            name="as-of-ms",
            kind=OptionKind.INTEGER,
            help="what the branch held then, in milliseconds since 1970 UTC",
        ),
        Option(
            name="columns",
            kind=OptionKind.LIST,
            help="columns to read, metadata columns like `_file` included: Spark does not say "
            "which columns a query needs",
        ),
        Option(name="filter", help="rows wanted, e.g. `amount > 10 and region = 'EU'`"),
        Option(name="from", help="changes after this snapshot id, branch or tag; default: all"),
        Option(name="to", help="changes up to this snapshot id, branch or tag; default: `branch`"),
        Option(
            name="net",
            kind=OptionKind.BOOLEAN,
            default=False,
            help="one set of changes, not one per snapshot",
        ),
        Option(
            name="max-snapshots-per-batch",
            kind=OptionKind.INTEGER,
            minimum=1,
            help="where a micro-batch of a stream ends; from Spark 4.2. Default: at the head",
        ),
    ),
)
FORMAT = Option(
    name="format",
    kind=OptionKind.CHOICE,
    choices=tuple(FACTORIES),
    help="rows are change events of this format; its options and the sink's may follow",
)
WRITE_OPTIONS = OptionTable(
    "writing",
    (
        BRANCH,
        Option(
            name="overwrite-mode",
            kind=OptionKind.CHOICE,
            choices=(STATIC, DYNAMIC),
            default=STATIC,
            help="`mode('overwrite')` replaces the whole table, or the partitions of the new rows",
        ),
        FORMAT,
    ),
)
STREAM_WRITE_OPTIONS = OptionTable(
    "writing a stream",
    (
        BRANCH,
        FORMAT,
        Option(
            name="query-id",
            help="identity of the stream in the branch's history, as unique as its checkpoint",
        ),
    ),
)
OPTION_TABLES = (
    TABLE_OPTIONS,
    READ_OPTIONS,
    WRITE_OPTIONS,
    STREAM_WRITE_OPTIONS,
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Checked options of one use of the format. Picklable; may hold secrets."""

    identifier: Identifier
    catalog: str
    properties: Mapping[str, str]
    values: OptionValues

    def open(self) -> Environment:
        """The catalog and its store."""
        return open_backend(self.catalog, dict(self.properties))


def parse_source_options(given: Mapping[str, str], table: OptionTable) -> SourceOptions:
    """Check the options of a read or write.

    Raises:
        InvalidInputError: An option is unknown, missing or wrong; the message lists the known ones.
    """
    return _parse(given, (TABLE_OPTIONS, table))


def parse_change_options(
    given: Mapping[str, str], table: OptionTable, others: Sequence[OptionTable]
) -> tuple[SourceOptions, GivenOptions]:
    """As `parse_source_options`, with options of other owners among them.

    Returns:
        Our options, and those of the others as they were given.
    """
    names = {name for each in others for name in each.known_names}
    options = _parse(given, (TABLE_OPTIONS, table, *others))
    return options, {name: text for name, text in _own(given).items() if name in names}


def _parse(given: Mapping[str, str], tables: Sequence[OptionTable]) -> SourceOptions:
    own = _own(given)
    path = own.pop("path", None)
    if path is not None and own.setdefault("table", path) != path:
        raise InvalidInputError("the table is given twice", table=own["table"], path=path)
    location, values, *_ = parse_options(tables, own)
    name = location.optional_text("table")
    if name is None:
        raise InvalidInputError("missing option 'table' of format 'icefold'", known=_known(tables))
    warehouse = location.optional_text("warehouse")
    properties = {
        key.removeprefix(PROPERTY_PREFIX): text
        for key, text in given.items()
        if key.startswith(PROPERTY_PREFIX)
    }
    if warehouse is not None:
        properties["warehouse"] = warehouse
    return SourceOptions(
        identifier=parse_table_name(name),
        catalog=location.text("catalog"),
        properties=properties,
        values=values,
    )


def _own(given: Mapping[str, str]) -> dict[str, str]:
    return {
        key: text
        for key, text in given.items()
        if not key.startswith(PROPERTY_PREFIX) and key not in SPARKS_OWN
    }


def _known(tables: Sequence[OptionTable]) -> str:
    return ", ".join(name for table in tables for name in table.known_names)
