"""What a commit wants to change, and under which conditions it still may. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table.snapshots import IsolationLevel, Operation

from tableformat.spec.data_file import DataFile, ManifestEntry, PartitionKey
from tableformat.spec.names import MAIN_BRANCH


class CommitKind(StrEnum):
    """Rows and columns of the conflict matrix (commit/conflicts.py)."""

    APPEND = "append"
    ROW_DELTA = "row_delta"
    OVERWRITE = "overwrite"
    REWRITE = "rewrite"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Fence:
    """A lock's fence token, carried in the summary; commits refuse one lower than already seen."""

    name: str
    token: int


@dataclass(frozen=True, slots=True)
class Follower:
    """A branch that goes to the new snapshot in the same step, if it still is where it was seen.

    If it is not, it stays, and the commit goes on without it.
    """

    branch: str
    expected_head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What must not have happened since the scan.

    Attributes:
        starting_snapshot_id: The snapshot the scan was planned on, never the head at commit time
            (I13). None: validate against the whole history of the branch.
        isolation: None switches the row-level checks off (append, a writer's row delta).
        conflict_filter: Rows that the statement read.
        conflict_partitions: Narrows them to these partitions (dynamic overwrite); None: all.
        referenced_data_files: Every data file whose positions the change set uses; all of them.
        allow_new_deletes: MoR DELETE under snapshot isolation tolerates concurrent deletes.
    """

    starting_snapshot_id: int | None = None
    isolation: IsolationLevel | None = None
    conflict_filter: BooleanExpression = field(default_factory=AlwaysTrue)
    conflict_partitions: frozenset[PartitionKey] | None = None
    referenced_data_files: frozenset[str] = frozenset()
    allow_new_deletes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Changeset:
    """One atomic change of one branch.

    Attributes:
        operation: The summary's `operation`; None derives it from the change (spec rules).
        removed_entries: Live entries as the scan saw them (data files and delete files).
        data_sequence_number: Explicit data sequence number of added data files (rewrites only).
        expected_head: The head planned against. With `strict_head` the commit is refused when the
            branch has moved (compare-and-swap); otherwise it is re-validated and rebased.
        summary: Extra summary properties.
        staged: Staged or picked snapshots whose files it may add: refused once one of them has
            expired, since a head that was rolled back to does not tell that they were published
            meanwhile, and files may have gone with them.
        fence: A lock's token, checked on every attempt.
        carry_marker: Whether the commit repeats the staging marker of the branch's history. None:
            on every branch but `staging`, whose snapshots must not have one (`carried_properties`).
        refuse_live_files: Look whether an added data file is live on the branch already, and refuse
            to list it twice. Needed only for files that were committed before (cherry-pick); costs
            a look into every data manifest of their partitions.
        follower: Another branch that goes along.
        source: A branch that the change was made from: it must be where the attempt sees it, also
            where the catalog compares no versions (REST), until the commit has landed.
    """

    kind: CommitKind
    branch: str = MAIN_BRANCH
    operation: Operation | None = None
    added_data_files: tuple[DataFile, ...] = ()
    added_delete_files: tuple[DataFile, ...] = ()
    removed_entries: tuple[ManifestEntry, ...] = ()
    data_sequence_number: int | None = None
    validation: Validation = field(default_factory=Validation)
    expected_head: int | None = None
    strict_head: bool = False
    staged: frozenset[int] = frozenset()
    summary: Mapping[str, str] = field(default_factory=dict)
    fence: Fence | None = None
    carry_marker: bool | None = None
    refuse_live_files: bool = False
    follower: Follower | None = None
    source: str | None = None
