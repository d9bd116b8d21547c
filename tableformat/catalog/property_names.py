"""Names of catalog properties: one that is nearly known is refused, as it would do nothing.

Configurations are shared with other tools, and catalogs have properties of their own: a name that
is far from all known ones is somebody else's.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import pyiceberg.io

from tableformat.errors import InvalidInputError

_CATALOG = (
    "type", "uri", "warehouse", "allowed-locations", "prefix", "credential", "token", "scope",
    "audience", "resource", "auth", "ssl", "oauth2-server-uri", "rest.sigv4-enabled",
    "rest.signing-region", "rest.signing-name", "snapshot-loading-mode",
)  # fmt: skip
_STORES = ("s3", "gcs", "adls", "client")
_KNOWN = frozenset(
    (
        *_CATALOG,
        *(
            value
            for value in vars(pyiceberg.io).values()
            if isinstance(value, str) and value.partition(".")[0] in _STORES
        ),
        "gcs.no-auth",
        "s3.path-style-access",
    )
)
_NEAR = 0.84  # `s3.endpoint-url` is; of Iceberg's other properties in Java none


def check_property_names(properties: Mapping[str, Any], catalog: str) -> None:
    """Refuse names that are nearly, and not quite, those of properties that are read.

    Raises:
        InvalidInputError: Names the property, and the one that is meant. No value is shown.
    """
    for name in properties:
        family = name.lower().partition(".")[0]
        candidates = [k for k in _KNOWN if "." not in name or k.startswith(f"{family}.")]
        if name in _KNOWN or any(name.startswith(f"{each}.") for each in candidates):
            continue
        near = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=_NEAR)
        if near:
            raise InvalidInputError(
                "there is no such catalog property",
                property=name,
                catalog=catalog,
                action=f"did you mean {near[0]}?",
            )
