"""The driver's part of a match by tasks: it knows where things are, not what they are.

Taken for batches that a cycle in this process would match by parts, where there is a runner that
shuffles, and an index that its tasks reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from resolver.cycle_input import CycleInput, UnreadInput
from resolver.index.base import IndexedFile, Prepared
from resolver.index.left import LeftChanges
from resolver.index.shared import SharedIndex
from resolver.key_reader import KeyReader
from resolver.runner import ShufflingRunner
from resolver.shard_match import (
    SHARE_KEYS,
    ShardMatch,
    ShareFindings,
    number_of_staged,
    staged_chunks,
)
from resolver.target import LiveFiles
from resolver.vector_tasks import VectorGroup
from tableformat.cached import cached_property
from tableformat.errors import StoreUnavailableError
from tableformat.spec.data_file import DataFile
from tableformat.store.base import ObjectStore

GROUP_KEYS = 4_000_000  # of a batch, for each group of files: what a task merges is bounded, too


@dataclass(frozen=True, kw_only=True)
class SpreadMatch:
    """Where the dead rows of a batch are.

    Attributes:
        generation, starts: Of the index that was asked.
        findings: By share.
        paths: Files of the target of which rows die, by id.
    """

    generation: str
    starts: tuple[int, ...]
    findings: tuple[ShareFindings, ...]
    paths: Mapping[int, str]

    @cached_property
    def staged(self) -> list[int]:
        """Staged files of which rows die, by their ordinals."""
        return list(_union(each.staged for each in self.findings))

    def groups(self, live: LiveFiles, batch: CycleInput) -> list[VectorGroup]:
        """The data files of which rows die, in groups of which each is one task's."""
        count = max((len(each.dead) for each in self.findings), default=0)
        staged = {number_of_staged(i): batch.files[i].file for i in self.staged}
        target = live.find(set(self.paths.values()))
        dvs = live.find_dvs(target.keys())
        paths = {**self.paths, **{number: file.file_path for number, file in staged.items()}}
        found = []
        for group in range(count):
            here = {number: path for number, path in paths.items() if number % count == group}
            if not here:
                continue
            found.append(
                VectorGroup(
                    paths=here,
                    staged=[staged[number] for number in sorted(here, reverse=True) if number < 0],
                    target={path: target[path] for path in here.values() if path in target},
                    dvs={path: dvs[path] for path in here.values() if path in dvs},
                    left=[each.dead[group] for each in self.findings if each.dead[group].length],
                )
            )
        return found

    def prepare(
        self, index: SharedIndex, batch: CycleInput, published: Iterable[DataFile]
    ) -> Prepared:
        """Prepare the change of the index; see `SharedIndex.prepare_left`."""
        ordinal = {each.file.file_path: at for at, each in enumerate(batch.files)}
        files = list(published)
        return index.prepare_left(
            [
                IndexedFile(file_path=f.file_path, spec_id=f.spec_id, partition=f.partition)
                for f in files
            ],
            LeftChanges(
                generation=self.generation,
                starts=self.starts,
                changes=tuple(each.change for each in self.findings),
                ordinals=np.array([ordinal[f.file_path] for f in files], dtype=np.int64),
            ),
        )

    def remove_left(self, store: ObjectStore) -> None:
        """Remove what tasks have left for later ones; garbage collection does it if this fails."""
        locations = {each.change.put.location for each in self.findings}
        if locations:
            with suppress(StoreUnavailableError):
                store.delete(sorted(locations))


def match_by_tasks(
    store: ObjectStore,
    metadata: TableMetadata,
    index: SharedIndex,
    runner: ShufflingRunner,
    unread: UnreadInput,
) -> SpreadMatch:
    """Match a batch whose keys nobody has read. What dies depends on keys and arrival only.

    Raises:
        CorruptDataError: A staged file is damaged.
        IndexDamagedError: Rebuild the index.

    Effects: objects beside the index; see `index.left`.
    Memory: some 100 bytes per share and group, and what a data file takes; nothing per row.
    """
    chunks = staged_chunks(unread)
    tasks = ShardMatch(
        index=index.on_tasks(),
        reader=KeyReader(store, metadata, unread.batch.deletes.key.field_ids),
        batch=replace(unread.batch, staged=()),
        shares=-(-unread.key_count // (index.shard_count * SHARE_KEYS)),
        groups=max(runner.parallelism, -(-unread.key_count // GROUP_KEYS)),
    )
    found = runner.shuffle(tasks.split, chunks, tasks.match, tasks.share_count)
    findings = tuple(each for each in found if each is not None)
    files = index.files_of(list(_union(each.file_ids for each in findings)))
    return SpreadMatch(
        generation=index.version.generation,
        starts=index.version.starts,
        findings=findings,
        paths={file_id: file.file_path for file_id, file in files.items()},
    )


def _union(bitmaps: Iterable[bytes]) -> BitMap64:
    found = BitMap64()
    for each in bitmaps:
        found |= BitMap64.deserialize(each)
    return found
