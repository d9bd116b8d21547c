"""Tables for commit tests: in-memory backends, a clock and ids that repeat, files without bytes.

Data files have no bytes behind them: the commit engine looks at descriptors alone. Columns are
`id` (long), `part` (string) and `note` (string); `id` carries exact bounds.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import CommitResult, commit
from tableformat.environment import Environment
from tableformat.runtime import FailPoints, Runtime, snapshot_id_of
from tableformat.spec.data_file import DataFile, FileContent, ManifestEntry
from tests.support.memory_catalog import MemoryCatalog, MemoryPointers
from tests.support.memory_store import MemoryObjectStore

IDENTIFIER = ("shop", "orders")
PREFIX = "memory://warehouse/shop/orders/data"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "part", StringType(), required=False),
    NestedField(3, "note", StringType(), required=False),
    identifier_field_ids=[1],
)
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))


@dataclass
class ManualClock:
    """Time that moves when told to, or when somebody sleeps."""

    wall_ms: int = 1_700_000_000_000
    elapsed_ms: float = 0.0
    sleeps: list[float] = field(default_factory=list)

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> float:
        return self.elapsed_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.sleeps.append(duration_ms)
        self.advance(duration_ms)

    def advance(self, duration_ms: float) -> None:
        self.elapsed_ms += duration_ms
        self.wall_ms += int(duration_ms)


class SeededIds:
    """Ids from a seed."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def snapshot_id(self) -> int:
        return snapshot_id_of(self.uuid())

    def uniform(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)


