"""What other installed packages bring: factories that entry points declare, by name.

| group                    | an entry point is a                       | asked for by    |
|--------------------------|-------------------------------------------|-----------------|
| `icefold.change_formats` | `tableformat.cdc.formats.FormatFactory`   | `--format NAME` |
| `icefold.catalogs`       | `tableformat.backend.CatalogFactory`      | property `type` |
| `icefold.lookup`         | `tableformat.lookup.locator.LocatorFactory` | every lookup  |

A package is imported when its name is asked for, so a broken one harms nobody else. Names of
icefold's own win.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points

from tableformat.errors import InvalidInputError, TableError


@dataclass(frozen=True, slots=True)
class EntryPoints:
    """One group of entry points; `kind` is what people call one of its factories."""

    group: str
    kind: str

    def names(self) -> list[str]:
        """What is declared, in alphabetical order; nothing is imported."""
        return sorted({point.name for point in entry_points(group=self.group)})

    def load(self, name: str) -> object | None:
        """What `name` stands for; None if no package declares it.

        Raises:
            InvalidInputError: Two packages declare it, or it cannot be imported.
        """
        points = {point.value: point for point in entry_points(group=self.group, name=name)}
        if len(points) > 1:
            raise InvalidInputError(
                f"several packages bring the {self.kind} '{name}'",
                action="uninstall all but one",
                packages=sorted(_package(point) for point in points.values()),
            )
        for point in points.values():
            try:
                return point.load()  # type: ignore[no-any-return]
            except Exception as error:
                if isinstance(error.__cause__, KeyboardInterrupt):
                    raise error.__cause__ from None  # Python 3.11 wraps what `__set_name__` raises
                raise self.refused(name, f"{type(error).__name__}: {error}") from error
        return None

    def refused(self, name: str, reason: str) -> InvalidInputError:
        """The error for a factory that cannot be used."""
        packages = {_package(point) for point in entry_points(group=self.group, name=name)}
        return InvalidInputError(
            f"the {self.kind} '{name}' of another package cannot be used: {reason}",
            package=", ".join(sorted(packages)),
        )

    def unknown(
        self, name: str, built_in: list[str], error: type[TableError] = InvalidInputError
    ) -> TableError:
        """The error for a name that nobody declares."""
        known = [*built_in, *self.names()]
        near = get_close_matches(name, known, n=1)
        return error(
            f"unknown {self.kind} '{name}'",
            action=f"did you mean '{near[0]}'?" if near else "use one of those",
            known=", ".join(known),
        )


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
