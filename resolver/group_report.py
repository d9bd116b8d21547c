"""What a group publish did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from resolver.number_text import plural
from resolver.report import ResolveReport


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """One publish of several tables.

    Attributes:
        cut: Its name, QUERY/BATCH; None: there was nothing to publish.
        tables: What was done to each table that had a part in it.
        waits_for: What stops a later batch from being published; empty: nothing does.
        set_aside: Tables that were left out.
    """

    cut: str | None = None
    tables: tuple[ResolveReport, ...] = ()
    waits_for: str = ""
    set_aside: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def describe(self) -> str:
        """Lines for people: the cut, and each of its tables."""
        waits = f"; {self.waits_for}" if self.waits_for else ""
        aside = f"; without {', '.join(self.set_aside)}" if self.set_aside else ""
        if self.cut is None:
            return f"nothing to publish{waits}{aside}"
        head = f"cut {self.cut}: published {plural(len(self.tables), 'table')}{waits}{aside}"
        return "\n".join([head, *(f"  {each.describe()}" for each in self.tables)])
