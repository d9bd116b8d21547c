"""Staged rows that a publish has written into files of its own: what became of them.

Their staged files are not on the target, so nothing there names them. The publish does: its marker
leads to the staged snapshots that it covers. A row that was new has the row id there that staging
shows. One that took another row's id is the only row of its key and partition, among those that the
publish wrote, whose id is not that of a row staged by the same commit or later: the delete of its
own commit has killed all others. A row that left columns out may be filed in any partition: they
are filled before it is. Deletes of such a commit reach the key's rows in all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyiceberg.table.snapshots import Snapshot

from resolver.cursor import down_to_bases, marker_of
from resolver.cycle_figures import is_rewriting_publish
from resolver.keys import EncodedKeys, KeySchema, encode_batch, factorize
from resolver.match import Bools, Int64s
from resolver.row_identity import NO_ROW_ID
from resolver.row_values import ColumnReader
from resolver.target_view import TargetView
from tableformat.commit.branch_history import branch_history, load_changes
from tableformat.scan.key_fields import current_key_schema
from tableformat.spec.data_file import ManifestEntry
from tableformat.spec.missing_columns import has_missing_columns
from tableformat.spec.names import ROW_ID_FIELD_ID
from tableformat.store.base import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFile:
    """A staged data file whose rows a publish wrote into others.

    Attributes:
        entry: As it is staged.
        publish: The publish.
        covered: The staged snapshots that it covers, newest first.
    """

    entry: ManifestEntry
    publish: Snapshot
    covered: tuple[Snapshot, ...]


def rewriting_publishes(view: TargetView) -> Iterator[tuple[Snapshot, tuple[Snapshot, ...]]]:
    """Publishes in the target's history that wrote staged rows anew, newest first.

    Yields:
        The publish, and what is known of the staged snapshots up to its marker, newest first.
    """
    history = branch_history(view.state, view.target)
    publishes = [each for each in history if is_rewriting_publish(each)]
    covered = down_to_bases(
        view.state, map(marker_of, publishes), staging=view.staging, target=view.target
    )
    for publish, (above, _) in zip(publishes, covered, strict=True):
        yield publish, tuple(above)


def rewritten_files(
    view: TargetView, wanted: Mapping[str, ManifestEntry]
) -> dict[str, RewrittenFile]:
    """Those of some staged data files whose rows a publish of the target's history wrote anew."""
    found: dict[str, RewrittenFile] = {}
    for publish, covered in rewriting_publishes(view):
        ids = {each.snapshot_id for each in covered}
        for path, entry in wanted.items():
            if entry.snapshot_id in ids:  # the oldest publish that covers it comes last
                found[path] = RewrittenFile(entry=entry, publish=publish, covered=covered)
    return found


def first_named(view: TargetView, paths: Collection[str]) -> dict[str, ManifestEntry]:
    """Where data files that are staged again were staged first, if a publish wrote them anew."""
    found: dict[str, ManifestEntry] = {}
    for _, covered in rewriting_publishes(view) if paths else ():
        for snapshot in covered:
            for entry in load_changes(view.environment.store, snapshot).added_data:
                if entry.data_file.file_path in paths:
                    found[entry.data_file.file_path] = entry
    return found


def ids_as_rewritten(
    view: TargetView,
    keys: EncodedKeys,
    row_id: Int64s,
    path: Sequence[str],
    files: Mapping[str, RewrittenFile],
) -> Int64s:
    """The row ids that staged rows got on the target.

    Args:
        view: The target; of the files of the publish key and row id are read.
        keys: n keys.
        row_id: Shape `(n,)`: the rows' ids as staging shows them.
        path: n data files; rows of others than `files` are left as they are.
        files: What a publish wrote anew.

    Returns:
        Shape `(n,)`; `NO_ROW_ID` for a row that the publish did not bring.
    """
    ids = row_id.copy()
    names = np.array(path, dtype=object)
    for name, file in files.items():
        rows = np.flatnonzero(names == name)
        if len(rows):
            ids[rows] = _ids_of_one(view, keys.take(rows), row_id[rows], file)
    return ids


def _ids_of_one(view: TargetView, keys: EncodedKeys, row_id: Int64s, file: RewrittenFile) -> Int64s:
    environment, metadata = view.environment, view.metadata
    key_ids = tuple(sorted(metadata.schema().identifier_field_ids))
    key = KeySchema.of(current_key_schema(metadata, key_ids), key_ids)
    staged = file.entry.data_file
    added = (e.data_file for e in load_changes(environment.store, file.publish).added_data)
    is_anywhere = has_missing_columns(staged)
    wrote = [f for f in added if is_anywhere or f.partition_key == staged.partition_key]
    reader = ColumnReader(environment, metadata, (*key_ids, ROW_ID_FIELD_ID))
    found = reader.read_files(wrote)
    theirs: Int64s = reader.flat(found)[-1].fill_null(NO_ROW_ID).to_numpy()
    numbers = factorize(keys, encode_batch(found, key))
    number, their_number = numbers.numbers
    inherited = np.full(numbers.count, NO_ROW_ID, dtype=np.int64)
    is_heir = ~_staged_since(environment.store, file, theirs)
    np.maximum.at(inherited, their_number[is_heir], theirs[is_heir])
    return np.where(np.isin(row_id, theirs), row_id, inherited[number])


def _staged_since(store: ObjectStore, file: RewrittenFile, row_id: Int64s) -> Bools:
    """Which ids are those of rows staged by the file's own commit, or later."""
    found = np.zeros(len(row_id), dtype=np.bool_)
    for each in file.covered:
        for entry in load_changes(store, each).added_data:
            first = entry.data_file.first_row_id or 0
            found |= (row_id >= first) & (row_id < first + entry.data_file.record_count)
        if each.snapshot_id == file.entry.snapshot_id:
            break
    return found
