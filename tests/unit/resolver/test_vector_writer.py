"""A cycle writes each vector once, and again where it was removed."""

import pytest
from pyroaring import BitMap64

from resolver.vector_writer import VectorWriter
from tableformat.codec.puffin.dv_file import DeletionVector, read_deletion_vectors
from tests.support.staged_tables import StagedTable


@pytest.fixture
def written(tmp_path):
    """Writes a vector over one row, again and again."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((1, "eu", "a"), (2, "eu", "b")))
    vector = DeletionVector(staged.only_file(), BitMap64([1]))
    writer = VectorWriter(staged.environment)
    metadata = staged.table.refresh().state.metadata

    def write():
        [file] = writer.write(metadata, [vector])
        [found] = read_deletion_vectors(staged.environment.store, [(file, 2)])
        assert list(found) == [1]
        return file.file_path

    write.writer = writer
    return write


def test_same_vector_is_written_once(written):
    assert written() == written()


def test_vector_that_was_removed_as_unused_is_written_anew(written):
    first = written()
    written.writer.delete_unused()
    assert written() != first
