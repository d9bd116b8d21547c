"""Prepared changes on disk, and how a decided one is completed, by whoever opens the index next.

```
pending/<id>/<shard>.sst   one per touched shard, written by `prepare`
pending/<id>/files.sst     dictionary and header, written by `decide`
pending/<id>/APPLY         the header again; its existence decides the change
```
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolver.index.base import IndexBinding
from resolver.index.damage import damaged
from resolver.index.dictionary import FileChanges
from resolver.index.folder import disk_errors, write_atomically
from resolver.index.header import FilesHeader
from resolver.index.shard import write_sst
from resolver.index.shards import Shards
from tableformat.runtime import Runtime

_FILES_SST = "files.sst"
_APPLY = "APPLY"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingChange:
    """A prepared change.

    Attributes:
        name: Its id, and the state that it brings the index to.
        base: The state it was computed on.
        path: Its folder.
        touched: Shards that have an SST.
        files: What changes in the dictionary.
        next_file_id: The next free file id after it.
    """

    name: str
    base: str
    path: Path
    touched: frozenset[int]
    files: FileChanges
    next_file_id: int

    @property
    def is_decided(self) -> bool:
        """Whether opening the index would complete it."""
        return (self.path / _APPLY).exists()

    def decide(self, current: FilesHeader, binding: IndexBinding, runtime: Runtime) -> None:
        """Make the change one that will be completed.

        Effects: *1. writes `files.sst`; 2. creates `APPLY` atomically.*
        """
        header = FilesHeader(
            generation=current.generation,
            state=self.name,
            previous=self.base,
            shards=tuple(
                self.name if shard in self.touched else state
                for shard, state in enumerate(current.shards)
            ),
            next_file_id=self.next_file_id,
            binding=binding,
        )
        sst = self.path / _FILES_SST
        with disk_errors(self.path):
            sst.unlink(missing_ok=True)
        write_sst(sst, [(self.files.keys, self.files.values)], header.to_json())
        runtime.fail_point("index.apply.before")
        write_atomically(self.path / _APPLY, header.to_json())
        runtime.fail_point("index.apply.decided")


def shard_sst(path: Path, shard: int) -> Path:
    """The SST of a shard in the folder of a change."""
    return path / f"{shard}.sst"


def roll_forward(path: Path, shards: Shards, runtime: Runtime) -> None:
    """Complete the decided change in `path`. Idempotent; an old one is left alone.

    Effects: *1. ingests the SST of each touched shard that is not there yet; 2. ingests
    `files.sst`, which makes the change visible.* A crash anywhere is completed by the next call.
    """
    header = FilesHeader.parse(_read_json(path / _APPLY), path)
    state = shards.files_header().state
    if state not in (header.state, header.previous):
        return

    def ingest(shard: int) -> None:
        if shards.state_of(shard) != header.state:
            shards[shard].ingest(shard_sst(path, shard))
        runtime.fail_point("index.apply.shard")

    shards.each([i for i, state in enumerate(header.shards) if state == header.state], ingest)
    if state != header.state:
        shards.files.ingest(path / _FILES_SST)
    runtime.fail_point("index.apply.after")


def settle(folder: Path, shards: Shards, runtime: Runtime) -> None:
    """After a crash: complete what was decided, throw away the rest."""
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if (path / _APPLY).exists():
                roll_forward(path, shards, runtime)
    shutil.rmtree(folder, ignore_errors=True)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise damaged("a decided change of the index is unreadable", path) from error
