"""Summary properties that outlive the snapshot that set them.

* the staging marker: how far a target has got with its staging branch;
* the highest token of each fence;
* what streaming writers say about their last commit, by which they find it when they come back.

Every own commit repeats them, so the newest own snapshot knows all of them and expiry cannot lose
one (docs/design/0003). Other writers do not repeat anything; so the walk back passes
their snapshots, and ends at the first own one.

A staging commit repeats fence tokens and the last batch of each query. It repeats no marker: both
the Flink converter and the resolver skip a staged snapshot that carries one. It therefore ends the
walk for another one alone. It says what the branch stands on, so that the staged changes can be
told from the branch's state alone once its log has expired.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tableformat.commit.branch_history import (
    committed_by_log,
    committed_to,
    is_first,
    snapshots_by_id,
    summary_of,
    walk_back,
)
from tableformat.commit.changeset import Changeset, Fence
from tableformat.errors import FencedError
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import (
    BATCH_ID,
    BATCH_STANDS_ON,
    BATCH_TABLES,
    CARRIED,
    COMMITTED_TO,
    CUT,
    FENCE_NAME,
    FENCE_TOKEN,
    FORWARDED_TO,
    MARKER_SEQUENCE_NUMBER,
    OTHER_QUERY_BATCH,
    OTHER_QUERY_SOURCE,
    QUERY_ID,
    SOURCE_EVENTS,
    SOURCE_MS,
    SOURCE_OFFSETS,
    SOURCE_TOPICS,
    SOURCE_TRANSACTION,
    STAGED_EPOCH,
    STAGING_BASE,
    STAGING_BASE_PUBLISHED,
    STAGING_BRANCH,
    STAGING_MARKER,
    WRITER_PREFIXES,
)

_TOKEN_OF = f"{FENCE_TOKEN}."  # + fence name: the highest token seen, whoever commits
_OF_WRITERS = (*WRITER_PREFIXES, OTHER_QUERY_BATCH, OTHER_QUERY_SOURCE, STAGED_EPOCH)
# What a batch says beside its number; those of the next one replace all of them.
_NOT_OF_ALL = (SOURCE_EVENTS, BATCH_TABLES, SOURCE_TOPICS, SOURCE_TRANSACTION, BATCH_STANDS_ON)
OF_SOURCE = (SOURCE_OFFSETS, *_NOT_OF_ALL)
# Every snapshot repeats them, so jobs that take a new query id for each run must not add up.
OTHER_QUERIES_MAX = 256
_REPEATED = (*_OF_WRITERS, CUT)  # and the tables of the cut, whose key begins the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a branch's history holds; `writers` as in `writer_properties`.

    `forwarded_to`: the sequence number of the last staged snapshot that the branch was
    fast-forwarded to, and its staging branch. `is_whole`: nothing that the history once said is
    missing here; it would be if an expired snapshot cut the walk.
    """

    marker: str | None = None
    marker_sequence_number: int | None = None
    forwarded_to: tuple[int, str] | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    writers: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = True


def load_carried(
    by_id: Mapping[int, Snapshot],
    head_id: int | None,
    metadata: TableMetadata | None = None,
    staging: str | None = None,
    *,
    is_staged: bool = False,
) -> Carried:
    """Read the summaries from `head_id` back to the newest own commit.

    With `metadata`, what other tools staged counts as what the branch was fast-forwarded to: that
    are their commits which the staging branch has as well, and which were not made to `main`.
    `staging`: that branch, where no commit tells it. `is_staged`: for a commit that is staged,
    which repeats fence tokens and batches: the walk ends at a staged commit of icefold, which has
    done so, however many wait below it.
    """
    marker: str | None = None
    number: int | None = None
    forwarded_to: tuple[int, str] | None = None
    tokens: dict[str, int] = {}
    passed: list[Mapping[str, str]] = []
    others: list[Snapshot] = []  # commits above the one that says what it was forwarded to
    is_whole = head_id is None
    for snapshot in walk_back(by_id, head_id):
        is_whole = is_first(snapshot)
        summary = summary_of(snapshot)
        passed.append(summary)
        if marker is None and (marker := summary.get(STAGING_MARKER)) is not None:
            number = _marker_number(by_id, summary)
        if forwarded_to is None:
            forwarded_to = _forwarded_to(snapshot)
            others += [snapshot] if COMMITTED_TO not in summary else []
        for name, token in _tokens(summary).items():
            tokens[name] = max(token, tokens.get(name, token))
        if CARRIED in summary or (is_staged and STAGING_BASE in summary):
            is_whole = True
            break
    branch = forwarded_to[1] if forwarded_to else staging or _staging_of(by_id, marker)
    return Carried(
        is_whole=is_whole,
        marker=marker,
        marker_sequence_number=number,
        forwarded_to=_last_staged(metadata, others, branch) or forwarded_to,
        tokens=tokens,
        writers=writer_properties(reversed(passed)),
    )


