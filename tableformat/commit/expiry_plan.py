"""Which snapshots and refs may go: a pure function of metadata, policy and time.

A snapshot stays when one of these holds (spec: Snapshot Retention Policy; iceberg-core
RemoveSnapshots):

* it is among the newest `min-snapshots-to-keep` of a branch, or in the branch's unbroken run of
  snapshots not older than `max-snapshot-age-ms`, of which `icefold.expire.max-snapshots-to-keep`
  leaves the newest, where nobody says an age; for a staging branch, only as far as they are not in
  its target's history, on which the target's settings decide;
* a branch or tag points at it;
* it belongs to no branch or tag and is not older than the table's `max-snapshot-age-ms` (somebody
  may be about to point at it), and, of those, among as many as a branch keeps: every batch that was
  published and trimmed leaves one;
* the publish of a cut stands on it and is not older than that: until all tables of the cut are
  published it is what readers of the cut before see (`cdc/cuts.py`). What the newest cut shows is
  the head of its branch, or, there, this one;
* it is staged and not resolved, or the resolver needs it to prove where it stands (R18):
  `commit/staging_branches.py`;
* it was kept in the target's history when another tool staged a commit that still waits: that may
  repeat a published one, and the publish tells;
* it is in the whole history of a branch, the table is v3 and Flink's sink deletes: it validates its
  vectors from the first snapshot on, and once that has gone it fails at each commit (Iceberg 1.12
  and older);
* it is in the history of a branch down to the last commit of a streaming writer, less than five
  days ago, as far as own commits do not repeat what that one said: they repeat one writer's.

A branch or tag goes, except `main`, when its snapshot is older than its `max-ref-age-ms`. Staging
branches never go, nor does the target of one while something waits there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, takewhile

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from tableformat.commit.branch_history import is_first, summary_of, walk_back
from tableformat.commit.retention import LONG_MAX, STAGING_RETENTION, Retention, retention_of
from tableformat.commit.snapshot_ages import dated_snapshots
from tableformat.commit.staging_branches import (
    StagingBranch,
    has_unpublished,
    others_wait_since_ms,
    snapshots_needed,
    staging_branches,
)
from tableformat.spec.names import (
    CARRIED,
    CUT,
    FLINK_JOB,
    FLINK_OPERATOR,
    MAIN_BRANCH,
    SNAPSHOTS_MAX,
    SPARK_QUERY,
    STAGING_BRANCH,
)
from tableformat.spec.properties import property_int

SNAPSHOT_AGE_MAX = "history.expire.max-snapshot-age-ms"
DEFAULT_MAX_SNAPSHOT_AGE_MS = 5 * 24 * 3600 * 1000
_PAUSE_MAX_MS = DEFAULT_MAX_SNAPSHOT_AGE_MS  # of a streaming writer, whatever the table keeps
_SOUGHT_MAX = 1_000  # snapshots: all of five days are 432,000 where there is one a second
_WRITERS = (FLINK_OPERATOR, SPARK_QUERY)
_DELETES = frozenset({"added-dvs", "added-equality-delete-files"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPolicy:
    """What the caller wants; None leaves it to the table's `history.expire.*` properties.

    Settings of a single ref go before both. `staging` maps staging branches to their targets: those
    that cannot be recognised, or have another target than it seems (`commit/staging_branches.py`).
    """

    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None
    max_ref_age_ms: int | None = None
    staging: Mapping[str, str] = field(default_factory=lambda: {STAGING_BRANCH: MAIN_BRANCH})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPlan:
    """What goes. `protected`: snapshots that only what is staged, or a streaming writer, keeps."""

    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    protected: tuple[int, ...] = ()


def plan_expiry(metadata: TableMetadata, policy: ExpiryPolicy, *, now_ms: int) -> ExpiryPlan:
    """Find what may go at `now_ms`.

    Raises:
        InvalidInputError: A `history.expire.*` property is malformed.
    """
    limits = _Limits.of(metadata, policy, now_ms)
    by_id = dated_snapshots(metadata, now_ms)
    staging = staging_branches(metadata, policy.staging)
    lasting = {MAIN_BRANCH, *staging}
    lasting |= {each.target for each in staging.values() if has_unpublished(metadata, each)}
    refs = {
        name: ref
        for name, ref in metadata.refs.items()
        if name in lasting or not limits.is_ref_expired(ref, by_id)
    }
    kept = set(_kept_by_refs(refs, staging, by_id, limits))
    kept.update(_kept_unreferenced(refs, by_id, limits))
    left = metadata.model_copy(update={"refs": refs})
    needed = (snapshots_needed(left, each) for each in staging.values())
    staged = set(chain.from_iterable(needed)) - kept
    for each in staging.values():
        staged.update(_known_when_staged(left, each, by_id, limits) - kept)
    if metadata.format_version > 2:
        staged.update(_validated_by_flink(kept | staged, refs, by_id, now_ms) - kept)
    staged.update(_sought_by_writers(refs, by_id, now_ms) - kept)
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
    max_snapshots_to_keep: int
    max_ref_age_ms: int

    @classmethod
    def of(cls, metadata: TableMetadata, policy: ExpiryPolicy, now_ms: int) -> _Limits:
        prefix = "history.expire"
        age = property_int(metadata.properties, SNAPSHOT_AGE_MAX, DEFAULT_MAX_SNAPSHOT_AGE_MS)
        keep = property_int(metadata.properties, f"{prefix}.min-snapshots-to-keep", 1)
        ref_age = property_int(metadata.properties, f"{prefix}.max-ref-age-ms", LONG_MAX)
        keep_max = property_int(metadata.properties, SNAPSHOTS_MAX, LONG_MAX, minimum=1)
        is_age_said = (
            policy.max_snapshot_age_ms is not None or SNAPSHOT_AGE_MAX in metadata.properties
        )
        return cls(
            now_ms=now_ms,
            max_snapshot_age_ms=_first(policy.max_snapshot_age_ms, age),
            min_snapshots_to_keep=_first(policy.min_snapshots_to_keep, keep),
            max_snapshots_to_keep=LONG_MAX if is_age_said else keep_max,
            max_ref_age_ms=_first(policy.max_ref_age_ms, ref_age),
        )

    def last_kept_ms(self, own: Retention, history: Sequence[Snapshot]) -> int:
        """What is older goes; `history` of a branch is newest first."""
        if own.max_snapshot_age_ms is not None:
            return self.now_ms - own.max_snapshot_age_ms
        by_age = self.now_ms - self.max_snapshot_age_ms
        if len(history) <= self.max_snapshots_to_keep:
            return by_age
        return max(by_age, history[self.max_snapshots_to_keep - 1].timestamp_ms)

    def count_max(self, own: Retention) -> int:
        """How many of a branch are kept at most: many may have one time (R78)."""
        return self.max_snapshots_to_keep if own.max_snapshot_age_ms is None else LONG_MAX

    def is_ref_expired(self, ref: SnapshotRef, by_id: Mapping[int, Snapshot]) -> bool:
        snapshot = by_id.get(ref.snapshot_id)
        age_max = _first(ref.max_ref_age_ms, self.max_ref_age_ms)
        return snapshot is None or self.now_ms - snapshot.timestamp_ms > age_max


def _kept_by_refs(
    refs: Mapping[str, SnapshotRef],
    staging: Mapping[str, StagingBranch],
    by_id: Mapping[int, Snapshot],
    limits: _Limits,
) -> Iterator[int]:
    for name, ref in refs.items():
        yield ref.snapshot_id
        if ref.snapshot_ref_type == SnapshotRefType.TAG:
            continue
        target = refs.get(staging[name].target) if name in staging else None
        others = set(_history(by_id, target))
        own = retention_of(ref)
        if name in staging and own == STAGING_RETENTION:
            own = Retention()  # it is for tools that know no staged changes
        history = list(walk_back(by_id, ref.snapshot_id))
        keep_min = max(_first(own.min_snapshots_to_keep, limits.min_snapshots_to_keep), 1)
        last_kept_ms, count_max = limits.last_kept_ms(own, history), limits.count_max(own)
        newer: Snapshot | None = None
        for count, snapshot in enumerate(history):
            is_old = count >= count_max or snapshot.timestamp_ms < last_kept_ms
            may_stay = count <= count_max and _is_before_cut(snapshot, newer, last_kept_ms)
            if count >= keep_min and is_old and not may_stay:
                break
            if snapshot.snapshot_id in others:
                break
            yield snapshot.snapshot_id
            newer = snapshot


def _known_when_staged(
    metadata: TableMetadata,
    staging: StagingBranch,
    by_id: Mapping[int, Snapshot],
    limits: _Limits,
) -> set[int]:
    """The target's history as it was kept when the oldest waiting commit of others was staged."""
    target = metadata.refs.get(staging.target)
    since_ms = others_wait_since_ms(metadata, staging, by_id)
    if target is None or since_ms is None:
        return set()
    history = list(walk_back(by_id, target.snapshot_id))
    last_kept_ms = limits.last_kept_ms(retention_of(target), history)
    last_kept_ms -= max(limits.now_ms - since_ms, 0)
    known = takewhile(lambda each: each.timestamp_ms >= last_kept_ms, history)
    return {each.snapshot_id for each in known}


