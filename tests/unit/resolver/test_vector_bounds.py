"""Vectors say which keys they may concern: other writers decide by that whether they conflict."""

import pytest

from resolver import resolve
from tests.support.staged_tables import BASE, StagedTable, keys

KEY, NOTE = 1, 3


@pytest.fixture
def staged(tmp_path):
    staged = StagedTable(tmp_path)
    for rows in (BASE[:10], BASE[10:]):
        staged.table.append(staged.rows(*rows))
    return staged


def bounds(staged):
    """Of data files and of their vectors: key bounds by path, and all columns with bounds."""
    files, vectors = {}, {}
    for task in staged.table.refresh().scan().plan.tasks:
        file = task.entry.data_file
        files[file.file_path] = (file.lower_bounds[KEY], file.upper_bounds[KEY])
        if task.dv is not None:
            vector = task.dv.data_file
            assert NOTE not in vector.lower_bounds
            vectors[file.file_path] = (vector.lower_bounds[KEY], vector.upper_bounds[KEY])
    return files, vectors


def test_a_published_vector_has_the_key_bounds_of_its_file(staged):
    staged.table.stage(deletes=keys(3, 14))
    resolve(staged.table)
    files, vectors = bounds(staged)
    assert vectors == files
    assert len(set(files.values())) == 2


def test_a_vector_of_a_statement_has_the_key_bounds_of_its_file(staged):
    staged.table.delete("id = 3")
    files, vectors = bounds(staged)
    [(path, found)] = vectors.items()
    assert found == files[path]