class CatalogProxy:
    """A catalog that passes everything on; subclasses and attributes make it misbehave."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.before_commit: Callable[[TableState], None] | None = None
        self.after_commit: Callable[[TableState], None] | None = None
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, base: TableState, updates: Sequence[TableUpdate]) -> TableState:
        self.commits += 1
        if self.before_commit is not None:
            self.before_commit(base)
        state: TableState = self.inner.commit(base, updates)
        if self.after_commit is not None:
            self.after_commit(state)
        return state


class CommitTable:
    """One table and the verbs that commit tests need."""

    def __init__(
        self,
        *,
        partitioned: bool = False,
        seed: int = 0,
        properties: dict[str, str] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.runtime = Runtime(
            clock=self.clock, ids=SeededIds(seed), fail_points=FailPoints(), side_by_side=False
        )
        self.store = MemoryObjectStore(self.runtime)
        self.pointers = MemoryPointers()
        inner = MemoryCatalog(self.store, runtime=self.runtime, pointers=self.pointers)
        self.catalog = CatalogProxy(inner)
        environment = Environment(self.catalog, self.store, self.runtime)
        self.prepare(environment, properties or {}, partitioned=partitioned)

    def prepare(
        self, environment: Environment, properties: dict[str, str], *, partitioned: bool = False
    ) -> None:
        """Create the table in `environment`."""
        self.environment = environment
        self.catalog = environment.catalog
        self.store = environment.store
        self.catalog.create_namespace(IDENTIFIER[:-1])
        state = self.catalog.create_table(
            IDENTIFIER,
            schema=SCHEMA,
            partition_spec=BY_PART if partitioned else UNPARTITIONED_PARTITION_SPEC,
            sort_order=UNSORTED_SORT_ORDER,
            location=None,
            properties=properties,
        )
        self.prefix = f"{state.metadata.location}/data"
        self.partitioned = partitioned

    @property
    def state(self) -> TableState:
        return self.catalog.load_table(IDENTIFIER)

    def clock_tick(self) -> None:
        """Let at least a millisecond pass."""
        self.environment.runtime.clock.sleep_ms(5)

    def head(self, branch: str = "main") -> int | None:
        snapshot = self.state.head(branch)
        return None if snapshot is None else snapshot.snapshot_id

    def data(
        self, name: str, *, rows: int = 10, part: str | None = "a", ids: range | None = None
    ) -> DataFile:
        """A data file of `rows` rows; `ids` gives the bounds of column `id`."""
        bounds: dict[str, Any] = {}
        if ids is not None:
            bounds = {
                "lower_bounds": {1: struct.pack("<q", ids.start)},
                "upper_bounds": {1: struct.pack("<q", ids.stop - 1)},
                "value_counts": {1: rows},
                "null_value_counts": {1: 0},
            }
        return DataFile(
            content=FileContent.DATA,
            file_path=f"{self.prefix}/{name}.parquet",
            file_format="PARQUET",
            spec_id=0,
            partition=self._partition(part),
            record_count=rows,
            file_size_in_bytes=1000 + rows,
            **bounds,
        )

    def vector(self, of: DataFile, name: str, *, offset: int = 4, cardinality: int = 1) -> DataFile:
        """A deletion vector for a data file, in Puffin file `name`."""
        return DataFile(
            content=FileContent.POSITION_DELETES,
            file_path=f"{self.prefix}/{name}.puffin",
            file_format="PUFFIN",
            spec_id=of.spec_id,
            partition=of.partition,
            record_count=cardinality,
            file_size_in_bytes=500,
            referenced_data_file=of.file_path,
            content_offset=offset,
            content_size_in_bytes=44,
        )

    def equality_delete(self, name: str, *, part: str | None = "a", rows: int = 3) -> DataFile:
        """An equality delete file on column `id`."""
        return DataFile(
            content=FileContent.EQUALITY_DELETES,
            file_path=f"{self.prefix}/{name}-eq.parquet",
            file_format="PARQUET",
            spec_id=0,
            partition=self._partition(part),
            record_count=rows,
            file_size_in_bytes=200,
            equality_ids=(1,),
        )

    def commit(self, changeset: Changeset, **kwargs: Any) -> CommitResult:
        return commit(self.environment, IDENTIFIER, changeset, **kwargs)

    def append(self, *files: DataFile, branch: str = "main", **options: Any) -> CommitResult:
        return self.commit(
            Changeset(
                kind=CommitKind.APPEND, branch=branch, added_data_files=tuple(files), **options
            )
        )

    def row_delta(
        self,
        *,
        data: Sequence[DataFile] = (),
        deletes: Sequence[DataFile] = (),
        removed: Sequence[ManifestEntry] = (),
        branch: str = "main",
        start: int | None = None,
        **options: Any,
    ) -> CommitResult:
        options.setdefault("validation", Validation(starting_snapshot_id=start))
        return self.commit(
            Changeset(
                kind=CommitKind.ROW_DELTA,
                branch=branch,
                added_data_files=tuple(data),
                added_delete_files=tuple(deletes),
                removed_entries=tuple(removed),
                **options,
            )
        )

    def entries(self, branch: str = "main") -> list[ManifestEntry]:
        """All entries of a branch's head, DELETED ones too."""
        head = self.state.head(branch)
        if head is None:
            return []
        manifests = load_manifest_list(self.store, head)
        return [entry for each in manifests for entry in load_manifest(self.store, each)]

    def live(self, branch: str = "main") -> dict[str, ManifestEntry]:
        """Live entries by short name: `x`, `x.puffin`, `x-eq`."""
        return {
            self.short_name(entry.data_file): entry
            for entry in self.entries(branch)
            if entry.is_live
        }

    def entry(self, file: DataFile, branch: str = "main") -> ManifestEntry:
        """The live entry of a file."""
        [found] = [
            entry
            for entry in self.entries(branch)
            if entry.is_live and entry.data_file.identity == file.identity
        ]
        return found

    @staticmethod
    def short_name(file: DataFile) -> str:
        name = file.file_path.rsplit("/", 1)[-1].removesuffix(".parquet")
        return f"{name}@{file.content_offset}" if file.is_dv else name

    def objects(self, suffix: str = "") -> set[str]:
        """Locations of stored objects."""
        return {
            each.location
            for each in self.store.list_prefix("memory://warehouse")
            if each.location.endswith(suffix)
        }

    def _partition(self, part: str | None) -> tuple[Any, ...]:
        return (part,) if self.partitioned else ()
