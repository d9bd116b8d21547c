"""Staged data files that are on the target already.

A cherry-pick of a staged snapshot, a tool that adds its files, a writer that commits a file once
more after it was published: the file would be listed, and its rows counted, twice. So

* a staged file that is live on the target is not added again. Its rows there are staged rows: they
  keep the place in the order that their staged snapshot has, and what the target has deleted of
  them stays deleted. So are rows that the target has moved out of it by an UPDATE: they have kept
  their row ids;
* one that has been on the target since it was staged and has left it again is not added either.
  Its rows are where a rewrite took them, told by the row ids that they got on the target;
* one that a publish brought there is named a second time: its place is that of the first time. The
  delete files that came with it then and come again are dropped; others that come with it the
  second time do not reach its rows;
* a limit is exceeded as far as others have brought later staged snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
from pyiceberg.table.snapshots import Operation, Snapshot

from resolver.cursor import base_of, down_to_base
from resolver.cycle_figures import (
    file_hash,
    hashes_of,
    is_publish,
    is_rewriting_publish,
    staged_commits,
)
from resolver.cycle_input import CycleInput
from resolver.index.base import Matches
from resolver.match import TARGET_ORDER, Bools, Int64s
from resolver.resolution import DeadRows, MatchedBatch
from resolver.rewritten_rows import rewriting_publishes
from resolver.row_identity import NO_ROW_ID
from resolver.row_values import ColumnReader
from resolver.staged_snapshots import names_of, sequence_numbers_of
from resolver.target_deletes import files_with_deletes
from resolver.target_row_ids import row_ids_of
from resolver.target_view import TargetView
from tableformat.catalog.base import TableState
from tableformat.commit.branch_history import (
    SnapshotChanges,
    branch_history,
    committed_to,
    is_first,
    load_changes,
    snapshots_by_id,
    summary_of,
)
from tableformat.errors import UnsupportedError
from tableformat.integer_order import distinct, stable_order
from tableformat.scan.delete_index import referenced_path
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.spec.names import ROW_ID_FIELD_ID, SOURCE_SNAPSHOT_ID, STAGED_COMMITS

NO_ROW = -1
NEWEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOnTarget:
    """Staged data files that the target has, or had.

    Attributes:
        left: Those that are not live there any more, by path, as they were there: with the row ids
            that they had.
        thinned: Those that are live with deletes by position: an UPDATE may have moved rows.
        published: Paths of those, live or not, that a publish brought.
        repeated: Other files of staged snapshots that repeat published ones: delete files, and data
            files in which every row had died before the publish.
        written_anew: Data files of those whose rows a publish has written into other files.
    """

    left: Mapping[str, DataFile]
    thinned: Mapping[str, DataFile]
    published: frozenset[str]
    repeated: frozenset[str]
    written_anew: frozenset[str] = frozenset()

    @property
    def not_added(self) -> frozenset[str]:
        """Staged data files that are neither live there nor to be added."""
        return self.repeated | self.left.keys()

    @property
    def moved(self) -> dict[str, DataFile]:
        """Those whose rows may be in other files of the target."""
        return {**self.thinned, **self.left}

    def placed(self, batch: CycleInput) -> CycleInput:
        """The batch, with files that were published before in the place of the target's."""
        if not self.published and not self.repeated:
            return batch
        before = self.published | self.repeated
        files = [
            replace(each, order=TARGET_ORDER, again=(each.order, *each.again))
            if each.file.file_path in before
            else each
            for each in batch.files
        ]
        elsewhere = [each for each in batch.own_positions if each.path in self.written_anew]
        return replace(
            batch,
            files=tuple(files),
            own_positions=tuple(
                each for each in batch.own_positions if each.path not in self.written_anew
            ),
            target_positions=(*batch.target_positions, *elsewhere),
            deletes=batch.deletes.without(self.repeated),
            other_deletes=tuple(each.without(self.repeated) for each in batch.other_deletes),
        )


