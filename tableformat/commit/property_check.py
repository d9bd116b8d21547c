"""Table properties, looked at before they are set.

One of icefold's own that is misspelt does nothing; a wrong value stops every writer.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pyiceberg.schema import Schema

from tableformat.codec.parquet.metrics import DEFAULT_MODE_PROPERTY, MODE_PREFIX, parse_mode
from tableformat.codec.parquet.options import parquet_options
from tableformat.commit.column_properties import check_columns_named
from tableformat.commit.merging import merge_policy
from tableformat.commit.request import ENCRYPTION_KEY
from tableformat.commit.retry import commit_retry_policy
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec import names
from tableformat.spec.constraints import IMMUTABLE_PROPERTIES, SEQUENCE_PROPERTIES
from tableformat.spec.metadata_update import PREVIOUS_VERSIONS_MAX
from tableformat.spec.properties import (
    delete_granularity,
    dv_placement,
    isolation_of,
    mode_of,
    on_missing_row,
    property_bool,
    property_int,
    publishing,
)
from tableformat.table_definition import parse_table_name

OWN = "icefold."
_OF_LAYERS_ABOVE = ("icefold.maintain.", "icefold.resolve.")  # which check them
_EXPIRY = "history.expire."
_FLAGS = (
    "gc.enabled",
    "write.metadata.delete-after-commit.enabled",
    "commit.manifest-merge.enabled",
    names.CHECK_PRIMARY_KEY,
)
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
    names.SNAPSHOTS_MAX: lambda given: property_int(given, names.SNAPSHOTS_MAX, 1, minimum=1),
    PREVIOUS_VERSIONS_MAX: lambda given: property_int(given, PREVIOUS_VERSIONS_MAX, 1, minimum=1),
}
# What calls of their own declare; a table's own commits, or its next opening, check it.
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


def check_properties(given: Mapping[str, str], schema: Schema | None = None) -> None:
    """Refuse properties of icefold's own that it does not know, and values that would fail later.

    Args:
        given: What is to be set. `icefold.maintain.*` and `icefold.resolve.*` are not looked at.
        schema: Of the table, if it is known.

    Raises:
        InvalidInputError: Names the property, and the nearest that there is.
        UnsupportedError: Files of another format than Parquet, or encrypted ones, are asked for.
    """
    for read in _ICEBERG_READERS:
        read(given)
    for operation in ("delete", "update", "merge"):
        mode_of(given, operation)
        isolation_of(given, operation)
    for name, text in given.items():
        if name in _CHECKS:
            _CHECKS[name](given)
        elif name in _FLAGS:
            property_bool(given, name, default=True)
        elif name.startswith(OWN) and name not in _DECLARED:
            _refuse_unknown(name)
        elif name.startswith(_EXPIRY):
            property_int(given, name, 0)
        elif name.startswith((MODE_PREFIX, DEFAULT_MODE_PROPERTY)):
            parse_mode(text, name)
        elif name == ENCRYPTION_KEY:
            raise UnsupportedError("icefold does not encrypt files", property=name)
    if schema is not None:
        check_columns_named(given, schema)


def _refuse_unknown(name: str) -> None:
    if name.startswith((*_OF_LAYERS_ABOVE, *_DECLARED_PREFIXES)):
        return
    near = difflib.get_close_matches(name, [*_CHECKS, *_FLAGS], n=1)
    raise InvalidInputError(
        "icefold has no such table property",
        property=name,
        action=f"did you mean {near[0]}?" if near else "the reference lists them",
    )
