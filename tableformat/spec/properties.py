"""icefold's own table properties, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast, get_args

from tableformat.errors import InvalidInputError
from tableformat.spec.names import CHECK_PRIMARY_KEY, DV_PLACEMENT, DV_PLACEMENT_DEFAULT

Placement = Literal["packed", "per-file"]


def dv_placement(properties: Mapping[str, str]) -> Placement:
    """How deletion vectors are laid out: many per Puffin file (default), or one in each."""
    value = properties.get(DV_PLACEMENT, DV_PLACEMENT_DEFAULT)
    if value not in get_args(Placement):
        raise InvalidInputError(
            "not a placement of deletion vectors",
            property=DV_PLACEMENT,
            value=repr(value),
            action="use packed or per-file",
        )
    return cast("Placement", value)


def check_primary_key(properties: Mapping[str, str]) -> bool:
    """Whether row-level statements refuse to give one primary key to several rows; default yes."""
    value = properties.get(CHECK_PRIMARY_KEY, "true").strip().lower()
    if value not in ("true", "false"):
        raise InvalidInputError(
            "neither true nor false", property=CHECK_PRIMARY_KEY, value=repr(value)
        )
    return value == "true"