def _named_before(view: TargetView, batch: CycleInput) -> tuple[frozenset[str], frozenset[str]]:
    """Files that older staged snapshots name, as far as the log goes down to the target.

    icefold's own commits name none again, so for a batch of them nothing is read. Publishes say by
    hashes what they covered, as long as they are in the target's history: what the snapshots named
    whose rows they wrote anew is not read again.

    Returns:
        All of them, at least those that the batch names, too; and those that publishes covered by
        writing their rows anew, since the target does not list these.
    """
    state, staging, target, store = view.state, view.staging, view.target, view.environment.store
    if _is_own(batch, staging):
        return frozenset(), frozenset()
    oldest = batch.staged[0]
    numbers = (number for each in batch.staged for number in sequence_numbers_of(each))
    since = min(numbers, default=0)  # the oldest may have no files
    below, _ = down_to_base(state, oldest.snapshot, staging=staging, target=target)
    hashes = {file_hash(path): path for path in names_of(batch.staged)}
    rewritten: dict[int, Snapshot] = {}
    names: set[str] = set()
    told: set[int] = set()
    for publish, covered in rewriting_publishes(view):
        rewritten |= {each.snapshot_id: each for each in covered}
        known = hashes_of(publish)
        if known is not None:
            names |= {hashes[each] for each in hashes.keys() & known}
            told |= {each.snapshot_id for each in covered[: staged_commits(publish)]}
    written_anew = set(names)
    for publish in filter(is_publish, branch_history(state, target)):
        names |= {hashes[each] for each in hashes.keys() & (hashes_of(publish) or frozenset())}
    for snapshot in ({each.snapshot_id: each for each in below} | rewritten).values():
        if snapshot.snapshot_id in told or (snapshot.sequence_number or 0) >= since:
            continue  # or of the batch, where that is read from the head's state
        added = {e.data_file.file_path for e in load_changes(store, snapshot).added}
        names |= added
        if snapshot.snapshot_id in rewritten:
            written_anew |= added
    return frozenset(names), frozenset(written_anew)


def _check_deletes_are_repeated(
    state: TableState, batch: CycleInput, written_anew: frozenset[str], repeated: frozenset[str]
) -> None:
    """Other deletes beside a repeated file would kill its rows where a publish wrote them."""
    for each in batch.staged:
        again = {entry.data_file.file_path for entry in each.data_files} & written_anew
        others = {entry.data_file.file_path for entry in each.equality_deletes} - repeated
        if again and others:
            raise UnsupportedError(
                "a staged commit repeats a file whose rows a publish has written anew, with other "
                "deletes than the first one: whether they mean those rows cannot be told",
                table=state.name,
                location=min(others),
                snapshot_id=each.snapshot.snapshot_id,
                action="look at that commit; --from-snapshot with its id goes on without it",
            )


def _repeated(
    batch: CycleInput, named: frozenset[str], published: frozenset[str], brought: Collection[str]
) -> frozenset[str]:
    """What staged snapshots repeat of published ones: files that are `named` before.

    Where the published snapshot has expired, all that a snapshot names beside a data file that a
    publish has brought: a writer names a file once, or repeats its commit.
    """
    found = set(named)
    for each in batch.staged:
        paths = {entry.data_file.file_path for entry in each.data_files}
        if not paths & named and (not paths.isdisjoint(brought) or (paths and paths <= published)):
            found |= paths | {entry.data_file.file_path for entry in each.equality_deletes}
    return frozenset(found)


def brought_by_others(view: TargetView, later: Sequence[Snapshot]) -> int:
    """How many of some staged snapshots, oldest first, end with one that others have brought.

    Their rows on the target are staged ones with a later place, so a cycle covers all or none.
    Cost: nothing but a walk unless others have committed to the target since staging left it.
    """
    state, target, store = view.state, view.target, view.environment.store
    if not later or state.head(target) is None:
        return 0
    since = _left_at(view, later[0])
    by_id = snapshots_by_id(state.metadata)
    history = list(branch_history(state, target))
    newer = takewhile(lambda each: (each.sequence_number or 0) > since, history)
    others = [e for e in newer if _may_bring_staged_files(e, target) and not is_publish(e)]
    has_expired = not is_first(history[-1]) and ((history[-1].sequence_number or 0) > since)
    if not others and not has_expired:
        return 0
    came = {
        entry.data_file.file_path
        for each in others
        for entry in load_changes(store, each).added_data
    }
    added = [
        {entry.data_file.file_path for entry in load_changes(store, each).added_data}
        for each in later
    ]
    here = view.live.find(set().union(*added))
    came |= {p for p, e in here.items() if not is_publish(by_id.get(e.snapshot_id or 0))}
    return max((at for at, paths in enumerate(added, start=1) if paths & came), default=0)


def _left_at(view: TargetView, staged: Snapshot) -> int:
    """The sequence number of the target's snapshot that staging stands on; 0 if it has expired."""
    base = base_of(view.state, staged, staging=view.staging, target=view.target)
    return 0 if base is None else base.sequence_number or 0


