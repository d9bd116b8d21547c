"""What each maintenance task may be told. Every option has a default.

Options that cannot be right for any table are refused when they are made (`InvalidInputError`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.expressions import BooleanExpression

from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import InvalidInputError
from tableformat.spec.names import MAIN_BRANCH

Strategy = Literal["bin-pack", "sort", "z-order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """Which data files are rewritten, and how.

    A file is chosen when it is smaller than `small_share` or larger than `large_share` of the
    target size, or when deletes kill at least `dv_share_min` of its rows. A group of files of one
    partition is rewritten when a file in it has that many deletes or is too large, or when it has
    at least `input_files_min` files, or enough bytes for a file of the target size.

    Attributes:
        branch: The branch; never one that rows are staged on.
        filter: Only files that may hold rows matching it; None: all.
        strategy: `bin-pack` keeps the order of rows; `sort` and `z-order` order them by `sort_by`
            and take every file of a partition that has work to do.
        sort_by: Columns, each with an optional ` desc`; empty: the table's sort order (`sort`).
        target_size_bytes: Size of new files; None: `write.target-file-size-bytes`.
        small_share, large_share: Of the target size.
        input_files_min: Small files that are worth a rewrite.
        dv_share_min: Deleted rows of all rows in a file that are worth a rewrite, 0-1.
        rewrite_all: Take every file, whatever its size.
        group_bytes_max: Bytes of one group: what is rewritten into one file after the other.
        rewrite_bytes_max: Groups beyond this many bytes are left to the next run; None: no limit.
        partial_progress: Commit groups in several parts. False: one commit per run, or one every
            ten minutes of it (`COMMIT_INTERVAL_MAX_MS`).
        partial_progress_commits_max: How many parts at most.
        concurrent_groups_max: Small groups that are rewritten at the same time in this process.
        spark_bytes_min: From so many bytes on an active Spark session is used unasked.
    """

    branch: str = MAIN_BRANCH
    filter: str | BooleanExpression | None = None
    strategy: Strategy = "bin-pack"
    sort_by: tuple[str, ...] = ()
    target_size_bytes: int | None = None
    small_share: float = 0.75
    large_share: float = 1.8
    input_files_min: int = 5
    dv_share_min: float = 0.3
    rewrite_all: bool = False
    group_bytes_max: int = 2 << 30
    rewrite_bytes_max: int | None = None
    partial_progress: bool = False
    partial_progress_commits_max: int = 10
    concurrent_groups_max: int = 5
    spark_bytes_min: int = 8 << 30

    def __post_init__(self) -> None:
        positive = {
            "target_size_bytes": self.target_size_bytes,
            "input_files_min": self.input_files_min,
            "group_bytes_max": self.group_bytes_max,
            "rewrite_bytes_max": self.rewrite_bytes_max,
            "partial_progress_commits_max": self.partial_progress_commits_max,
            "concurrent_groups_max": self.concurrent_groups_max,
        }
        for name, value in positive.items():
            if value is not None and value < 1:
                raise InvalidInputError(
                    "a compaction option must be at least 1", option=name, value=value
                )
        if not 0 < self.dv_share_min <= 1:
            raise InvalidInputError("not a share of rows", dv_share_min=self.dv_share_min)
        if not 0 <= self.small_share < 1 < self.large_share:
            raise InvalidInputError(
                "a file of the target size must be neither small nor large",
                small_share=self.small_share,
                large_share=self.large_share,
            )
        if self.strategy not in ("bin-pack", "sort", "z-order"):
            raise InvalidInputError(
                "unknown strategy", strategy=repr(self.strategy), known="bin-pack, sort, z-order"
            )
        if self.strategy == "bin-pack" and self.sort_by:
            raise InvalidInputError(
                "bin-pack keeps the order of rows",
                action="choose sort or z-order to sort_by columns",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteVectorsOptions:
    """Which Puffin files are merged.

    Attributes:
        branch: The branch.
        live_share_max: A Puffin file is rewritten when at most this share of its bytes is live.
        small_bytes_max: A Puffin file below this size is small ...
        small_files_min: ... and so many small ones are worth a rewrite.
        rewrite_all: Rewrite all.
    """

    branch: str = MAIN_BRANCH
    live_share_max: float = 0.5
    small_bytes_max: int = 1 << 20
    small_files_min: int = 16
    rewrite_all: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.live_share_max <= 1 or self.small_files_min < 2:
            raise InvalidInputError(
                "not a share, or fewer than two files to merge",
                live_share_max=self.live_share_max,
                small_files_min=self.small_files_min,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteManifestsOptions:
    """How manifests are clustered.

    Attributes:
        branch: The branch.
        target_size_bytes: None: `commit.manifest.target-size-bytes`.
        manifests_min: Fewer manifests than this are left as they are.
        rewrite_all: Rewrite even where the clustering is good already.
    """

    branch: str = MAIN_BRANCH
    target_size_bytes: int | None = None
    manifests_min: int = 2
    rewrite_all: bool = False

    def __post_init__(self) -> None:
        target = self.target_size_bytes
        if self.manifests_min < 1 or (target is not None and target < 1):
            raise InvalidInputError(
                "a size or count must be at least 1",
                target_size_bytes=target,
                manifests_min=self.manifests_min,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOptions:
    """What may be forgotten.

    Attributes:
        policy: Ages and counts; None in it: the table's and the refs' own settings.
        branch: Where fence tokens are looked for.
        delete_files: Delete what nothing needs any more; False leaves it to orphan removal.
    """

    policy: ExpiryPolicy = field(default_factory=ExpiryPolicy)
    branch: str = MAIN_BRANCH
    delete_files: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOrphansOptions:
    """What counts as an orphan.

    Attributes:
        older_than_ms: Age from which an unreferenced file is an orphan: more than the longest
            write takes. Less than `older_than_min_ms` is refused.
        older_than_min_ms: For operators who know that no writer is that slow.
        branch: Where fence tokens are looked for.
        listed_max: Locations named in the report.
    """

    older_than_ms: int = 3 * 24 * 3600 * 1000
    older_than_min_ms: int = 3600 * 1000
    branch: str = MAIN_BRANCH
    listed_max: int = 1000

    def __post_init__(self) -> None:
        if self.older_than_ms < self.older_than_min_ms:
            raise InvalidInputError(
                "refused: files this young may belong to a write under way",
                older_than_ms=self.older_than_ms,
                minimum_ms=self.older_than_min_ms,
                action="wait longer than the longest write takes",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDeadDeletesOptions:
    """Which branch is cleaned of delete files that reach no row file any more."""

    branch: str = MAIN_BRANCH
