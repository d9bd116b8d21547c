"""Which column of the target a name in a statement means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType
from sqlglot import exp

from tableformat.errors import InvalidInputError
from tableformat.sql.statement import column_parts


@dataclass(frozen=True, slots=True)
class TargetColumns:
    """Names as Spark resolves them: ignoring case, the alias or the table's name in front or not.

    Attributes:
        schema: The target's.
        alias: What the statement calls it.
        names: The table's own name, which may stand in front too.
        is_qualified: Only names with the alias in front count: other tables are in scope.
    """

    schema: Schema
    alias: str
    names: tuple[str, ...]
    is_qualified: bool = False

    def find(self, parts: Sequence[str]) -> tuple[NestedField, ...] | None:
        """The fields from the top down to the one that is meant; None if there is none."""
        readings = self._unqualified(parts)
        for rest in readings if self.is_qualified else [*readings, parts]:
            found = _walk(tuple(self.schema.fields), rest)
            if found is not None:
                return found
        return None

    def find_tree(self, tree: exp.Expr) -> tuple[NestedField, ...] | None:
        """`find` for a column of an expression; None for anything else."""
        parts = column_parts(tree)
        return None if parts is None else self.find(parts)

    def assigned(self, parts: Sequence[str]) -> tuple[NestedField, ...]:
        """`find` for the left side of an assignment.

        Raises:
            InvalidInputError: There is no such column.
        """
        found = replace(self, is_qualified=False).find(parts)
        if found is None:
            raise InvalidInputError(
                "unknown column in an assignment",
                column=".".join(parts),
                known=",".join(field.name for field in self.schema.fields),
            )
        return found

    def _unqualified(self, parts: Sequence[str]) -> list[Sequence[str]]:
        """What is left of a name when the table is taken off."""
        readings: list[Sequence[str]] = []
        qualified = [name.casefold() for name in self.names]
        for length in range(len(qualified), 0, -1):
            suffix = qualified[-length:]
            if (
                len(parts) > length
                and [part.casefold() for part in parts[:length]] == suffix
                and self.alias.casefold() == qualified[-1]
            ):
                readings.append(parts[length:])
        if len(parts) > 1 and parts[0].casefold() == self.alias.casefold():
            readings.append(parts[1:])
        return readings


def _walk(fields: tuple[NestedField, ...], parts: Sequence[str]) -> tuple[NestedField, ...] | None:
    wanted = parts[0]
    named = [each for each in fields if each.name == wanted] or [
        each for each in fields if each.name.casefold() == wanted.casefold()
    ]
    if len(named) != 1:
        return None
    if len(parts) == 1:
        return (named[0],)
    kind = named[0].field_type
    if not isinstance(kind, StructType):
        return None
    below = _walk(kind.fields, parts[1:])
    return None if below is None else (named[0], *below)
