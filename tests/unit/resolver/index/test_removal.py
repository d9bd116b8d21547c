from __future__ import annotations

from pathlib import Path

from resolver.index.base import IndexChanges
from resolver.index.run import Run
from tests.support.index_builder import (
    binding_at,
    build_local,
    entries_of,
    file_of,
    rows_of,
    source_of,
)


def test_rows_of_dropped_files_are_dropped_from_runs_that_are_written(tmp_path: Path) -> None:
    """Otherwise every compaction would make the runs longer."""
    with build_local(tmp_path, [source_of("f0", [1])]) as index:
        for number in range(1, 6):
            changes = IndexChanges(
                dropped_files=(f"f{number - 1}",),
                added_files=(file_of(f"f{number}"),),
                put=(entries_of([(1, 0, number)]),),
            )
            index.apply(index.prepare(changes), binding_at(number))
        ((name,),) = index.run_names
        assert Run(index.generation.run_path(name), name).count == 1
        assert rows_of(index, [1]) == [[("f5", 5)]]


def test_file_that_was_looked_up_is_gone_once_it_is_dropped(tmp_path: Path) -> None:
    """Files are kept in memory over changes of others."""
    with build_local(tmp_path, [source_of("f0", [1]), source_of("f1", [2])]) as index:
        assert rows_of(index, [1, 2]) == [[("f0", 0)], [("f1", 0)]]
        index.apply(index.prepare(IndexChanges(dropped_files=("f0",))), binding_at(2))
        assert rows_of(index, [1, 2]) == [[], [("f1", 0)]]
