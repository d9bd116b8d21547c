"""What is staged, read from the state of the staging head instead of the branch's log.

Where others have expired unpublished staged snapshots, the log of the branch is gone, and nothing
else: the head still lists every data file and delete with its data sequence number, and sequence
numbers order the commits of one branch. So each sequence number stands for one staged commit.

What is staged is newer than the target's snapshot that staging stands on, and than the last staged
snapshot that was published. Both are numbers that icefold's commits repeat in their summaries, and
older metadata files tell them as long as they are there; else the first is told by what the target
has, where its own log is whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from pyiceberg.table.snapshots import Snapshot

from resolver.cursor import covers_staged, down_to_base
from resolver.former_versions import with_expired_snapshots
from resolver.staged_snapshots import StagedSnapshot
from resolver.target import live_entries
from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import load_manifest_list
from tableformat.commit.branch_history import (
    branch_history,
    committed_by_log,
    committed_to,
    is_first,
    load_changes,
    snapshots_by_id,
    summary_of,
)
from tableformat.commit.carried_properties import published_number
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec.data_file import FileContent, ManifestEntry
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.manifest_file import ManifestFile
from tableformat.spec.names import STAGING_BASE, STAGING_BASE_PUBLISHED

NAMED_MAX = 20  # sequence numbers in a refusal


def load_staging_state(
    environment: Environment,
    state: TableState,
    *,
    staging: str,
    target: str,
    staged_after: int | None = None,
) -> list[StagedSnapshot]:
    """The staged commits of the staging head's state, oldest first; their `snapshot` is the head.

    Args:
        environment: Where older metadata files are read, and manifests: those of the head that are
            newer than the answer, and of the target.
        state: The table version.
        staging: The branch whose changes are resolved.
        target: The branch they are published to.
        staged_after: Operator's word: the highest sequence number that is not staged.

    Raises:
        InvalidInputError: It cannot be told which sequence numbers are staged.
        UnsupportedError: Data files of the target were removed on staging.
    """
    head = state.head(staging)
    assert head is not None, "the caller has looked for it"
    known = with_expired_snapshots(environment, state)
    base = _base_in_log(known, head, staging, target)
    if staged_after is None:
        published = published_number(known.metadata, known.head_id(target), staging=staging)
        staged_after = _staged_after(environment, state, head, staging, target, base, published)
    if base is not None:
        _check_nothing_was_removed(environment, state, head, target, base.number)
    above, _ = down_to_base(known, head, staging=staging, target=target)
    number = staged_after if base is None else base.number
    _check_nothing_is_said_to_be_removed(environment, state, above, target, number)
    listed = load_manifest_list(environment.store, head)
    newer = [each for each in listed if (each.sequence_number or 0) > staged_after]
    by_number: dict[int, list[ManifestEntry]] = defaultdict(list)
    # Before a rollback, too. A publish is left to the numbers: it stands for what it covers.
    by_id = snapshots_by_id(known.metadata)
    was_target = {
        i for i in committed_by_log(known.metadata, target) if not covers_staged(by_id[i])
    }
    for entry in live_entries(environment.store, newer):
        if _number(entry) > staged_after and entry.snapshot_id not in was_target:
            by_number[_number(entry)].append(entry)
    return [
        StagedSnapshot.of(number, head, entries, _spec_ids(listed, number), replaced=None)
        for number, entries in sorted(by_number.items())
    ]


def _spec_ids(listed: Iterable[ManifestFile], number: int) -> frozenset[int]:
    """Partition specs of what was live when a sequence number was committed; nothing leaves."""
    return frozenset(
        each.partition_spec_id
        for each in listed
        if each.has_live_files and (each.min_sequence_number or 0) <= number
    )


def _staged_after(
    environment: Environment,
    state: TableState,
    head: Snapshot,
    staging: str,
    target: str,
    base: _Base | None,
    published: int | None,
) -> int:
    """The highest sequence number that is not staged."""
    if published is not None and base is not None:
        if (base.published or 0) > published:
            raise _rolled_back(state, staging, target, base, published)
        return max(base.number, published)
    shared = None if published is None else _base_in_state(environment, state, head, target)
    if published is None or shared is None:
        raise _unknown(environment, state, head, staging, target, base)
    return max(shared, published)


def _check_nothing_was_removed(
    environment: Environment, state: TableState, head: Snapshot, target: str, base: int
) -> None:
    """Refuse a state whose removed files nothing names: their rows would stay on the target.

    Of data files that are as old as `base`, staging had all that the target has, or has removed
    since. Not seen is what has left the target in a history that has expired; what is left of the
    log of staging may say it (`_check_nothing_is_said_to_be_removed`).
    """
    numbers = {each.sequence_number or 0: each for each in branch_history(state, target)}
    if base not in numbers and min(numbers, default=0) < base:
        return  # the target was rolled back behind it, and may have files that had left it
    history = [each for number, each in numbers.items() if number > base]
    removed = (e for each in history for e in load_changes(environment.store, each).removed_data)
    there = _entries(environment, target_head) if (target_head := state.head(target)) else ()
    old = {
        entry.data_file.file_path
        for entry in chain(there, removed)
        if entry.data_file.content == FileContent.DATA and (entry.file_sequence_number or 0) <= base
    }
    missing = old - {entry.data_file.file_path for entry in _entries(environment, head)}
    if missing:
        raise _removed(state, target, location=min(missing), files=len(missing))


def _check_nothing_is_said_to_be_removed(
    environment: Environment, state: TableState, staged: Iterable[Snapshot], target: str, base: int
) -> None:
    """Refuse a state of which a snapshot that is still there removed files as old as `base`.

    They may have left the target as well, in a history that has expired: their rows are elsewhere.
    """
    by_id = snapshots_by_id(state.metadata)
    for each in staged:
        if each.snapshot_id not in by_id:
            continue  # its manifests may be gone
        removed = load_changes(environment.store, each).removed_data
        old = [e.data_file.file_path for e in removed if (e.file_sequence_number or 0) <= base]
        if old:
            raise _removed(
                state, target, location=min(old), files=len(old), snapshot_id=each.snapshot_id
            )


def _removed(state: TableState, target: str, **found: str | int) -> UnsupportedError:
    return UnsupportedError(
        "a staged snapshot has removed data files of the target, and the log that says which "
        "has expired",
        table=state.name,
        branch=target,
        **found,
        action="the branch's state does not tell what became of their rows: stage what that "
        "statement changed as upserts and deletes, on a new staging branch",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """The target's snapshot that staging stands on.

    Attributes:
        number: Its sequence number, or that of a staged snapshot which the target was
            fast-forwarded to.
        published: That of the last staged snapshot that it knows to be published; None: it is in
            the target's history, or nothing tells.
    """

    number: int
    published: int | None = None


def _base_in_log(state: TableState, head: Snapshot, staging: str, target: str) -> _Base | None:
    """What the log that is left says of the target's snapshot that staging stands on."""
    chain = list(branch_history(state, target))
    on_target = {each.snapshot_id for each in chain}
    forwarded_to = max(
        (each.sequence_number or 0 for each in chain if committed_to(each) == staging), default=0
    )
    above, base = down_to_base(state, head, staging=staging, target=target)
    for snapshot in above:
        summary = summary_of(snapshot)
        number = parse_decimal(summary.get(STAGING_BASE, ""))
        if number is not None:
            published = parse_decimal(summary.get(STAGING_BASE_PUBLISHED, ""))
            return _Base(number=max(number, forwarded_to), published=published)
    if base is None:
        return None
    number = max(base.sequence_number or 0, forwarded_to)
    if base.snapshot_id in on_target:
        return _Base(number=number)
    published = published_number(state.metadata, base.snapshot_id, staging=staging)
    return _Base(number=number, published=published)


