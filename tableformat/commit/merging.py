"""Which manifests of a branch to merge, so that commits stay cheap however many there were.

Iceberg's own rule merges the newest manifests, once there are `commit.manifest.min-count-to-merge`
of them, together with the result of the last merge: until that has reached the target size, every
entry is rewritten by every merge. Here a merge takes the small manifests and, going up in size,
the next one only while it has at most `GROWTH_MAX` times as many entries as everything taken so
far. So each rewrite of an entry lands it in a manifest 1.5 times as large at least:

* an entry is merged O(log(entries per full manifest)) times in all;
* between merges there are less than min-count manifests below half the full size, and those that a
  merge leaves alone grow by a factor, so they are O(log) many;
* manifests above half the full size are never merged again.

A data manifest is full at `commit.manifest.target-size-bytes`. A delete manifest is full earlier.
Data files stay until they are compacted, but a deletion vector is replaced whenever its data file
loses another row, and replacing it rewrites its manifest. A commit that replaces vectors all over
the table pays for (entries per manifest) x (manifests touched) + (manifests in the list), which is
least near the square root of the live entries: 2,000 vectors are kept 44 to a manifest, a million
of them 1,000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tableformat.spec.properties import property_bool, property_int

# Iceberg has 100, where each merge writes all entries again. By size a merge is cheap, and each
# manifest in the list costs every commit and every reader.
MIN_COUNT_TO_MERGE = 20
GROWTH_MAX = 2
DELETE_ENTRIES_MIN = 32  # below, a manifest costs more by being there than by being rewritten
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """Iceberg's `commit.manifest*` properties."""

    enabled: bool = True
    min_count_to_merge: int = MIN_COUNT_TO_MERGE
    target_size_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Full:
    """When a manifest is full."""

    size_bytes: int
    entries: int

    def is_small(self, manifest: ManifestFile) -> bool:
        """Whether two of its size still fit into one."""
        return (
            manifest.manifest_length * 2 <= self.size_bytes
            and entry_count(manifest) * 2 <= self.entries
        )


def merge_policy(properties: Mapping[str, str]) -> MergePolicy:
    """The table's policy; `InvalidInputError` if a property is malformed."""
    return MergePolicy(
        enabled=property_bool(properties, "commit.manifest-merge.enabled", default=True),
        min_count_to_merge=max(
            property_int(properties, "commit.manifest.min-count-to-merge", MIN_COUNT_TO_MERGE), 2
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
    kinds: dict[tuple[ManifestContent, int], list[ManifestFile]] = {}
    for manifest in manifests:
        kinds.setdefault((manifest.content, manifest.partition_spec_id), []).append(manifest)
    groups: list[tuple[ManifestFile, ...]] = []
    for (content, _), of_kind in kinds.items():
        full = _Full(policy.target_size_bytes, _entries_when_full(content, of_kind))
        small = [each for each in of_kind if full.is_small(each)]
        if len(small) >= policy.min_count_to_merge:
            groups += _groups(small, full)
    return groups


def entry_count(manifest: ManifestFile) -> int:
    """Entries that a merge has to write; DELETED ones of older snapshots are dropped."""
    return max(manifest.live_files_count, 1)


def _entries_when_full(content: ManifestContent, manifests: Sequence[ManifestFile]) -> int:
    if content == ManifestContent.DATA:
        return UNLIMITED
    return max(isqrt(sum(map(entry_count, manifests))), DELETE_ENTRIES_MIN)


def _groups(manifests: Sequence[ManifestFile], full: _Full) -> list[tuple[ManifestFile, ...]]:
    groups: list[tuple[ManifestFile, ...]] = []
    group: list[ManifestFile] = []
    taken = size_bytes = entries = 0
    for manifest in sorted(manifests, key=entry_count):
        count = entry_count(manifest)
        if taken and count > GROWTH_MAX * taken:
            break
        if (
            size_bytes + manifest.manifest_length > full.size_bytes
            or entries + count > full.entries
        ):
            groups.append(tuple(group))
            group, size_bytes, entries = [], 0, 0
        group.append(manifest)
        size_bytes += manifest.manifest_length
        entries += count
        taken += count
    groups.append(tuple(group))
    return [each for each in groups if len(each) > 1]
