"""What a publish says about its cycle in the snapshot's summary: a bounded number of figures.

So the table's own history tells how fresh it was kept, and where the time went, to whoever reads
it. Phases that come after the commit are not in it. They are not repeated by later commits.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

from pyiceberg.table.snapshots import Snapshot

from tableformat.commit.branch_history import summary_of
from tableformat.commit.snapshot_ages import committed_ms
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import SOURCE_MS, SOURCE_SNAPSHOT_ID, STAGED_COMMITS

PREFIX = "icefold.cycle-"
# The comment above each key is its line in the documentation's reference.

# When the oldest commit that the cycle published was staged, by the wall clock; with the snapshot's
# time: the freshness.
OLDEST_STAGED_MS = f"{PREFIX}oldest-staged-ms"
# The same by the source's clock, where a writer says it.
OLDEST_SOURCE_MS = f"{PREFIX}oldest-source-ms"
# Equality deletes that it resolved.
EQUALITY_DELETES = f"{PREFIX}equality-deletes"
# Rows that they hid.
DELETED_ROWS = f"{PREFIX}deleted-rows"
# `rewrite`: its data files are not the staged ones.
PUBLISHED_BY = f"{PREFIX}publish"
# Hashes of the staged files that it covered, unless they are many: by them a file is known that a
# writer commits once more.
FILE_HASHES = f"{PREFIX}file-hashes"
# + phase: milliseconds, up to the commit.
PHASE_MS = f"{PREFIX}ms."

HASH_BYTES = 8
HASHED_FILES_MAX = 500  # 5 kB of the summary
# Of a publish by `rewrite`, which does not list them: 21 kB.
HASHED_REWRITTEN_FILES_MAX = 2_000


def cycle_figures(
    covered: Sequence[Snapshot],
    *,
    equality_deletes: int,
    deleted_rows: int,
    phases_ms: Mapping[str, float],
    rewrites: bool = False,
) -> dict[str, str]:
    """The summary properties of a cycle over the staged snapshots `covered`."""
    times = [committed_ms(snapshot) for snapshot in covered]
    figures = {
        STAGED_COMMITS: str(len(times)),
        EQUALITY_DELETES: str(equality_deletes),
        DELETED_ROWS: str(deleted_rows),
    }
    if rewrites:
        figures[PUBLISHED_BY] = "rewrite"
    if times:
        figures[OLDEST_STAGED_MS] = str(min(times))
    if any(_source_ms(snapshot) is not None for snapshot in covered):
        figures[OLDEST_SOURCE_MS] = str(min(_made_ms(snapshot) for snapshot in covered))
    figures |= {f"{PHASE_MS}{phase}": f"{spent:.0f}" for phase, spent in phases_ms.items()}
    return figures


def file_hash(path: str) -> bytes:
    """Eight bytes that stand for a file's location. On disk: never change."""
    return blake2b(path.encode(), digest_size=HASH_BYTES).digest()


def file_hashes(paths: Collection[str], *, rewrites: bool) -> dict[str, str]:
    """The summary property by which a publish is asked whether it covered a file.

    None of many files: those are looked up in the log of the staging branch.
    """
    if len(paths) > (HASHED_REWRITTEN_FILES_MAX if rewrites else HASHED_FILES_MAX):
        return {}
    hashes = b"".join(sorted(map(file_hash, paths)))
    return {FILE_HASHES: base64.b64encode(hashes).decode()}


def hashes_of(publish: Snapshot) -> frozenset[bytes] | None:
    """The hashes of the staged files that a publish covered; None: it does not tell."""
    text = summary_of(publish).get(FILE_HASHES)
    try:
        hashes = b"" if text is None else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if text is None or len(hashes) % HASH_BYTES:
        return None
    return frozenset(hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES))


def staged_commits(publish: Snapshot) -> int:
    """How many staged snapshots a publish covered."""
    return parse_decimal(summary_of(publish).get(STAGED_COMMITS, "")) or 0


def is_publish(snapshot: Snapshot | None) -> bool:
    """Whether a snapshot was made by a cycle of the resolver; a cherry-pick of one was not."""
    summary = summary_of(snapshot)
    return STAGED_COMMITS in summary and SOURCE_SNAPSHOT_ID not in summary


def is_rewriting_publish(snapshot: Snapshot) -> bool:
    """Whether a cycle has written the rows of its staged snapshots into files of its own."""
    return is_publish(snapshot) and summary_of(snapshot).get(PUBLISHED_BY) == "rewrite"


def freshness_ms(published: Snapshot, covered: Iterable[Snapshot]) -> int:
    """Age of the oldest staged snapshot when it was published; 0 without any.

    Counted from the newest change in it, by the source's clock where the writer says that.
    """
    oldest = min((_made_ms(snapshot) for snapshot in covered), default=committed_ms(published))
    return max(committed_ms(published) - oldest, 0)


def _made_ms(snapshot: Snapshot) -> int:
    """When its changes were made: in the source, or else the time of its commit."""
    source_ms = _source_ms(snapshot)
    return committed_ms(snapshot) if source_ms is None else source_ms


def _source_ms(snapshot: Snapshot) -> int | None:
    properties = summary_of(snapshot)
    return parse_decimal(properties.get(SOURCE_MS, ""))
