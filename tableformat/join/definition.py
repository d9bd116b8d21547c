"""What a user writes of a join: a TOML or JSON file, or the same as a mapping. Checked as data."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from tableformat.errors import InvalidInputError

Alias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ColumnOfTable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\..+$")]


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=lambda name: name.rstrip("_").replace("_", "-")
    )


class JoinTable(_Model):
    """A table of the join. `filter`: only these rows of it take part."""

    table: str
    as_: Alias
    filter: str | None = None


class JoinStep(JoinTable):
    """A table that is joined to one before it. `on`: `{"o.id": "l.order_id"}`, one or several."""

    how: Literal["inner", "left", "right", "full"] = "inner"
    on: Annotated[dict[ColumnOfTable, ColumnOfTable], Field(min_length=1)]


class JoinDefinition(_Model):
    """A join and the table that holds it.

    Attributes:
        into: The result's table.
        from_: The first table.
        join: The others, each joined to one before it.
        select: The result's columns; None: every column of every table.
        key_column: Name of a computed text column that is the result's key.
        query_id: The join's name in the result's history.
    """

    into: str
    from_: JoinTable
    join: Annotated[tuple[JoinStep, ...], Field(min_length=1)]
    select: Annotated[dict[str, ColumnOfTable], Field(min_length=1)] | None = None
    key_column: str | None = None
    query_id: str = ""

    @property
    def query(self) -> str:
        """`query_id`, or the one made of the result's name."""
        return self.query_id or f"icefold-join:{self.into}"

    @property
    def fingerprint(self) -> str:
        """Of what decides the result's rows."""
        text = json.dumps(self.model_dump(mode="json", exclude={"query_id"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_definition(given: Mapping[str, Any], *, file: Path | None = None) -> JoinDefinition:
    """A definition from what a file holds.

    Raises:
        InvalidInputError: It is wrong; names the first wrong key.
    """
    try:
        return JoinDefinition.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInputError(
            f"wrong definition of a join: {first['msg']}",
            key=".".join(str(part) for part in first["loc"]),
            file=file,
        ) from error


def load_definition(path: Path) -> JoinDefinition:
    """The definition in a file: JSON by its suffix `.json`, else TOML.

    Raises:
        InvalidInputError: It cannot be read, or it is wrong; names the first wrong key.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        given = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInputError(
            f"cannot read the definition of a join: {why}", file=path
        ) from error
    return parse_definition(given, file=path)
