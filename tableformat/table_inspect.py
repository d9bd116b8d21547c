"""What `Table.inspect` gives: a table's metadata as Arrow tables of fixed schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.inspect.files import (
    entries_table,
    files_table,
    manifests_table,
    snapshot_entries,
    snapshot_manifests,
    vectors_table,
)
from tableformat.inspect.partitions import partitions_table
from tableformat.inspect.snapshots import (
    history_table,
    metadata_log_table,
    refs_table,
    snapshots_table,
    staged_table,
)
from tableformat.scan.snapshot_selection import select_snapshot
from tableformat.spec.data_file import FileContent, ManifestEntry
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH


@dataclass(frozen=True, slots=True)
class TableInspect:
    """Views of one version of a table. Column names are those of Iceberg's metadata tables.

    Views of a snapshot take `branch`, `tag` or `snapshot_id`; the default is the head of `main`.

    Attributes:
        environment: Where manifests are read.
        state: The table version.
    """

    environment: Environment
    state: TableState

    def snapshots(self) -> pa.Table:
        """All snapshots, of every branch."""
        return snapshots_table(self.state.metadata)

    def history(self) -> pa.Table:
        """What `main` pointed at."""
        return history_table(self.state.metadata)

    def refs(self) -> pa.Table:
        """Branches and tags."""
        return refs_table(self.state.metadata)

    def metadata_log(self) -> pa.Table:
        """Metadata files, the newest last."""
        return metadata_log_table(self.state)

    def staged(self, *, staging: str = STAGING_BRANCH, target: str = MAIN_BRANCH) -> pa.Table:
        """Snapshots of a staging branch that are not published on `target` yet."""
        return staged_table(self.state, staging, target)

    def files(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: int | None = None
    ) -> pa.Table:
        """Live data and delete files, deletion vectors among them."""
        return self._files(None, branch, tag, snapshot_id)

    def data_files(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: int | None = None
    ) -> pa.Table:
        """Live data files."""
        return self._files(True, branch, tag, snapshot_id)

    def delete_files(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: int | None = None
    ) -> pa.Table:
        """Live delete files and deletion vectors."""
        return self._files(False, branch, tag, snapshot_id)

    def vectors(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: int | None = None
    ) -> pa.Table:
        """Live deletion vectors and the data files they are for."""
        return vectors_table(self._entries(self._snapshot(branch, tag, snapshot_id)))

    def manifests(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: int | None = None
    ) -> pa.Table:
        """The manifests of the snapshot."""
        snapshot = self._snapshot(branch, tag, snapshot_id)
        return manifests_table(snapshot_manifests(self.environment.store, snapshot))

    def entries(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: int | None = None
    ) -> pa.Table:
        """Every manifest entry of the snapshot, those that mark a removal included."""
        snapshot = self._snapshot(branch, tag, snapshot_id)
        return entries_table(self._entries(snapshot, live_only=False), self.state.metadata)

    def partitions(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: int | None = None
    ) -> pa.Table:
        """What each partition holds."""
        snapshot = self._snapshot(branch, tag, snapshot_id)
        return partitions_table(self._entries(snapshot), self.state.metadata)

    def view(self, name: str, **options: str | int | None) -> pa.Table:
        """A view by its name.

        Raises:
            InvalidInputError: There is none of that name, or it does not take one of the options.
        """
        if name not in VIEWS:
            raise InvalidInputError(f"there is no view {name!r}", views=", ".join(VIEWS))
        given = {option: value for option, value in options.items() if value is not None}
        refused = sorted(set(given) - VIEWS[name])
        if refused:
            raise InvalidInputError(f"the view {name} takes no {refused[0]}", table=self.state.name)
        read: Callable[..., pa.Table] = getattr(self, name)
        return read(**given)

    def _files(
        self, of_data: bool | None, branch: str | None, tag: str | None, snapshot_id: int | None
    ) -> pa.Table:
        found = self._entries(self._snapshot(branch, tag, snapshot_id))
        if of_data is not None:
            found = [e for e in found if (e.data_file.content == FileContent.DATA) == of_data]
        return files_table(found, self.state.metadata)

    def _entries(self, snapshot: Snapshot | None, *, live_only: bool = True) -> list[ManifestEntry]:
        return snapshot_entries(self.environment.store, snapshot, live_only=live_only)

    def _snapshot(
        self, branch: str | None, tag: str | None, snapshot_id: int | None
    ) -> Snapshot | None:
        if branch is not None and tag is not None:
            raise InvalidInputError("name a branch or a tag, not both", table=self.state.name)
        return select_snapshot(
            self.state, ref=tag if branch is None else branch, snapshot_id=snapshot_id
        ).snapshot


_OF_SNAPSHOT = frozenset({"branch", "tag", "snapshot_id"})

# The views and the options each takes.
VIEWS: Mapping[str, frozenset[str]] = {
    "snapshots": frozenset(),
    "history": frozenset(),
    "refs": frozenset(),
    "metadata_log": frozenset(),
    "staged": frozenset({"staging", "target"}),
    "files": _OF_SNAPSHOT,
    "data_files": _OF_SNAPSHOT,
    "delete_files": _OF_SNAPSHOT,
    "vectors": _OF_SNAPSHOT,
    "manifests": _OF_SNAPSHOT,
    "entries": _OF_SNAPSHOT,
    "partitions": _OF_SNAPSHOT,
}
