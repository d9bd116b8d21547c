"""A catalog whose whole state is one pointer per table: name -> metadata location.

SQL databases and the simulator's memory are such catalogs; they differ in the pointers only
(`MetadataPointers`). The commit is here, once:

1. apply the updates to the version planned against (pure);
2. put `<V+1>-<uuid>.metadata.json`, a new name;
3. swap the pointer, if it still names the base: the commit point;
4. where asked for, delete the metadata files that fell out of the log.

A group of tables goes through each step together, and 3 is one atomic step over all pointers.

A crash before 3 leaves unreferenced metadata files; after 3 the commit is done. Because 3
compares with the base of 1, sequence numbers and row ids are unique by construction.

An answer lost in 3 is settled by reading the pointer. Metadata locations are never used twice, so
a pointer that has left the base proves the outcome: our location is its successor in the metadata
log, or another one is. What one pointer proves holds for its whole group. A pointer still at the
base proves nothing by itself: the swap may be under way. Backends that can wait for it (SQL) do so
inside `MetadataPointers.swap`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate

from tableformat.catalog.base import Identifier, Locations, TableCommit, TableState
from tableformat.catalog.new_table import new_metadata
from tableformat.catalog.pointers import MetadataPointers, PointerSwap, table_exists
from tableformat.catalog.table_locations import TablePlaces, check_own_folder
from tableformat.catalog.table_names import check_new_names, check_table_name, namespace_not_empty
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    NotFoundError,
    StoreUnavailableError,
    TableError,
    error_context,
)
from tableformat.paths import metadata_directory
from tableformat.runtime import Runtime
from tableformat.sized_cache import SizedCache
from tableformat.spec.metadata_json import decode_metadata, encode_metadata_file, metadata_suffix
from tableformat.spec.metadata_update import apply_updates
from tableformat.store.base import ObjectStore
from tableformat.store.locations import AllowedLocations, tables_of

DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
_VERSION = re.compile(r"^v?(\d+)[-.]")
_LOAD_ATTEMPTS_MAX = 3
# Tables whose newest version stays decoded: as many as have so many snapshots (5 kB each) together,
# or eight. A stream into ten tables that keep what icefold's tables keep has 20,000.
_CACHED_SNAPSHOTS_MAX, _CACHED_LARGE = 32_000, 8
_SINGLE_READS_MAX = 8  # one read of a pointer costs about as much as one of a hundred


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """The version that a commit makes of a table, and where its metadata goes."""

    base: TableState
    updates: Sequence[TableUpdate]
    metadata: TableMetadata
    location: str

    @property
    def swap(self) -> PointerSwap:
        return PointerSwap(
            identifier=self.base.identifier,
            expected=self.base.metadata_location,
            new=self.location,
        )


class PointerCatalog:
    """`Catalog` over `MetadataPointers`.

    Args:
        name: For people, and part of the key in a shared database.
        properties: How it was opened. May hold secrets.
        pointers: The state.
        store: Where metadata files are.
        runtime: Clock, ids and fail points.
        warehouse: Canonical location below which new tables go.
        allowed: Where tables and their files may be.
    """

    def __init__(
        self,
        name: str,
        properties: Mapping[str, str],
        *,
        pointers: MetadataPointers,
        store: ObjectStore,
        runtime: Runtime,
        warehouse: str,
        allowed: AllowedLocations,
    ) -> None:
        self.name = name
        self.properties: Mapping[str, str] = dict(properties)
        self._pointers = pointers
        self._store = store
        self._runtime = runtime
        self._warehouse = warehouse.rstrip("/")
        self._places = TablePlaces(allowed)
        # By folder. Metadata files are immutable: what was decoded stays right.
        self._cache: SizedCache[tuple[str, TableMetadata]] = SizedCache(
            _CACHED_SNAPSHOTS_MAX, lambda version: _cost(version[1])
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def create_namespace(self, namespace: Identifier) -> None:
        """See `Catalog.create_namespace`."""
        check_new_names(namespace)
        for depth in range(1, len(namespace) + 1):
            self._pointers.add_namespace(namespace[:depth])

    def drop_namespace(self, namespace: Identifier) -> None:
        """See `Catalog.drop_namespace`."""
        known = self.list_namespaces()
        if namespace not in known:
            raise _no_namespace(namespace)
        below = [one for one in known if one[:-1] == namespace]
        for found in (self.list_tables(namespace), below):
            if found:
                raise namespace_not_empty(namespace)
        self._pointers.remove_namespace(namespace)

    def list_namespaces(self) -> list[Identifier]:
        """See `Catalog.list_namespaces`."""
        found = set(self._pointers.namespaces())
        return sorted({one[:depth] for one in found for depth in range(1, len(one) + 1)})

    def list_tables(self, namespace: Identifier | None = None) -> list[Identifier]:
        """See `Catalog.list_tables`. A namespace's tables are those directly in it."""
        found = sorted(self._pointers.tables())
        return [one for one in found if namespace is None or one[:-1] == tuple(namespace)]

    def create_table(
        self,
        identifier: Identifier,
        *,
        schema: Schema,
        partition_spec: PartitionSpec,
        sort_order: SortOrder,
        location: str | None,
        properties: Mapping[str, str],
    ) -> TableState:
        """See `Catalog.create_table`. The namespace must exist (`NotFoundError`)."""
        check_table_name(identifier)
        check_new_names(identifier)
        if identifier[:-1] not in self.list_namespaces():
            raise _no_namespace(identifier[:-1])
        if self._pointers.read(identifier) is not None:
            raise table_exists(identifier)
        place = (location or "/".join((self._warehouse, *identifier))).rstrip("/")
        metadata = new_metadata(
            schema,
            partition_spec,
            sort_order,
            location=place,
            properties=properties,
            table_uuid=self._runtime.ids.uuid(),
            now_ms=self._runtime.clock.now_ms(),
        )
        self._places.check_table(metadata)
        new = self._new_location(metadata, version=0)
        self._store.put(new, encode_metadata_file(metadata, location=new))
        if not self._pointers.insert(identifier, new):
            self._forget_file(new)
            raise table_exists(identifier)
        self._cache.put(_folder(new), (new, metadata))
        return TableState(identifier, metadata, new)

    def load_table(self, identifier: Identifier) -> TableState:
        """See `Catalog.load_table`. Metadata files are immutable, so a known one is not read."""
        check_table_name(identifier)
        with error_context(table=".".join(identifier)):
            for attempt in range(_LOAD_ATTEMPTS_MAX):
                location = self._pointers.read(identifier)
                if location is None:
                    raise NotFoundError("table does not exist")
                try:
                    return TableState(identifier, self._load_metadata(location), location)
                except NotFoundError:
                    # Another commit may have replaced and deleted it (delete-after-commit).
                    last = attempt == _LOAD_ATTEMPTS_MAX - 1
                    if last or self._pointers.read(identifier) == location:
                        raise
        raise NotFoundError("table metadata moved away too often", table=".".join(identifier))

    def metadata_locations(self, identifiers: Collection[Identifier]) -> Locations | None:
        """See `Catalog.metadata_locations`: a few reads, or one of all pointers."""
        if len(identifiers) <= _SINGLE_READS_MAX:
            read = {one: self._pointers.read(one) for one in identifiers}
            return {one: location for one, location in read.items() if location is not None}
        found = self._pointers.locations()
        return {one: found[one] for one in identifiers if one in found}

    def drop_table(self, identifier: Identifier) -> None:
        """See `Catalog.drop_table`."""
        check_table_name(identifier)
        if not self._pointers.remove(identifier):
            raise NotFoundError("table does not exist", table=".".join(identifier))

    def rename_table(self, identifier: Identifier, new: Identifier) -> None:
        """See `Catalog.rename_table`."""
        check_table_name(identifier)
        check_table_name(new)
        check_new_names(new)
        if new[:-1] not in self.list_namespaces():
            raise _no_namespace(new[:-1])
        if self._pointers.read(new) is not None:
            raise table_exists(new)
        if not self._pointers.rename(identifier, new):
            raise NotFoundError("table does not exist", table=".".join(identifier))

    @property
    def commits_groups(self) -> bool:
        """See `Catalog.commits_groups`."""
        return True

    def commit(self, base: TableState, updates: Sequence[TableUpdate]) -> TableState:
        """See `Catalog.commit`: a group of one."""
        [state] = self.commit_group([TableCommit(base, updates)])
        return state

    def commit_group(self, commits: Sequence[TableCommit]) -> list[TableState]:
        """See `Catalog.commit_group`; the steps are in the module's text.

        Fail points: `catalog.before_metadata_put`, `catalog.before_swap`, `catalog.after_swap`.
        """
        states = {each.base.identifier: each.base for each in commits}
        assert len(states) == len(commits), "each table once"
        planned = [each for commit in commits if (each := self._plan(commit)) is not None]
        planned.sort(key=lambda each: each.base.identifier)
        if planned:
            with error_context(table=", ".join(each.base.name for each in planned)):
                self._put_metadata(planned)
                self._swap(planned)
        for each in planned:
            self._cache.put(_folder(each.location), (each.location, each.metadata))
            identifier = each.base.identifier
            states[identifier] = TableState(identifier, each.metadata, each.location)
        if planned:
            self._each(self._delete_old_metadata, planned)
        return [states[each.base.identifier] for each in commits]

    def _plan(self, commit: TableCommit) -> _Version | None:
        """The new version; None where the updates change nothing."""
        base = commit.base
        metadata = apply_updates(
            base.metadata,
            commit.updates,
            base_location=base.metadata_location,
            now_ms=self._runtime.clock.now_ms(),
        )
        if metadata is base.metadata:
            return None
        check_own_folder(base, "change it", metadata)
        with error_context(table=base.name):
            if (
                metadata.location != base.metadata.location
                or metadata.properties != base.metadata.properties
            ):
                self._places.check_table(metadata)
            new = self._new_location(metadata, version=_version_after(base.metadata_location))
        return _Version(base=base, updates=commit.updates, metadata=metadata, location=new)

    def _new_location(self, metadata: TableMetadata, *, version: int) -> str:
        name = f"{version:05d}-{self._runtime.ids.uuid()}{metadata_suffix(metadata)}"
        return f"{metadata_directory(metadata)}/{name}"

    def _put_metadata(self, planned: Sequence[_Version]) -> None:
        begun: list[str] = []

        def put(version: _Version) -> None:
            begun.append(version.location)
            self._runtime.fail_point("catalog.before_metadata_put")
            data = encode_metadata_file(version.metadata, location=version.location)
            self._store.put(version.location, data)

        try:
            self._each(put, planned)
            self._runtime.fail_point("catalog.before_swap")
        except Exception:  # re-raised: no pointer was touched, so these files are nobody's
            for location in begun:
                self._forget_file(location)
            raise

    def _swap(self, planned: Sequence[_Version]) -> None:
        try:
            swapped = self._swap_pointers([each.swap for each in planned])
        except StoreUnavailableError:
            self._forget(planned)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, the swap may have landed
            swapped = self._settle(planned, error)
        try:
            self._runtime.fail_point("catalog.after_swap")
        except Exception as error:  # noqa: BLE001 - whatever it was, the swap may have landed
            swapped = self._settle(planned, error)
        if swapped or self._settle(planned, None):
            return
        self._forget(planned)
        raise CommitConflictError(
            "another commit landed first",
            action="refresh and try again",
            base=planned[0].base.metadata_location,
        )

    def _swap_pointers(self, swaps: Sequence[PointerSwap]) -> bool:
        if len(swaps) > 1:
            return self._pointers.swap_all(swaps)
        [one] = swaps
        return self._pointers.swap(one.identifier, expected=one.expected, new=one.new)

    def _settle(self, planned: Sequence[_Version], cause: Exception | None) -> bool:
        """Whether the swap landed, by reading the pointers; an error if that cannot be told.

        A pointer that tells anything tells it of all: they were swapped together.
        """
        told: set[bool | None] = set()
        trouble: Exception | None = None
        for each in planned:
            try:
                current = self._pointers.read(each.base.identifier)
                told.add(self._has_landed(each, current, certain=cause is None))
            except Exception as error:  # noqa: BLE001 - whatever it was, there is no answer
                trouble = trouble or error
        if told <= {None}:
            raise _unknown(planned) from (cause or trouble)
        return True in told

    def _has_landed(self, version: _Version, current: str | None, *, certain: bool) -> bool | None:
        base = version.base
        if current == version.location:
            return True
        if current is None or current == base.metadata_location:
            # `certain`: the backend answered that it changed nothing.
            return False if certain else None
        metadata = self._load_metadata(current)
        if metadata.table_uuid != base.metadata.table_uuid:
            return False if certain else None
        chain = [entry.metadata_file for entry in metadata.metadata_log] + [current]
        if version.location in chain:
            return True
        if base.metadata_location in chain:
            return False
        if any(metadata.snapshot_by_id(one) is not None for one in _added(version)):
            return True
        return False if certain else None

    def _load_metadata(self, location: str) -> TableMetadata:
        cached = self._cache.get(_folder(location))
        if cached is not None and cached[0] == location:
            return cached[1]
        metadata = decode_metadata(self._store.get(location), location=location)
        self._cache.offer(_folder(location), (location, metadata))
        return metadata

    def _each(self, step: Callable[[_Version], None], planned: Sequence[_Version]) -> None:
        self._runtime.each(step, planned, at_once=tables_of(planned[0].location))

    def _delete_old_metadata(self, version: _Version) -> None:
        before, after = version.base.metadata, version.metadata
        if after.properties.get(DELETE_AFTER_COMMIT, "false").lower() != "true":
            return
        kept = {entry.metadata_file for entry in after.metadata_log}
        for entry in before.metadata_log:
            if entry.metadata_file not in kept:
                self._forget_file(entry.metadata_file)

    def _forget(self, planned: Sequence[_Version]) -> None:
        for each in planned:
            self._forget_file(each.location)

    def _forget_file(self, location: str) -> None:
        """Remove a file that nothing references; if that fails, orphan removal finds it."""
        try:
            self._store.delete([location])
        except TableError:
            return


def _folder(location: str) -> str:
    return location.rpartition("/")[0]


def _cost(metadata: TableMetadata) -> int:
    return min(10 + len(metadata.snapshots), _CACHED_SNAPSHOTS_MAX // _CACHED_LARGE)


def _version_after(metadata_location: str) -> int:
    match = _VERSION.match(metadata_location.rsplit("/", 1)[-1])
    return int(match.group(1)) + 1 if match else 1


def _no_namespace(namespace: Identifier) -> NotFoundError:
    return NotFoundError("namespace does not exist", namespace=".".join(namespace))


def _added(version: _Version) -> list[int]:
    """The snapshots that a commit adds to a table."""
    found = (one for one in version.updates if isinstance(one, AddSnapshotUpdate))
    return [one.snapshot.snapshot_id for one in found]


def _unknown(planned: Sequence[_Version]) -> CommitUnknownError:
    ids = [one for version in planned for one in _added(version)[-1:]]
    return CommitUnknownError(
        "the commit may or may not have landed",
        action="look for the snapshot before trying again; delete nothing",
        metadata_location=", ".join(each.location for each in planned),
        snapshot_id=", ".join(map(str, ids)) or None,
    )
