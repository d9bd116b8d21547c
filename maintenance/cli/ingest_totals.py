"""Sums over the batches that `icefold ingest` staged."""

from __future__ import annotations

from dataclasses import dataclass, field

from resolver.number_text import plural
from tableformat.cdc.ingest import IngestResult


@dataclass(slots=True)
class IngestTotals:
    """Sums over batches. The results are not kept: a stream that is followed has no end."""

    events: int = 0
    changes: int = 0
    commits: int = 0
    bad_records: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    truncated: int = 0

    def add(self, result: IngestResult) -> None:
        """One more batch."""
        self.events += result.events
        self.changes += result.changes
        self.commits += result.commit is not None
        self.bad_records += result.bad_records
        for what, count in result.skipped.items():
            self.skipped[what] = self.skipped.get(what, 0) + count
        self.repeated += result.repeated
        self.truncated += result.truncated

    def text(self, branch: str) -> str:
        """One line for people."""
        others = [plural(self.bad_records, "bad record")]
        others += [f"{count:,} skipped ({what})" for what, count in sorted(self.skipped.items())]
        if self.truncated:
            others.append(f"{plural(self.truncated, 'batch', 'batches')} emptied the table first")
        if self.repeated:
            known = plural(self.repeated, "batch", "batches")
            others.append(f"{known} {'was' if self.repeated == 1 else 'were'} there already")
        return (
            f"{plural(self.events, 'event')}, {plural(self.changes, 'change')} in "
            f"{plural(self.commits, 'commit')} on {branch}; {', '.join(others)}"
        )
