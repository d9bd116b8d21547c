"""Arrays of several dimensions, as Debezium's connector for PostgreSQL tells them: not at all.

It declares `text[][]` as a list of texts, and writes what Java says of the inner arrays
(`[Ljava.lang.String;@285a80ea`). Of numbers it writes nulls, which nothing tells from values.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tableformat.array_types import Int64s

# java.lang.Class.getName of an array, and a hash code.
_ARRAY_OF_JAVA = r"^\[+(L[A-Za-z0-9_.$]+;|[ZBCSIJFD])@[0-9a-f]{1,8}$"


def report_java_texts(columns: Mapping[str, pa.Array], rows: Int64s, bad: dict[int, str]) -> None:
    """Report lists whose texts are names of Java's objects.

    Args:
        columns: Wire columns, each of shape `(len(rows),)`.
        rows: The event of each row.
        bad: Receives event number and reason.
    """
    for name, values in columns.items():
        if not (pa.types.is_list(values.type) and pa.types.is_string(values.type.value_type)):
            continue
        texts = pc.list_flatten(values)
        if not pc.any(pc.starts_with(texts, "["), min_count=0).as_py():
            continue  # as nearly always
        found = pc.fill_null(pc.match_substring_regex(texts, _ARRAY_OF_JAVA), False)
        for place in pc.unique(pc.list_parent_indices(values).filter(found)).to_pylist():
            bad.setdefault(int(rows[place]), _reason(name))


def _reason(column: str) -> str:
    return (
        f"column '{column}' has an array of several dimensions, of which Debezium tells the names "
        "of Java's objects only; leave it out (column.exclude.list), or make it a text or json"
    )