def staged_on_target(view: TargetView, batch: CycleInput) -> StagedOnTarget:
    """Look for the batch's data files on the target.

    Raises:
        UnsupportedError: See `_check_deletes_are_repeated`.

    Cost: the manifests written by publishes since the oldest staged snapshot, and by others since
    staging left the target; commits of icefold that cannot have brought staged files are not read.
    """
    state, live = view.state, view.live
    by_id = snapshots_by_id(state.metadata)
    staged_at = {each.file.file_path: each.sequence_number for each in batch.files}
    published, brought = set[str](), set[str]()
    here = live.find_whole(staged_at)
    for path, entry in here.items():
        if is_publish(by_id.get(entry.snapshot_id or 0)):
            brought.add(path)
        elif (entry.sequence_number or 0) <= staged_at[path]:
            published.add(path)
    left: dict[str, DataFile] = {}
    wanted = staged_at.keys() - here.keys()
    oldest = min((staged_at[path] for path in wanted), default=0)
    for snapshot in _may_have_brought(view, batch, wanted, oldest):
        for entry in load_changes(view.environment.store, snapshot).added_data:
            path = entry.data_file.file_path
            if path in wanted and path not in left:
                left[path] = entry.data_file
                brought |= {path} if is_publish(snapshot) else set()
    named, written_anew = _named_before(view, batch)
    published |= brought | (staged_at.keys() & named)
    repeated = _repeated(batch, named, frozenset(published), brought)
    written_anew -= here.keys() | left.keys()
    _check_deletes_are_repeated(state, batch, written_anew, repeated)
    with_deletes = files_with_deletes(state.metadata, live, here.values())
    thinned = {path: here[path].data_file for path in with_deletes}
    return StagedOnTarget(
        left=left,
        thinned=thinned,
        published=frozenset(published),
        repeated=repeated - live.find(repeated).keys() - left.keys(),
        written_anew=written_anew & repeated & staged_at.keys(),
    )


def _may_have_brought(
    view: TargetView, batch: CycleInput, wanted: Collection[str], oldest: int
) -> Iterator[Snapshot]:
    """Snapshots of the target's history that may have added one of some data files, newest first.

    Since staging left the target, and published since `oldest` was staged; where others staged the
    batch, who may name a file again, any publish that says that it covered one, and what staging
    stands on: the target may have been moved to a staged snapshot that its writer commits again.
    """
    if not wanted:
        return
    left_at = _left_at(view, batch.staged[0].snapshot)
    is_own, hashes = _is_own(batch, view.staging), frozenset(map(file_hash, wanted))
    for snapshot in branch_history(view.state, view.target):
        number = snapshot.sequence_number or 0
        if is_own and number <= left_at:
            break
        is_since = number >= left_at
        if not is_publish(snapshot):
            may_have = is_since and _may_bring_staged_files(snapshot, view.target)
        elif (known := hashes_of(snapshot)) is None:
            may_have = is_since and number > oldest
        else:
            may_have = not known.isdisjoint(hashes) and not is_rewriting_publish(snapshot)
        if may_have:
            yield snapshot


def _is_own(batch: CycleInput, staging: str) -> bool:
    """Whether icefold has staged it: its commits name no file that another one names."""
    return all(committed_to(each.snapshot) == staging for each in batch.staged)


def _may_bring_staged_files(snapshot: Snapshot, target: str) -> bool:
    is_own, summary = committed_to(snapshot) == target, summary_of(snapshot)
    return not is_own or SOURCE_SNAPSHOT_ID in summary or STAGED_COMMITS in summary


def without_staged_rows(matches: Matches, batch: CycleInput) -> Matches:
    """The rows of the target that are no rows of the batch."""
    paths = batch.paths
    staged = [file_id for file_id, file in matches.files.items() if file.file_path in paths]
    return only(matches, ~np.isin(matches.file_id, staged)) if staged else matches


def only(matches: Matches, kept: Bools) -> Matches:
    """Some of the matches."""
    if kept.all():
        return matches
    left = set(distinct(matches.file_id[kept]).tolist())
    return Matches(
        key_ordinal=matches.key_ordinal[kept],
        file_id=matches.file_id[kept],
        position=matches.position[kept],
        files={file_id: file for file_id, file in matches.files.items() if file_id in left},
    )


