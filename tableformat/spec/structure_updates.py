"""Updates that change what a table is: schema, partition spec, sort order, location, version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PARTITION_FIELD_ID_START
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssignUUIDUpdate,
    RemovePartitionSpecsUpdate,
    RemoveSchemasUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    UpgradeFormatVersionUpdate,
)

from tableformat.errors import (
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tableformat.spec.metadata_changes import MetadataChanges
from tableformat.spec.metadata_models import METADATA_MODELS
from tableformat.spec.names import USER_FIELD_ID_MAX

_LAST_ADDED = -1


def assign_uuid(changes: MetadataChanges, update: AssignUUIDUpdate) -> None:
    """Only a table without history may get another id: everything is bound to it."""
    if update.uuid == changes.get("table_uuid"):
        return
    if changes.get("snapshots"):
        raise InvalidInputError("the uuid of a table with snapshots cannot change")
    changes.set("table_uuid", update.uuid)


def set_location(changes: MetadataChanges, update: SetLocationUpdate) -> None:
    """Move the place for new files; old ones stay where they are."""
    location = update.location.rstrip("/")
    if not location:
        raise InvalidInputError("a table needs a location")
    if location != changes.get("location"):
        changes.set("location", location)


def upgrade_format_version(changes: MetadataChanges, update: UpgradeFormatVersionUpdate) -> None:
    """To a later version; version 3 starts row ids at 0 (spec: Row Lineage for Upgraded Tables)."""
    wanted, current = update.format_version, changes.format_version
    if wanted == current:
        return
    if wanted < current:
        raise InvalidInputError("a table cannot go back to an earlier format version")
    model = METADATA_MODELS.get(wanted)
    if model is None:
        raise UnsupportedError("no such format version", format_version=wanted)
    changes.upgrade(model, wanted)
    if current == 1:
        changes.set("last_sequence_number", 0)
    if wanted > 2:
        changes.set("next_row_id", 0)
    changes.structure = True


@dataclass(frozen=True, slots=True)
class _Kind:
    """Definitions of one kind, of which one is in force: their fields in metadata and in each."""

    what: str
    all: str
    id: str
    current: str

    def ids(self, changes: MetadataChanges) -> list[int]:
        """Of those there are."""
        return [getattr(one, self.id) for one in changes.get(self.all)]

    def add(self, changes: MetadataChanges, new: Any) -> bool:
        """Append one; it is not in force yet. False if the same one is there already."""
        new_id = getattr(new, self.id)
        known = dict(zip(self.ids(changes), changes.get(self.all), strict=True))
        if known.get(new_id, new) != new:
            # Ids are planned on the base: a clash means that another evolution landed first.
            raise CommitConflictError(f"{self.what} id is taken by another one", id=new_id)
        changes.added_ids[self.what] = new_id
        if new_id not in known:
            changes.set(self.all, [*changes.get(self.all), new])
        return new_id not in known

    def put_in_force(self, changes: MetadataChanges, wanted: int) -> None:
        """Make one the current one, or the default for new files; -1: the one just added."""
        if wanted == _LAST_ADDED:
            if self.what not in changes.added_ids:
                raise InvalidInputError(f"no {self.what} was added in this commit")
            wanted = changes.added_ids[self.what]
        if wanted == changes.get(self.current):
            return
        if wanted not in self.ids(changes):
            raise NotFoundError(f"{self.what} does not exist", id=wanted)
        changes.set(self.current, wanted)
        changes.structure = True

    def remove(self, changes: MetadataChanges, gone: set[int]) -> None:
        """Forget some that are not in force; the caller knows that no file uses them."""
        if missing := gone - set(self.ids(changes)):
            raise NotFoundError(f"{self.what} does not exist", id=min(missing))
        if changes.get(self.current) in gone:
            adjective = self.current.split("_", 1)[0]
            raise InvalidInputError(f"the {adjective} {self.what} cannot be removed")
        if gone:
            kept = [one for one in changes.get(self.all) if getattr(one, self.id) not in gone]
            changes.set(self.all, kept)


_SCHEMA = _Kind("schema", "schemas", "schema_id", "current_schema_id")
_SPEC = _Kind("partition spec", "partition_specs", "spec_id", "default_spec_id")
_ORDER = _Kind("sort order", "sort_orders", "order_id", "default_sort_order_id")


def add_schema(changes: MetadataChanges, update: AddSchemaUpdate) -> None:
    """Append a schema, and keep count of column ids."""
    highest = update.schema_.highest_field_id
    if highest > USER_FIELD_ID_MAX:
        raise InvalidInputError("a field id is in the reserved range", field_id=highest)
    if _SCHEMA.add(changes, update.schema_):
        changes.set("last_column_id", max(changes.get("last_column_id"), highest))


def add_spec(changes: MetadataChanges, update: AddPartitionSpecUpdate) -> None:
    """Append a partition spec, and keep count of partition field ids."""
    if _SPEC.add(changes, update.spec):
        last = changes.get("last_partition_id") or PARTITION_FIELD_ID_START - 1
        ids = [one.field_id for one in update.spec.fields]
        changes.set("last_partition_id", max([last, *ids]))


STRUCTURE_UPDATES: dict[type, Callable[[MetadataChanges, Any], object]] = {
    AssignUUIDUpdate: assign_uuid,
    SetLocationUpdate: set_location,
    UpgradeFormatVersionUpdate: upgrade_format_version,
    AddSchemaUpdate: add_schema,
    SetCurrentSchemaUpdate: lambda c, u: _SCHEMA.put_in_force(c, u.schema_id),
    RemoveSchemasUpdate: lambda c, u: _SCHEMA.remove(c, set(u.schema_ids)),
    AddPartitionSpecUpdate: add_spec,
    SetDefaultSpecUpdate: lambda c, u: _SPEC.put_in_force(c, u.spec_id),
    RemovePartitionSpecsUpdate: lambda c, u: _SPEC.remove(c, set(u.spec_ids)),
    AddSortOrderUpdate: lambda c, u: _ORDER.add(c, u.sort_order),
    SetDefaultSortOrderUpdate: lambda c, u: _ORDER.put_in_force(c, u.sort_order_id),
}
