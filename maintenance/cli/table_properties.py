"""Table properties, looked at before they are set.

One of icefold's own that is misspelt does nothing; a wrong value stops every writer.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from maintenance.settings import PREFIX, SETTINGS, find_setting
from resolver.engine import SPARK_BYTES_MIN, SPARK_ROWS_MIN
from tableformat.codec.parquet.metrics import DEFAULT_MODE_PROPERTY, MODE_PREFIX, parse_mode
from tableformat.codec.parquet.options import parquet_options
from tableformat.commit.merging import merge_policy
from tableformat.commit.retry import commit_retry_policy
from tableformat.errors import InvalidInputError
from tableformat.spec import names
from tableformat.spec.constraints import IMMUTABLE_PROPERTIES, SEQUENCE_PROPERTIES
from tableformat.spec.properties import (
    delete_granularity,
    dv_placement,
    on_missing_row,
    property_bool,
    property_int,
    publishing,
)
from tableformat.table_definition import parse_table_name

OWN = "icefold."
EXPIRY = "history.expire."
# Whoever reads Iceberg's properties says what is wrong with them.
_ICEBERG_READERS: Sequence[Callable[[Mapping[str, str]], object]] = (
    parquet_options,
    partial(parquet_options, for_deletes=True),
    merge_policy,
    commit_retry_policy,
    delete_granularity,
)
_CHECKS: Mapping[str, Callable[[Mapping[str, str]], object]] = {
    names.DEAD_LETTER_TABLE: lambda given: parse_table_name(given[names.DEAD_LETTER_TABLE]),
    names.DV_PLACEMENT: dv_placement,
    names.PUBLISH: publishing,
    names.ON_MISSING_ROW: on_missing_row,
    names.CHECK_PRIMARY_KEY: lambda given: property_bool(
        given, names.CHECK_PRIMARY_KEY, default=True
    ),
    names.SNAPSHOTS_MAX: lambda given: property_int(given, names.SNAPSHOTS_MAX, 1, minimum=1),
    SPARK_ROWS_MIN: lambda given: property_int(given, SPARK_ROWS_MIN, 0),
    SPARK_BYTES_MIN: lambda given: property_int(given, SPARK_BYTES_MIN, 0),
}
# What commands of their own declare; a table's own commits, or its next opening, check it.
_DECLARED = (
    *IMMUTABLE_PROPERTIES,
    *SEQUENCE_PROPERTIES,
    names.PRIMARY_KEY,
    names.PRIMARY_KEY_FIELD_IDS,
    names.SET_ASIDE,
    names.LEFT_OUT,
    names.LOAD,
)
_DECLARED_PREFIXES = ("icefold.index.", "icefold.computed.")


def check_properties(given: Mapping[str, str]) -> None:
    """Refuse properties of icefold's own that it does not know, and values that would fail later.

    Raises:
        InvalidInputError: Names the property, and the nearest that there is.
        UnsupportedError: Files of another format than Parquet are asked for.
    """
    from tableformat.rowlevel.context import isolation_of, mode_of  # with sqlglot, which is large
    from tableformat.sql.statement import RowLevelOperation

    for read in _ICEBERG_READERS:
        read(given)
    for operation in RowLevelOperation:
        mode_of(given, operation)
        isolation_of(given, operation)
    for name, text in given.items():
        if name.startswith(PREFIX):
            find_setting(name).parse(text)
        elif name in _CHECKS:
            _CHECKS[name](given)
        elif name.startswith(OWN) and name not in _DECLARED:
            _refuse_unknown(name)
        elif name.startswith(EXPIRY):
            property_int(given, name, 0)
        elif name.startswith((MODE_PREFIX, DEFAULT_MODE_PROPERTY)):
            parse_mode(text, name)


def _refuse_unknown(name: str) -> None:
    if name.startswith(_DECLARED_PREFIXES):
        return
    known = [*_CHECKS, *(setting.property_name for setting in SETTINGS.values())]
    near = difflib.get_close_matches(name, known, n=1)
    raise InvalidInputError(
        "icefold has no such table property",
        property=name,
        action=f"did you mean {near[0]}?" if near else "the reference lists them",
    )