def _marker_number(by_id: Mapping[int, Snapshot], summary: Mapping[str, str]) -> int | None:
    """Flink's converter writes the marker alone: then only the staged snapshot knows its number."""
    marked = by_id.get(parse_decimal(summary[STAGING_MARKER]) or 0)
    if marked is not None:
        return marked.sequence_number
    return parse_decimal(summary.get(MARKER_SEQUENCE_NUMBER, ""))


def _last_staged(
    metadata: TableMetadata | None, others: Sequence[Snapshot], branch: str
) -> tuple[int, str] | None:
    """The number of the newest of some commits, newest first, that were staged to `branch`."""
    ref = None if metadata is None else metadata.refs.get(branch)
    if metadata is None or ref is None or not others:
        return None
    oldest = others[-1].sequence_number or 0
    history = walk_back(snapshots_by_id(metadata), ref.snapshot_id)
    newer = takewhile(lambda each: (each.sequence_number or 0) >= oldest, history)
    ids = {each.snapshot_id for each in newer}
    shared = [each for each in others if each.snapshot_id in ids]
    elsewhere = committed_by_log(metadata) if shared else ()
    staged = (e.sequence_number for e in shared if e.snapshot_id not in elsewhere)
    number = next(staged, None)
    return None if number is None else (number, branch)


def _staging_of(by_id: Mapping[int, Snapshot], marker: str | None) -> str:
    """The staging branch, by its last published snapshot."""
    marked = by_id.get(parse_decimal(marker or "") or 0)
    return (None if marked is None else committed_to(marked)) or STAGING_BRANCH


def _forwarded_to(snapshot: Snapshot) -> tuple[int, str] | None:
    """What a commit repeats of it; a staged one is what its branch was forwarded to."""
    summary = summary_of(snapshot)
    if STAGING_BASE in summary and COMMITTED_TO in summary:
        return snapshot.sequence_number or 0, summary[COMMITTED_TO]
    number, _, branch = summary.get(FORWARDED_TO, "").partition(" ")
    known = parse_decimal(number)
    return None if known is None else (known, branch)


def staging_base(
    metadata: TableMetadata, parent_id: int | None, *, branch: str, main_id: int | None
) -> dict[str, str]:
    """What a staged commit on top of `parent_id` says of the target's snapshot below the branch.

    That is the newest one below that was committed elsewhere, or that is in the history of main:
    another tool's commit, or a staged one that main was fast-forwarded to. Beside its number stands
    what it knew to be published, unless nothing tells any more.
    """
    by_id = snapshots_by_id(metadata)
    for snapshot in walk_back(by_id, parent_id):
        summary = summary_of(snapshot)
        elsewhere = summary.get(COMMITTED_TO, branch) != branch
        if elsewhere or _is_in_history(by_id, main_id, snapshot):
            base = {STAGING_BASE: str(snapshot.sequence_number or 0)}
            published = published_number(metadata, snapshot.snapshot_id, staging=branch)
            return base if published is None else base | {STAGING_BASE_PUBLISHED: str(published)}
        if STAGING_BASE in summary:
            known = (STAGING_BASE, STAGING_BASE_PUBLISHED)
            return {name: summary[name] for name in known if name in summary}
    return {STAGING_BASE: "0", STAGING_BASE_PUBLISHED: "0"} if parent_id is None else {}


def published_number(metadata: TableMetadata, head_id: int | None, *, staging: str) -> int | None:
    """Sequence number of the last staged snapshot that a target's history says was published.

    One of `staging` that it was fast-forwarded to counts. 0: it says that none was. None: it does
    not say.
    """
    by_id = snapshots_by_id(metadata)
    carried = load_carried(by_id, head_id, metadata, staging)
    number, branch = carried.forwarded_to or (None, None)
    forwarded = number if branch == staging else None
    if carried.marker is None:
        return 0 if forwarded is None and carried.is_whole else forwarded
    number = carried.marker_sequence_number
    return None if number is None else max(number, forwarded or 0)


def _is_in_history(by_id: Mapping[int, Snapshot], head_id: int | None, snapshot: Snapshot) -> bool:
    """Whether `head_id` descends from `snapshot`; looks at newer commits only."""
    number = snapshot.sequence_number or 0
    newer = takewhile(lambda e: (e.sequence_number or 0) >= number, walk_back(by_id, head_id))
    return any(each.snapshot_id == snapshot.snapshot_id for each in newer)