def judge_moved_rows(
    view: TargetView, known: StagedOnTarget, matched: MatchedBatch, judged: DeadRows
) -> DeadRows:
    """Let rows of the target that are staged rows which have moved die as these do.

    Args:
        view: The target, where row ids are read.
        known: The staged files that it has, or had.
        matched: The batch, and rows of the target with a deleted key.
        judged: Which rows die if all matches are older than the batch.

    Raises:
        UnsupportedError: A staged row lives, and which row of the target it is cannot be told: a
            rewrite did not keep row ids.
    """
    batch, matches = matched.batch, matched.matches
    if not known.moved or not len(matches):
        return judged
    row, row_id = _staged_rows(view, batch, known.moved)
    found_id = row_ids_of(view.environment, view.state, view.live, matches)
    at = _find(row_id, found_id)
    is_staged = at != NO_ROW
    dead = judged.matches.copy()
    dead[is_staged] = judged.staged[row[at[is_staged]]]
    has_left = np.array([e.file.file_path in known.left for e in batch.files])[batch.rows.file[row]]
    unseen = has_left & ~np.isin(np.arange(len(row)), at) & ~judged.staged[row]
    number = matched.numbered.lookup_number[matches.key_ordinal]
    unsure = dead & ~is_staged & (found_id >= row_id[has_left].min(initial=NEWEST))
    unsure &= np.isin(number, matched.numbered.row_number[row[unseen]])
    if unsure.any():
        unsure[unsure] = ~_is_new(view, found_id[unsure])
    if unsure.any():
        raise UnsupportedError(
            "staged rows are on the target already, in a file that was rewritten without their "
            "row ids: which rows they are cannot be told",
            table=view.state.name,
            location=min(known.left),
            rows=int(np.count_nonzero(unsure)),
            action="roll the target back to before that rewrite, resolve, and rewrite again",
        )
    return DeadRows(matches=dead, staged=judged.staged, outdated=judged.outdated)


def _is_new(view: TargetView, row_id: Int64s) -> Bools:
    """Which rows got their ids from a commit that brings new rows and keeps the ids of others.

    Those are appends, icefold's own, and upserts by equality deletes; but a `replace`, whoever made
    it, brings no rows. Reads the manifests of others' commits that gave such an id.
    """
    new = np.zeros(len(row_id), dtype=np.bool_)
    for each in branch_history(view.state, view.target):
        operation = None if each.summary is None else each.summary.operation
        first = each.first_row_id or 0
        given = (row_id >= first) & (row_id < first + (each.added_rows or 0))
        if operation == Operation.REPLACE or not given.any():
            continue
        if (
            operation == Operation.APPEND
            or committed_to(each) == view.target
            or _moves_no_row(load_changes(view.environment.store, each))
        ):
            new |= given
    return new


def _moves_no_row(changes: SnapshotChanges) -> bool:
    """Whether a commit takes no row by its position from a file that was there before."""
    own = {entry.data_file.file_path for entry in changes.added_data}
    return not changes.removed_data and all(
        entry.data_file.content == FileContent.EQUALITY_DELETES
        or referenced_path(entry.data_file) in own
        for entry in changes.added_deletes
    )


def _staged_rows(
    view: TargetView, batch: CycleInput, moved: Mapping[str, DataFile]
) -> tuple[Int64s, Int64s]:
    """The batch's rows in files of `moved`, as ordinals of its rows, and their target row ids."""
    ordinals = [i for i, each in enumerate(batch.files) if each.file.file_path in moved]
    reader = ColumnReader(view.environment, view.metadata, (ROW_ID_FIELD_ID,))
    rows = reader.read_files([moved[batch.files[i].file.file_path] for i in ordinals])
    [row_id] = reader.flat(rows)
    own = [np.flatnonzero(batch.rows.file == ordinal) for ordinal in ordinals]
    return np.concatenate(own), row_id.fill_null(NO_ROW_ID).to_numpy()


def _find(values: Int64s, wanted: Int64s) -> Int64s:
    """Where in `values` each of `wanted` is; `NO_ROW` if nowhere, or if it is no row id."""
    order = stable_order(values)
    slot = np.minimum(np.searchsorted(values[order], wanted), max(len(values) - 1, 0))
    at = order[slot] if len(values) else np.zeros(len(wanted), dtype=np.int64)
    is_there = (values[at] == wanted) if len(values) else np.zeros(len(wanted), dtype=np.bool_)
    return np.where(is_there & (wanted != NO_ROW_ID), at, NO_ROW)
