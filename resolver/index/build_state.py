"""What a build remembers on disk, so that an interrupted one goes on.

```
build/PLAN                 JSON: binding, generation name, shards, next free file id, bits of a row
build/LOG                  a JSON line [path, file id, rows] per file that is spilled completely
build/spill/               keyed rows by shard (see `spill`)
build/index/runs/          a run per finished shard; `shard-0000.rows` is its number of rows
```
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from resolver.index.base import IndexBinding
from resolver.index.entry import POSITION_BITS
from resolver.index.folder import Generation, build_path, generation_path, write_atomically
from resolver.index.shard_map import ShardMap
from resolver.index.stored_fields import check_fields
from tableformat.runtime import Runtime


@dataclass(frozen=True, slots=True)
class SpilledFile:
    """A file whose rows are all spilled, under the id they carry."""

    file_id: int
    rows: int


@dataclass(slots=True, kw_only=True)
class BuildState:
    """Plan and log of one build. Get it from `load_or_start`."""

    folder: Path
    binding: IndexBinding
    generation_id: str
    shard_count: int
    shard_rows: int | None = None
    next_file_id: int
    spilled: dict[str, SpilledFile]

    @staticmethod
    def load_or_start(
        folder: Path,
        binding: IndexBinding,
        paths: Iterable[str],
        *,
        shard_count: int,
        shard_rows: int | None = None,
        runtime: Runtime,
    ) -> BuildState:
        """The interrupted build for the same binding, or a new one; others are wiped.

        Args:
            folder: The index folder.
            binding: What is built.
            paths: The data files of the snapshot; others in the log are ignored.
            shard_count: Of a new build.
            shard_rows: Of a new build.
            runtime: Ids.
        """
        scratch = build_path(folder)
        state = _load(folder, binding, frozenset(paths))
        if state is not None:
            return state
        if scratch.exists():
            shutil.rmtree(scratch)
        (scratch / "spill").mkdir(parents=True)
        (scratch / "index" / "runs").mkdir(parents=True)
        state = BuildState(
            folder=folder,
            binding=binding,
            generation_id=runtime.ids.uuid().hex,
            shard_count=shard_count,
            shard_rows=shard_rows,
            next_file_id=0,
            spilled={},
        )
        state.save()
        return state

    @property
    def shards(self) -> ShardMap:
        """Which shard has a key."""
        return ShardMap.even(self.shard_count, self.shard_rows)

    @property
    def path(self) -> Path:
        """Scratch folder of the build."""
        return build_path(self.folder)

    @property
    def spill_path(self) -> Path:
        """Where rows wait for their shard."""
        return self.path / "spill"

    @property
    def unfinished(self) -> Generation:
        """The generation while it is in the scratch folder."""
        return Generation(self.path / "index", self.shard_count)

    @property
    def finished(self) -> Generation:
        """The generation when it is complete."""
        return Generation(generation_path(self.folder, self.generation_id), self.shard_count)

    def take_file_ids(self, count: int) -> int:
        """Reserve ids for one attempt; returns the first.

        Rows that an interrupted attempt spilled for a file it did not finish carry an id that is
        in no log and is never used again, which is how they are recognized.
        """
        first = self.next_file_id
        self.next_file_id += count
        self.save()
        return first

    def log(self, path: str, spilled: SpilledFile) -> None:
        """Remember that a file is spilled completely."""
        with (self.path / "LOG").open("a") as file:
            file.write(json.dumps([path, spilled.file_id, spilled.rows]) + "\n")
        self.spilled[path] = spilled

    def save(self) -> None:
        """Write the plan."""
        content = {
            "binding": asdict(self.binding),
            "generation": self.generation_id,
            "shards": self.shard_count,
            "shard_rows": self.shard_rows,
            "position_bits": POSITION_BITS,
            "next_file_id": self.next_file_id,
        }
        write_atomically(self.path / "PLAN", content)

    def remove(self) -> None:
        """Throw the scratch folder away."""
        shutil.rmtree(self.path)


def _load(folder: Path, binding: IndexBinding, paths: frozenset[str]) -> BuildState | None:
    scratch = build_path(folder)
    try:
        plan = json.loads((scratch / "PLAN").read_bytes())
        if plan.get("position_bits") != POSITION_BITS:
            return None  # spilled rows of an earlier release mean something else
        if plan["binding"] != asdict(binding) or not (scratch / "index" / "runs").is_dir():
            return None  # another snapshot, or one that had become a generation already
        state = BuildState(
            folder=folder,
            binding=binding,
            generation_id=plan["generation"],
            shard_count=plan["shards"],
            shard_rows=plan["shard_rows"],
            next_file_id=plan["next_file_id"],
            spilled=_load_log(scratch / "LOG", paths),
        )
        check_fields(state)
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return None  # no build, or one that broke before its plan was whole
    return state if state.shard_count > 0 else None


def _load_log(log: Path, paths: frozenset[str]) -> dict[str, SpilledFile]:
    spilled: dict[str, SpilledFile] = {}
    if not log.exists():
        return spilled
    for line in log.read_text().splitlines():
        try:
            path, file_id, rows = json.loads(line)
            file = SpilledFile(file_id, rows)
            check_fields(file)
        except (ValueError, TypeError, RecursionError):
            break  # the last line, cut by a crash
        if path in paths:
            spilled[path] = file
    return spilled