def writer_properties(summaries: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """What is to be repeated of what summaries, oldest first, say about their writers.

    A summary has one place for a query; the batch of a query that loses it moves aside, where the
    `OTHER_QUERIES_MAX` that came last are kept; of a stream into many tables and of files, whose
    offsets are nowhere else, with what it says of its source. As many staged epochs are kept. Of
    several Flink writers it can hold one only, the last. The source's time is the highest of all:
    what a restarted connector sends again is old.
    """
    kept: dict[str, str] = {}
    for summary in summaries:
        _give_place(kept, summary.get(QUERY_ID))
        latest = _latest(kept.get(SOURCE_MS), summary.get(SOURCE_MS))
        for key in (each for each in summary if each.startswith(STAGED_EPOCH)):
            kept.pop(key, None)  # to the end of the order
        stale = _stale(kept, summary)
        said = (each for each in summary.items() if each[0] not in stale)
        kept.update({key: text for key, text in said if key.startswith(_REPEATED)})
        kept.update(latest)
    others = [key for key in kept if key.startswith(OTHER_QUERY_BATCH)]  # in order of displacement
    for key in others[:-OTHER_QUERIES_MAX]:
        del kept[key]
        kept.pop(OTHER_QUERY_SOURCE + key.removeprefix(OTHER_QUERY_BATCH), None)
    for key in [key for key in kept if key.startswith(STAGED_EPOCH)][:-OTHER_QUERIES_MAX]:
        del kept[key]
    return kept


def _give_place(kept: dict[str, str], query_id: str | None) -> None:
    old = kept.get(QUERY_ID)
    if query_id is None:
        return
    if query_id == old:
        for key in _NOT_OF_ALL:
            kept.pop(key, None)
        return
    kept.pop(OTHER_QUERY_BATCH + query_id, None)
    kept.pop(OTHER_QUERY_SOURCE + query_id, None)
    source = {key: kept.pop(key) for key in OF_SOURCE if key in kept}
    if old is not None and BATCH_ID in kept:
        kept[OTHER_QUERY_BATCH + old] = kept[BATCH_ID]
        if BATCH_TABLES in source or SOURCE_EVENTS in source:
            kept[OTHER_QUERY_SOURCE + old] = json.dumps(source)


def _stale(kept: Mapping[str, str], summary: Mapping[str, str]) -> set[str]:
    """What a commit repeats of queries that had gone on elsewhere."""
    found: set[str] = set()
    for key in (each for each in summary if each.startswith(OTHER_QUERY_BATCH)):
        query = key.removeprefix(OTHER_QUERY_BATCH)
        known = kept.get(BATCH_ID if kept.get(QUERY_ID) == query else key)
        if known is not None and (parse_decimal(known) or 0) >= (parse_decimal(summary[key]) or 0):
            found |= {key, OTHER_QUERY_SOURCE + query}
    return found


def _latest(*times: str | None) -> dict[str, str]:
    """The highest of the times that are numbers."""
    known = [ms for text in times if (ms := parse_decimal(text or "")) is not None]
    return {SOURCE_MS: str(max(known))} if known else {}


def carries_marker(changeset: Changeset) -> bool:
    """Whether a commit of `changeset` repeats the marker, and what is known of writers."""
    if changeset.carry_marker is not None:
        return changeset.carry_marker
    return changeset.branch != STAGING_BRANCH


def carried_properties(carried: Carried, changeset: Changeset) -> dict[str, str]:
    """Summary properties that a commit of `changeset` adds."""
    tokens = dict(carried.tokens)
    properties: dict[str, str] = {}
    if changeset.fence is not None:
        tokens[changeset.fence.name] = changeset.fence.token
        properties[FENCE_NAME] = changeset.fence.name
        properties[FENCE_TOKEN] = str(changeset.fence.token)
    properties.update({f"{_TOKEN_OF}{name}": str(token) for name, token in sorted(tokens.items())})
    if carries_marker(changeset):
        if carried.is_whole or STAGING_MARKER in changeset.summary:
            properties[CARRIED] = "true"
        properties.update(writer_properties([carried.writers, changeset.summary]))
        if carried.marker is not None:
            properties[STAGING_MARKER] = carried.marker
            if carried.marker_sequence_number is not None:
                properties[MARKER_SEQUENCE_NUMBER] = str(carried.marker_sequence_number)
        if carried.forwarded_to is not None:
            properties[FORWARDED_TO] = "{} {}".format(*carried.forwarded_to)
    else:
        properties.update(_batches_aside(carried.writers, changeset.summary))
    return properties


def _batches_aside(writers: Mapping[str, str], summary: Mapping[str, str]) -> dict[str, str]:
    """The last batches of other queries than the commit's own, if it has one."""
    known = writer_properties([writers, summary])
    if QUERY_ID not in summary:
        _give_place(known, "")
    aside = (OTHER_QUERY_BATCH, OTHER_QUERY_SOURCE)
    return {key: text for key, text in known.items() if key.startswith(aside)}


def check_fence(fence: Fence | None, carried: Carried, *, branch: str) -> None:
    """Refuse a holder that has been overtaken (I17).

    Raises:
        FencedError: The branch has seen a higher token of the same name.
    """
    if fence is None:
        return
    seen = carried.tokens.get(fence.name)
    if seen is not None and seen > fence.token:
        raise FencedError(
            "commit refused: a newer holder of the lock has committed",
            action="stop this writer",
            branch=branch,
            fence=fence.name,
            token=fence.token,
            seen=seen,
        )


def _tokens(summary: Mapping[str, str]) -> dict[str, int]:
    tokens = {
        key.removeprefix(_TOKEN_OF): token
        for key, value in summary.items()
        if key.startswith(_TOKEN_OF) and (token := parse_decimal(value)) is not None
    }
    name, own = summary.get(FENCE_NAME), parse_decimal(summary.get(FENCE_TOKEN, ""))
    if name is not None and own is not None:
        tokens[name] = max(own, tokens.get(name, 0))
    return tokens
