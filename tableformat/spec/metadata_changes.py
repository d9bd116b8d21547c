"""The working state of `apply_updates`: a base and the fields that differ from it."""

from __future__ import annotations

from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tableformat.errors import NotFoundError
from tableformat.spec.metadata_models import carry_index


class MetadataChanges:
    """Changed fields over an unchanged base. Values set here are new objects, never edited ones."""

    def __init__(self, base: TableMetadata) -> None:
        self.base = base
        self.structure = False  # a schema, spec or sort order changed: check that they agree
        self.time_ms: int | None = None  # the time an update brought along
        self.added_snapshots: dict[int, Snapshot] = {}
        self.main_moves: list[int] = []  # heads of main in this commit, for the snapshot log
        self.added_ids: dict[str, int] = {}  # the last schema, spec or sort order that was added
        self._model: type[TableMetadata] | None = None
        self._fields: dict[str, Any] = {}
        self._removed_snapshots: frozenset[int] = frozenset()

    @property
    def any(self) -> bool:
        """Whether anything differs from the base."""
        return bool(self._fields) or self._model is not None

    def get(self, field: str) -> Any:
        """A field's value so far."""
        if field in self._fields:
            return self._fields[field]
        return getattr(self.base, field, None)

    def set(self, field: str, value: Any) -> None:
        """Give a field a new value."""
        self._fields[field] = value

    @property
    def format_version(self) -> int:
        """The format version so far."""
        return int(self.get("format_version"))

    def upgrade(self, model: type[TableMetadata], version: int) -> None:
        """Build the result as another format version."""
        self._model = model
        self._fields["format_version"] = version

    def find_snapshot(self, snapshot_id: int) -> Snapshot | None:
        """A snapshot of the base or of this commit."""
        if snapshot_id in self._removed_snapshots:
            return None
        return self.added_snapshots.get(snapshot_id) or self.base.snapshot_by_id(snapshot_id)

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """As `find_snapshot`, but it must be there."""
        found = self.find_snapshot(snapshot_id)
        if found is None:
            raise NotFoundError("snapshot does not exist", snapshot_id=snapshot_id)
        return found

    def remove_snapshots(self, snapshot_ids: frozenset[int]) -> None:
        """Take snapshots out of the list."""
        self._removed_snapshots |= snapshot_ids
        kept = [one for one in self.get("snapshots") if one.snapshot_id not in snapshot_ids]
        self.set("snapshots", kept)

    def view(self) -> TableMetadata:
        """The metadata so far, for reading."""
        return self.base.model_copy(update=self._fields) if self._fields else self.base

    def build(self) -> TableMetadata:
        """The result. Everything unchanged is shared with the base."""
        if self._model is None:
            result = self.base.model_copy(update=self._fields)
            if not self._removed_snapshots:
                carry_index(self.base, result, self.added_snapshots)
            return result
        fields = {name: getattr(self.base, name) for name in type(self.base).model_fields}
        fields = {k: v for k, v in fields.items() if k in self._model.model_fields}
        fields |= self.base.model_extra or {}
        return self._model.model_validate({**fields, **self._fields})
