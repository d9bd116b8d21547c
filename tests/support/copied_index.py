"""An index as it is after its table was copied and the paths of the copy were rewritten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from resolver import index_keeper
from resolver.index.base import IndexedFile
from tableformat.spec.data_file import DataFile


@contextmanager
def paths_before_the_copy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An index that is built within names the files by where they were."""
    real = index_keeper.indexed_file

    def elsewhere(file: DataFile) -> IndexedFile:
        indexed = real(file)
        return replace(indexed, file_path=indexed.file_path.replace("/data/", "/before/data/"))

    with monkeypatch.context() as patched:
        patched.setattr(index_keeper, "indexed_file", elsewhere)
        yield