def _validated_by_flink(
    kept: AbstractSet[int],
    refs: Mapping[str, SnapshotRef],
    by_id: Mapping[int, Snapshot],
    now_ms: int,
) -> set[int]:
    """Histories that nothing has cut yet, while a sink of Flink's deletes, and its last commit.

    Whatever it deletes: vectors come once a checkpoint changes a key twice. It may pause longer
    than snapshots are kept, so its last commit counts for `_PAUSE_MAX_MS` at least.
    """
    last = max(filter(_is_flink_delete, by_id.values()), key=lambda e: e.timestamp_ms, default=None)
    if last is None:
        return set()
    if last.snapshot_id not in kept and now_ms - last.timestamp_ms > _PAUSE_MAX_MS:
        return set()
    needed: set[int] = set()
    for head_id in _branch_heads(refs):
        history = list(walk_back(by_id, head_id))
        if history and is_first(history[-1]):
            needed.update(each.snapshot_id for each in history)
    return needed | {last.snapshot_id} if needed else needed


def _is_flink_delete(snapshot: Snapshot) -> bool:
    """Whether its sink made it; own commits repeat what it said."""
    summary = summary_of(snapshot)
    is_flink = FLINK_JOB in summary and CARRIED not in summary
    return is_flink and not summary.keys().isdisjoint(_DELETES)


