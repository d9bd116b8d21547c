"""New rows and the positions of old ones as one commit: what any search for positions ends in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from resolver.merge_deletes import DeadPositions, convert
from resolver.target import live_files
from tableformat import Table
from tableformat.codec.puffin.dv_file import write_deletion_vectors
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.paths import data_file_locations, puffin_locations
from tableformat.write.data_files import write_data_files


def commit_positions(table: Table, rows: pa.Table, positions: pa.Table) -> None:
    """Commit `rows` and the deletion of `positions` (`_file`, `_pos`) to main."""
    environment, state = table.environment, table.refresh().state
    head = state.head("main")
    live = live_files(environment, head)
    dead = DeadPositions()
    paths = pc.dictionary_encode(positions["_file"].combine_chunks())
    codes = paths.indices.to_numpy(zero_copy_only=False)
    for code, path in enumerate(paths.dictionary.to_pylist()):
        dead.add(path, positions["_pos"].to_numpy()[codes == code].astype(np.int64))
    conversion = convert(
        environment.store, dead=dead, staged_files=(), target_files=live.data, target_dvs=live.dvs
    )
    ids = environment.runtime.ids
    vectors = write_deletion_vectors(
        environment.store,
        conversion.vectors,
        location_for=puffin_locations(state.metadata, ids),
        placement="packed",
    )
    files = write_data_files(
        environment.store,
        rows,
        schema=table.schema(),
        spec=table.spec(),
        properties=state.metadata.properties,
        location_for=data_file_locations(state.metadata, ids),
    )
    changeset = Changeset(
        kind=CommitKind.ROW_DELTA,
        added_data_files=tuple(files),
        added_delete_files=tuple(vectors),
        removed_entries=conversion.replaced,
        validation=Validation(starting_snapshot_id=None if head is None else head.snapshot_id),
    )
    commit(environment, table.identifier, changeset)
    table.refresh()
