"""How long expiry, of any tool, keeps a ref and its history; and what a staging branch is given.

Other tools' expiry (Spark's `expire_snapshots`, PyIceberg) knows no staged changes. It honours
what a ref says, before its own `older_than` and `retain_last`: a branch keeps an ancestor that is
among the newest `min-snapshots-to-keep` or, from the head on, not older than `max-snapshot-age-ms`.
So a staging branch says both, and that it is never dropped for its age.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.refs import SnapshotRef

LONG_MAX = (1 << 63) - 1
DAY_MS = 24 * 3600 * 1000

# Bounded: after a trim the history of staging is that of its target, and another tool's expiry
# keeps it for staging's sake. A month is longer than a resolver stays down unnoticed; the count is
# for those who stage seldom.
STAGING_SNAPSHOT_AGE_MAX_MS = 30 * DAY_MS
STAGING_SNAPSHOTS_MIN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long expiry keeps a ref and its history; None: the table's `history.expire.*`."""

    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None


STAGING_RETENTION = Retention(
    max_ref_age_ms=LONG_MAX,
    max_snapshot_age_ms=STAGING_SNAPSHOT_AGE_MAX_MS,
    min_snapshots_to_keep=STAGING_SNAPSHOTS_MIN,
)


def retention_of(ref: SnapshotRef | None) -> Retention:
    """What a ref says."""
    if ref is None:
        return Retention()
    return Retention(
        max_ref_age_ms=ref.max_ref_age_ms,
        max_snapshot_age_ms=ref.max_snapshot_age_ms,
        min_snapshots_to_keep=ref.min_snapshots_to_keep,
    )


def retention_or(ref: SnapshotRef | None, default: Retention) -> Retention:
    """What a ref says, in whatever part; `default` if it says nothing at all."""
    own = retention_of(ref)
    return default if own == Retention() else own
