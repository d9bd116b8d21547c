"""Exactly once: which staged snapshots each snapshot of main holds, by its marker.

Reads the metadata as JSON; shares no code with icefold.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tests.support.table_checker import Read, read_metadata

MARKER = "equality-convert-staging-snapshot"


def markers(read: Read, metadata_location: str) -> list[tuple[int, int | None]]:
    """Snapshots of main that are retained, oldest first, each with its marker."""
    metadata = read_metadata(read, metadata_location)
    by_id = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    found: list[tuple[int, int | None]] = []
    current = by_id.get(metadata["refs"]["main"]["snapshot-id"])
    while current is not None:
        marker = current["summary"].get(MARKER)
        found.append((current["snapshot-id"], None if marker is None else int(marker)))
        current = by_id.get(current.get("parent-snapshot-id"))
    return found[::-1]


def check_exactly_once(read: Read, metadata_location: str, staged: Sequence[int]) -> None:
    """Markers lead along `staged`, in its order, to its end: no gap, no overlap, nothing twice.

    A marker says that all staged snapshots up to it are in. Who publishes none repeats it.
    """
    seen = [marker for _, marker in markers(read, metadata_location)]
    steps = [marker for marker, _ in itertools.groupby(seen)]
    assert None not in steps[1:], "the position was forgotten"
    positions = [staged.index(marker) for marker in steps if marker is not None]
    assert positions == sorted(set(positions)), "a staged snapshot was published twice"
    assert positions[-1] == len(staged) - 1, "a staged snapshot was not published"
