"""Which snapshots and refs may go: a pure function of metadata, policy and time.

A snapshot stays when one of these holds (spec: Snapshot Retention Policy; iceberg-core
RemoveSnapshots):

* it is among the newest `min-snapshots-to-keep` of a branch, or in the branch's unbroken run of
  snapshots not older than `max-snapshot-age-ms`;
* a tag points at it;
* it belongs to no branch or tag and is not older than the table's `max-snapshot-age-ms` (somebody
  may be about to point at it);
* it is staged and not resolved: on the way from the staging head back to the target's marker, or
  to the target's own history, both ends included, and the target's own way to where the two meet
  unless the marker says it. Without them the resolver could not prove where it stands (R18);
* commits of other writers lie between it and the target's head, and it has the target's marker.

A branch or tag goes, except `main`, when its snapshot is older than its `max-ref-age-ms`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from tableformat.commit.carry import load_carried
from tableformat.commit.history import snapshots_by_id, walk_back
from tableformat.commit.retry import property_int
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH, STAGING_MARKER

DEFAULT_MAX_SNAPSHOT_AGE_MS = 5 * 24 * 3600 * 1000
LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPolicy:
    """What the caller wants; None leaves it to the table's `history.expire.*` properties.

    Settings of a single ref go before both. `staging` maps staging branches to their targets.
    """

    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None
    max_ref_age_ms: int | None = None
    staging: Mapping[str, str] = field(default_factory=lambda: {STAGING_BRANCH: MAIN_BRANCH})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPlan:
    """What goes. `protected` are snapshots that only the staging rule keeps."""

    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    protected: tuple[int, ...] = ()


def plan_expiry(metadata: TableMetadata, policy: ExpiryPolicy, *, now_ms: int) -> ExpiryPlan:
    """Find what may go at `now_ms`.

    Raises:
        InvalidInputError: A `history.expire.*` property is malformed.
    """
    limits = _Limits.of(metadata, policy, now_ms)
    by_id = snapshots_by_id(metadata)
    refs = {
        name: ref
        for name, ref in metadata.refs.items()
        if name == MAIN_BRANCH or not limits.is_ref_expired(ref, by_id)
    }
    kept = set(_kept_by_refs(refs, by_id, limits))
    kept.update(_kept_unreferenced(metadata, refs, by_id, limits))
    staged = set(_staged(refs, by_id, policy.staging)) - kept
    return ExpiryPlan(
        snapshot_ids=tuple(
            each.snapshot_id
            for each in metadata.snapshots
            if each.snapshot_id not in kept and each.snapshot_id not in staged
        ),
        refs=tuple(sorted(metadata.refs.keys() - refs.keys())),
        protected=tuple(sorted(staged)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    now_ms: int
    max_snapshot_age_ms: int
    min_snapshots_to_keep: int
    max_ref_age_ms: int

    @classmethod
    def of(cls, metadata: TableMetadata, policy: ExpiryPolicy, now_ms: int) -> _Limits:
        prefix = "history.expire"
        age = property_int(
            metadata.properties, f"{prefix}.max-snapshot-age-ms", DEFAULT_MAX_SNAPSHOT_AGE_MS
        )
        keep = property_int(metadata.properties, f"{prefix}.min-snapshots-to-keep", 1)
        ref_age = property_int(metadata.properties, f"{prefix}.max-ref-age-ms", LONG_MAX)
        return cls(
            now_ms=now_ms,
            max_snapshot_age_ms=_first(policy.max_snapshot_age_ms, age),
            min_snapshots_to_keep=_first(policy.min_snapshots_to_keep, keep),
            max_ref_age_ms=_first(policy.max_ref_age_ms, ref_age),
        )

    def is_ref_expired(self, ref: SnapshotRef, by_id: Mapping[int, Snapshot]) -> bool:
        snapshot = by_id.get(ref.snapshot_id)
        age_max = _first(ref.max_ref_age_ms, self.max_ref_age_ms)
        return snapshot is None or self.now_ms - snapshot.timestamp_ms > age_max


def _kept_by_refs(
    refs: Mapping[str, SnapshotRef], by_id: Mapping[int, Snapshot], limits: _Limits
) -> Iterator[int]:
    for ref in refs.values():
        if ref.snapshot_ref_type == SnapshotRefType.TAG:
            yield ref.snapshot_id
            continue
        age_max = _first(ref.max_snapshot_age_ms, limits.max_snapshot_age_ms)
        keep_min = max(_first(ref.min_snapshots_to_keep, limits.min_snapshots_to_keep), 1)
        for count, snapshot in enumerate(walk_back(by_id, ref.snapshot_id)):
            if count >= keep_min and limits.now_ms - snapshot.timestamp_ms > age_max:
                break
            yield snapshot.snapshot_id


def _kept_unreferenced(
    metadata: TableMetadata,
    refs: Mapping[str, SnapshotRef],
    by_id: Mapping[int, Snapshot],
    limits: _Limits,
) -> Iterator[int]:
    referenced: set[int] = set()
    for ref in refs.values():
        for snapshot in walk_back(by_id, ref.snapshot_id):
            if snapshot.snapshot_id in referenced:
                break
            referenced.add(snapshot.snapshot_id)
    for snapshot in metadata.snapshots:
        age_ms = limits.now_ms - snapshot.timestamp_ms
        if snapshot.snapshot_id not in referenced and age_ms <= limits.max_snapshot_age_ms:
            yield snapshot.snapshot_id


def _staged(
    refs: Mapping[str, SnapshotRef], by_id: Mapping[int, Snapshot], staging: Mapping[str, str]
) -> Iterator[int]:
    """Snapshots from each staging head back to its target's marker or history, inclusive.

    Where they meet in the target's history at a snapshot that does not carry the marker, nothing
    but the target's own chain tells that it is not a staged one: then the chain stays down to it
    (or whole, when the two have no snapshot in common).
    """
    for branch, target in staging.items():
        if branch not in refs or branch == target:
            continue
        target_id = refs[target].snapshot_id if target in refs else None
        chain = [each.snapshot_id for each in walk_back(by_id, target_id)]
        ends = set(chain)
        marker = load_carried(by_id, target_id).marker
        yield from _down_to_marker(by_id, target_id) if marker is not None else ()
        for snapshot in walk_back(by_id, refs[branch].snapshot_id):
            yield snapshot.snapshot_id
            if str(snapshot.snapshot_id) == marker:
                break
            if snapshot.snapshot_id in ends:
                if marker is None or _marker_of(snapshot) != marker:
                    yield from chain[: chain.index(snapshot.snapshot_id)]
                break
        else:
            yield from chain if marker is None else ()


def _down_to_marker(by_id: Mapping[int, Snapshot], target_id: int | None) -> Iterator[int]:
    """From the target's head to the first snapshot with a marker; other writers repeat none."""
    for snapshot in walk_back(by_id, target_id):
        yield snapshot.snapshot_id
        if _marker_of(snapshot) is not None:
            return


def _marker_of(snapshot: Snapshot) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.get(STAGING_MARKER)


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
