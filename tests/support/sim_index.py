"""The real index in the simulator: a folder per process, tiny blocks, and shards of a row."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from resolver.index import run_format, shard_map
from resolver.index.build import _Build
from resolver.index.local import LocalIndex
from resolver.index_keeper import LocalIndexKeeper, TargetHead
from tableformat.codec.avro import manifest_notes
from tests.support.memory_disk import memory_disk
from tests.support.sim_seams import MemoryIndexKeeper

TINY = {
    (run_format, "BLOCK_ENTRIES_MAX"): 8,
    (shard_map, "ROWS_PER_SHARD_MIN"): 1,
    (shard_map, "ROWS_PER_SHARD_MAX"): 1,
    (manifest_notes, "UNNOTED_FILES_MAX"): 0,
    (manifest_notes, "UNNOTED_SHARE_MAX"): 0,
}


class DiskIndexKeeper(LocalIndexKeeper):
    """The product's keeper; opened and closed by each cycle, or open as long as its process."""

    def die(self) -> None:
        """With its process: the disk stays as it is, its locks are free."""
        if self._index is not None:
            self._index.close()
            self._index = None
        if self.indexes is not None:
            self.indexes.close()

    def at_end(self, head: TargetHead) -> LocalIndex | None:
        """The index, to be looked into; `die` closes it."""
        return self._opened(head.wanted)


SimKeeper = MemoryIndexKeeper | DiskIndexKeeper


@contextmanager
def index_folders() -> Iterator[Path]:
    """A folder for indexes on disk, gone afterwards; all indexes are tiny meanwhile.

    A build runs in the thread of its actor, so that it hands over, fails and is killed there.
    """

    def in_turn(_: _Build, tasks: Iterator[Callable[[], Any]], threads: int) -> list[Any]:
        return [task() for task in tasks]

    folder = Path(tempfile.mkdtemp(prefix="icefold-sim-", dir=memory_disk()))
    try:
        with ExitStack() as patched:
            for (module, name), value in TINY.items():
                patched.enter_context(patch.object(module, name, value))
            patched.enter_context(patch.object(_Build, "_parallel", in_turn))
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
