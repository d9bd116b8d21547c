"""Which manifests of a branch to merge, so that commits stay cheap however many there were.

Iceberg's own rule merges the newest manifests, once there are `commit.manifest.min-count-to-merge`
of them, together with the result of the last merge: until that has reached the target size, every
entry is rewritten by every merge. Here a merge takes the small manifests and, going up in size,
the next one only while it has at most `GROWTH_MAX` times as many entries as everything taken so
far. So each rewrite of an entry lands it in a manifest 1.5 times as large at least:

* an entry is rewritten O(log(entries per full manifest)) times in all;
* between merges there are less than min-count manifests below half the target size, and those that
  a merge leaves alone grow by a factor, so they are O(log) many;
* manifests above half the target size are never merged again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tableformat.commit.retry import property_bool, property_int
from tableformat.spec.manifest_file import ManifestFile

GROWTH_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """Iceberg's `commit.manifest*` properties."""

    enabled: bool = True
    min_count_to_merge: int = 100
    target_size_bytes: int = 8 * 1024 * 1024


def merge_policy(properties: Mapping[str, str]) -> MergePolicy:
    """The table's policy; `InvalidInputError` if a property is malformed."""
    return MergePolicy(
        enabled=property_bool(properties, "commit.manifest-merge.enabled", default=True),
        min_count_to_merge=max(
            property_int(properties, "commit.manifest.min-count-to-merge", 100), 2
        ),
        target_size_bytes=max(
            property_int(properties, "commit.manifest.target-size-bytes", 8 * 1024 * 1024), 1
        ),
    )


def plan_merges(
    manifests: Sequence[ManifestFile], policy: MergePolicy
) -> list[tuple[ManifestFile, ...]]:
    """Groups of manifests that become one each; those in no group stay.

    Args:
        manifests: Manifests of the next snapshot; merged are only those of one spec and content.
        policy: When and up to which size.
    """
    if not policy.enabled:
        return []
    kinds: dict[tuple[int, int], list[ManifestFile]] = {}
    for manifest in manifests:
        if manifest.manifest_length * 2 <= policy.target_size_bytes:
            kinds.setdefault((manifest.content, manifest.partition_spec_id), []).append(manifest)
    return [
        group
        for small in kinds.values()
        if len(small) >= policy.min_count_to_merge
        for group in _groups(small, policy.target_size_bytes)
    ]


def _groups(
    manifests: Sequence[ManifestFile], target_size_bytes: int
) -> list[tuple[ManifestFile, ...]]:
    groups: list[tuple[ManifestFile, ...]] = []
    group: list[ManifestFile] = []
    group_bytes = taken_entries = 0
    for manifest in sorted(manifests, key=_entry_count):
        if taken_entries and _entry_count(manifest) > GROWTH_MAX * taken_entries:
            break
        if group_bytes + manifest.manifest_length > target_size_bytes:
            groups.append(tuple(group))
            group, group_bytes = [], 0
        group.append(manifest)
        group_bytes += manifest.manifest_length
        taken_entries += _entry_count(manifest)
    groups.append(tuple(group))
    return [each for each in groups if len(each) > 1]


def _entry_count(manifest: ManifestFile) -> int:
    """Entries that a merge has to write; DELETED ones of older snapshots are dropped."""
    return max(manifest.added_files_count + manifest.existing_files_count, 1)