def _sought_by_writers(
    refs: Mapping[str, SnapshotRef], by_id: Mapping[int, Snapshot], now_ms: int
) -> set[int]:
    """Histories down to what is newest of each streaming writer.

    One that comes back looks for its last commit, and commits again what it does not find: data
    files that may have been compacted and deleted since. Of an operator of Flink, which keeps its
    id in a job that is started again, the last job's. Bounded: most that are not heard of any more
    were replaced by one of another id, and never come back.
    """
    sought: set[int] = set()
    for head_id in _branch_heads(refs):
        told: set[tuple[str, str]] = set()
        passed: list[int] = []
        for snapshot in walk_back(by_id, head_id):
            if now_ms - snapshot.timestamp_ms > _PAUSE_MAX_MS or len(passed) == _SOUGHT_MAX:
                break
            passed.append(snapshot.snapshot_id)
            summary = summary_of(snapshot)
            found = {(key, summary[key]) for key in _WRITERS if key in summary} - told
            if found:
                told |= found
                sought.update(passed)
                passed.clear()
    return sought


def _branch_heads(refs: Mapping[str, SnapshotRef]) -> set[int]:
    """Where writers may go on: nobody writes to a tag."""
    branches = (each for each in refs.values() if each.snapshot_ref_type == SnapshotRefType.BRANCH)
    return {each.snapshot_id for each in branches}


def _is_before_cut(snapshot: Snapshot, newer: Snapshot | None, last_kept_ms: int) -> bool:
    """Whether the commit after `snapshot` published a cut, not long ago."""
    if newer is None or newer.timestamp_ms < last_kept_ms:
        return False
    cut = summary_of(newer).get(CUT)
    return cut is not None and cut != summary_of(snapshot).get(CUT)


def _history(by_id: Mapping[int, Snapshot], ref: SnapshotRef | None) -> Iterator[int]:
    head_id = None if ref is None else ref.snapshot_id
    return (snapshot.snapshot_id for snapshot in walk_back(by_id, head_id))


def _kept_unreferenced(
    refs: Mapping[str, SnapshotRef], by_id: Mapping[int, Snapshot], limits: _Limits
) -> Iterator[int]:
    referenced: set[int] = set()
    for ref in refs.values():
        for snapshot in walk_back(by_id, ref.snapshot_id):
            if snapshot.snapshot_id in referenced:
                break
            referenced.add(snapshot.snapshot_id)
    others = [each for each in by_id.values() if each.snapshot_id not in referenced]
    others.sort(key=lambda each: each.timestamp_ms, reverse=True)
    own = Retention()
    last_kept_ms = limits.last_kept_ms(own, others)
    newest = others[: limits.count_max(own)]
    yield from (each.snapshot_id for each in newest if each.timestamp_ms >= last_kept_ms)


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