def _base_in_state(
    environment: Environment, state: TableState, head: Snapshot, target: str
) -> int | None:
    """The newest file that the two heads share; None if the target may have removed newer ones."""
    target_head = state.head(target)
    if target_head is None:
        return 0
    shared = _identities(environment, target_head)
    numbers = [
        _number(entry) for entry in _entries(environment, head) if _identity(entry) in shared
    ]
    base = max(numbers, default=0)
    for snapshot in branch_history(state, target):
        if (snapshot.sequence_number or 0) <= base:
            return base
        if load_changes(environment.store, snapshot).removed:
            return None
        if is_first(snapshot):
            return base
    return None


def _rolled_back(
    state: TableState, staging: str, target: str, base: _Base, published: int
) -> InvalidInputError:
    return InvalidInputError(
        "the target was rolled back behind publishes that the staging branch stands on, or was "
        f"replaced, and the history of what they brought (sequence numbers {published + 1} to "
        f"{base.published}) is gone: the branch need not list those changes any more",
        table=state.name,
        staging=staging,
        target=target,
        action=f"move {target} forward to a snapshot that has them; to give them up, say so: "
        f"--staged-after {base.number}",
    )


def _unknown(
    environment: Environment,
    state: TableState,
    head: Snapshot,
    staging: str,
    target: str,
    base: _Base | None,
) -> InvalidInputError:
    target_head = state.head(target)
    shared = set() if target_head is None else _identities(environment, target_head)
    own = [e for e in _entries(environment, head) if _identity(e) not in shared]
    files = Counter(_number(entry) for entry in own)
    named = ", ".join(f"{number} ({files[number]})" for number in sorted(files)[-NAMED_MAX:])
    stands_on = (
        ""
        if base is None
        else f"; where nothing was published since the branch left {target}, N is {base.number}"
    )
    return InvalidInputError(
        "cannot tell which files of the staging branch are staged: the history of both branches "
        f"is gone; sequence numbers (files) that the target lacks: {named or 'none'}",
        table=state.name,
        staging=staging,
        target=target,
        action="name the highest sequence number that is not staged, or that was published, with "
        f"--staged-after N{stands_on}",
    )


def _entries(environment: Environment, snapshot: Snapshot) -> Iterable[ManifestEntry]:
    return live_entries(environment.store, load_manifest_list(environment.store, snapshot))


def _identities(environment: Environment, snapshot: Snapshot) -> set[object]:
    return {_identity(entry) for entry in _entries(environment, snapshot)}


def _identity(entry: ManifestEntry) -> object:
    return entry.data_file.identity


def _number(entry: ManifestEntry) -> int:
    assert entry.sequence_number is not None, "entries read from a manifest have inherited it"
    return entry.sequence_number
