"""What a resolve cycle did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from resolver.number_text import plural
from tableformat.html_text import fields_html


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveReport:
    """One cycle.

    Attributes:
        table: `namespace.table`.
        target_snapshot_id: The published snapshot; the unchanged head when nothing was waiting.
        staging_snapshot_id: The last staged snapshot that is covered; None when nothing was staged.
        staged_snapshots: Staged snapshots published by this cycle; 0: nothing to do.
        equality_delete_files, equality_deletes: Resolved files, and keys in them.
        staged_rows: Rows in the staged data files.
        deleted_rows: Rows that died: on the target and inside the batch.
        outdated_rows: Staged rows that are older than the target's row of their key (only on tables
            with a sequence column); they are among `deleted_rows`.
        data_files, dropped_data_files: Staged files published; not published as all rows died.
        dvs: Deletion vectors written.
        position_delete_files: On a v2 table the files written instead.
        attempts: Publish attempts; more than 1 means that others committed meanwhile.
        index: How the index got to the planned head: `current`, `followed` or `built`.
        freshness_ms: Age of the oldest staged snapshot when it was published: of its newest change
            by the source's clock, where its writer says that, else of its commit.
        engine: Where keys were read and looked up: `local` (this process) or `spark`.
        trimmed: Whether staging was moved: to the published snapshot, or with the idle target.
        phases_ms: Milliseconds per phase, in order.
    """

    table: str
    target_snapshot_id: int | None
    staging_snapshot_id: int | None
    staged_snapshots: int = 0
    equality_delete_files: int = 0
    equality_deletes: int = 0
    staged_rows: int = 0
    deleted_rows: int = 0
    outdated_rows: int = 0
    data_files: int = 0
    dropped_data_files: int = 0
    dvs: int = 0
    position_delete_files: int = 0
    attempts: int = 0
    index: str = "unused"
    engine: str = "local"
    trimmed: bool = False
    freshness_ms: int = 0
    phases_ms: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds over all phases."""
        return sum(self.phases_ms.values()) / 1e3

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return fields_html(self.describe(), self.to_dict().items())

    @property
    def done(self) -> str:
        """What was committed, in short."""
        if self.staged_snapshots:
            return f"published as {self.target_snapshot_id}"
        return "staging has followed its target" if self.trimmed else "nothing to resolve"

    def describe(self) -> str:
        """One line for people."""
        if not self.staged_snapshots:
            return f"{self.table}: nothing to resolve"
        late = f"; {self.outdated_rows:,} came too late" if self.outdated_rows else ""
        return (
            f"{self.table}: published {plural(self.staged_snapshots, 'staged snapshot')} as "
            f"{self.target_snapshot_id}: {plural(self.staged_rows, 'row')} in "
            f"{plural(self.data_files, 'file')}, "
            f"{plural(self.equality_deletes, 'equality delete')} -> "
            f"{plural(self.deleted_rows, 'row')} deleted by "
            f"{self._deletes()}, in {self.seconds:.2f} s{late}"
        )

    def _deletes(self) -> str:
        if self.position_delete_files:
            return plural(self.position_delete_files, "position delete file")
        return plural(self.dvs, "deletion vector")
