"""`remove_orphans`: delete files that no version of the table needs and no writer can still want.

1. list the table's data and metadata folders
2. load the table *after* that, and read every manifest of every snapshot
3. an orphan is listed, not needed, of a kind that Iceberg or icefold writes, and older than the
   longest write takes; where metadata files are, what other tables in these folders need is needed
4. per batch: prove the lease, load the table again, take out what it needs by now, delete

A writer's file is older than the listing or younger than the age limit: one that is committed
between 1 and 2 is found by 2, one that is not committed yet is too young. Ages are told by the
store's own clock, which a file says that is written first: no file is old because this machine's
is ahead. Locations are compared in
their canonical spelling, so `s3a://` and `s3://`, `file:/` and `/` name one file (R75). Only names
below the two folders are looked at; the index and the locks lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np

from maintenance.tasks.base import TaskRun, maintenance_task
from maintenance.tasks.deletion_time import deletion_time_ms
from maintenance.tasks.options import RemoveOrphansOptions
from maintenance.tasks.own_folders import check_own_folders, load_if_there, tables_within
from maintenance.tasks.reports import RemoveOrphansReport
from tableformat.catalog.base import Identifier, TableState
from tableformat.codec.avro.manifest_store import each_manifest
from tableformat.codec.avro.named_files import hash_of
from tableformat.commit.branch_history import snapshots_by_id
from tableformat.commit.carried_properties import check_fence, load_carried
from tableformat.commit.expire import DELETE_BATCH_SIZE, check_owns_files
from tableformat.commit.reachability import Reachable, live_locations, statistics_locations
from tableformat.errors import InvalidInputError, TableError
from tableformat.integer_order import distinct
from tableformat.paths import data_directory, metadata_directory
from tableformat.spec.manifest_file import ManifestFile
from tableformat.store.base import ObjectInfo, ObjectStore
from tableformat.store.locations import canonical_location

LISTED_BATCH_SIZE = 10_000
METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz", ".gz.metadata.json")
SUFFIXES = (".parquet", ".puffin", ".avro", ".orc", ".stats", ".tmp", *METADATA_SUFFIXES)


@maintenance_task("remove-orphans", RemoveOrphansOptions())
def remove_orphans(run: TaskRun, options: RemoveOrphansOptions) -> RemoveOrphansReport:
    """Delete unreferenced files of a table.

    Raises:
        InvalidInputError: `gc.enabled` = false, or another table inside
            this one's folders, or around them. Nothing was deleted.
        CorruptDataError, NotFoundError: A snapshot cannot be read, so what it needs is not known;
            nothing was deleted.

    Effects: deletes in batches. A crash leaves the rest for the next run.
    """
    return _Removal(run, options).run()


@dataclass(slots=True)
class _Removal:
    task: TaskRun
    options: RemoveOrphansOptions
    needed: _Needed = field(init=False)
    others: list[Identifier] = field(default_factory=list)  # tables in the same folders
    removed: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self.needed = _Needed(self.task.environment.store)

    def run(self) -> RemoveOrphansReport:
        run, runtime = self.task, self.task.environment.runtime
        check_owns_files(run.table.state, "remove orphans")
        check_own_folders(run.environment, run.table.state)
        now_ms = deletion_time_ms(run)  # before the listing: a file is never older than it is
        self.needed.add(run.table.state)  # so that little of a large table's listing is kept
        listed, unknown = 0, dict[str, ObjectInfo]()
        for part in _batches(_listed(run.environment.store, run.table.state), LISTED_BATCH_SIZE):
            listed += len(part)
            unknown |= {location: part[location] for location in self.needed.unknown(part)}
        runtime.fail_point("orphans.after_list")
        self.needed.add(run.refresh())
        if any(location.endswith(METADATA_SUFFIXES) for location in self.needed.unknown(unknown)):
            self.others = tables_within(run.environment, run.table.state)
        self._add_others()
        unneeded = [unknown[location] for location in self.needed.unneeded(sorted(unknown))]
        limit_ms = now_ms - self.options.older_than_ms
        orphans = [info for info in unneeded if info.modified_ms < limit_ms]
        if run.lease is not None:
            self._delete(orphans)
        return run.report(
            RemoveOrphansReport,
            changed=bool(orphans) if run.lease is None else self.removed > 0,
            listed_files=listed,
            referenced_files=listed - len(unneeded),
            young_files=len(unneeded) - len(orphans),
            orphan_files=len(orphans),
            orphan_bytes=sum(info.size_bytes for info in orphans),
            removed_files=self.removed,
            failed_files=self.failed,
            locations=tuple(info.location for info in orphans[: self.options.listed_max]),
        )

    def _delete(self, orphans: Sequence[ObjectInfo]) -> None:
        run = self.task
        for start in range(0, len(orphans), DELETE_BATCH_SIZE):
            fence = run.fence()
            state = run.refresh()
            by_id = snapshots_by_id(state.metadata)
            carried = load_carried(by_id, state.head_id(self.options.branch))
            check_fence(fence, carried, branch=self.options.branch)
            self.needed.add(state)
            self._add_others()
            part = orphans[start : start + DELETE_BATCH_SIZE]
            by_location = {canonical_location(info.location): info.location for info in part}
            batch = [by_location[each] for each in self.needed.unneeded(list(by_location))]
            run.environment.runtime.fail_point("orphans.before_delete")
            self._delete_batch(batch)

    def _add_others(self) -> None:
        for identifier in self.others:
            state = load_if_there(self.task.environment.catalog, identifier)
            if state is not None:
                self.needed.add(state)

    def _delete_batch(self, batch: Sequence[str]) -> None:
        if not batch:
            return
        try:
            self.task.environment.store.delete(batch)
        except TableError:
            self.failed += len(batch)
        else:
            self.removed += len(batch)


class _Needed:
    """What any table version shown to it needs; grows only.

    Of data and delete files it keeps hashes of their names, four bytes each: a file whose name has
    the hash of another one's is taken for needed.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._reachable = Reachable(store)
        self._locations: set[str] = set()
        self._names = np.empty(0, dtype=np.uint32)
        self._content: list[ManifestFile] = []

    def add(self, state: TableState) -> None:
        """Read what is new in a table version.

        Raises:
            CorruptDataError, NotFoundError: A list or manifest cannot be read.
        """
        metadata, reachable = state.metadata, self._reachable
        new = [m for m in reachable.add_snapshots(metadata.snapshots) if m.has_live_files]
        self._names = distinct(
            np.concatenate([self._names, *each_manifest(reachable.live_names, new)])
        )
        self._content += new
        self._add(reachable.manifests)
        self._add(reachable.manifest_lists)
        self._add(statistics_locations(metadata))
        self._add([state.metadata_location])
        self._add(entry.metadata_file for entry in metadata.metadata_log)

    def unknown(self, locations: Iterable[str]) -> list[str]:
        """Canonical locations that nothing is seen to need: of Parquet and Puffin that is final."""
        rest = [location for location in locations if location not in self._locations]
        hashes = [hash_of(location) for location in rest]
        named = np.isin(np.array([each or 0 for each in hashes], dtype=np.uint32), self._names)
        return [
            location
            for location, hashed, is_named in zip(rest, hashes, named.tolist(), strict=True)
            if hashed is None or not is_named
        ]

    def unneeded(self, locations: Iterable[str]) -> list[str]:
        """Canonical locations that no version needs.

        Cost: manifests are decoded where one is of another kind, as manifests of writers that
        failed are.
        """
        rest = self.unknown(locations)
        others = {location for location in rest if hash_of(location) is None}
        live = partial(live_locations, self._reachable.store)
        for locations_there in each_manifest(live, self._content if others else ()):
            others -= locations_there
        return [each for each in rest if each in others or hash_of(each) is not None]

    def _add(self, locations: Iterable[str]) -> None:
        self._locations.update(canonical_location(location) for location in locations)


def _batches(found: Iterator[tuple[str, ObjectInfo]], size: int) -> Iterator[dict[str, ObjectInfo]]:
    while part := dict(islice(found, size)):
        yield part


def _listed(store: ObjectStore, state: TableState) -> Iterator[tuple[str, ObjectInfo]]:
    """Files of the table's folders and their canonical locations, of kinds that writers make.

    Raises:
        InvalidInputError: A metadata file lies among the data files: another table is inside.
    """
    metadata_folder = canonical_location(metadata_directory(state.metadata))
    for folder in (data_directory(state.metadata), metadata_directory(state.metadata)):
        for info in store.list_prefix(folder):
            location = canonical_location(info.location)
            if not location.endswith(SUFFIXES):
                continue
            inside = location.removeprefix(f"{metadata_folder}/")
            if location.endswith(METADATA_SUFFIXES) and "/" in inside:
                raise InvalidInputError(
                    "refused: another table lies inside this table's folders",
                    table=state.name,
                    location=location,
                )
            yield location, info
