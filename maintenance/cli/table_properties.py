"""Properties of maintenance and resolver, looked at before a table gets them.

`commit.property_check` looks at all others.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from maintenance.settings import PREFIX, find_setting
from resolver.engine import SPARK_BYTES_MIN, SPARK_ROWS_MIN
from tableformat.errors import InvalidInputError
from tableformat.spec.properties import property_int

_RESOLVE_PREFIX = "icefold.resolve."
_RESOLVE = (SPARK_ROWS_MIN, SPARK_BYTES_MIN)


def check_settings(given: Mapping[str, str]) -> None:
    """Refuse settings that there are not, and wrong values: cycles would stop at them.

    Raises:
        InvalidInputError: Names the property, and the nearest that there is.
    """
    for name, text in given.items():
        if name.startswith(PREFIX):
            find_setting(name).parse(text)
        elif name in _RESOLVE:
            property_int(given, name, 0)
        elif name.startswith(_RESOLVE_PREFIX):
            near = difflib.get_close_matches(name, _RESOLVE, n=1)
            raise InvalidInputError(
                "icefold has no such table property",
                property=name,
                action=f"did you mean {near[0]}?" if near else f"use {' or '.join(_RESOLVE)}",
            )
