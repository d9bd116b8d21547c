"""How the simulator reads a snapshot: from its files alone."""

from tests.support.sim_files import Files
from tests.support.sim_schema import read_schema
from tests.support.staged_tables import StagedTable, keys
from tests.support.table_checker import check_snapshot


def dead_on_staging(staged, repeated=()):
    state = staged.table.refresh().state
    metadata = state.metadata.model_dump(by_alias=True, mode="json")
    head = state.head("staging").model_dump(by_alias=True, mode="json")
    read = staged.environment.store.get
    checked = check_snapshot(read, metadata, head, repeated=repeated)
    return Files(read).view(checked, metadata, read_schema(metadata["schemas"][-1])).dead


def test_row_whose_file_is_named_again_behind_a_delete_is_not_dead(tmp_path):
    """A commit is retried: the first copy has lost the row, the second one shows it."""
    staged = StagedTable(tmp_path)
    [file] = staged.data_files((1, "eu", "a"), (2, "eu", "b"))
    staged.commit(data=[file])
    staged.table.stage(deletes=keys(1))
    assert dead_on_staging(staged) == {(file.file_path, 0)}
    staged.commit(data=[file])
    assert dead_on_staging(staged, {file.file_path}) == set()
