"""Updates that change what a table is: schema, partition spec, sort order, location, version."""

from __future__ import annotations

from collections.abc import Callable
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


def add_schema(changes: MetadataChanges, update: AddSchemaUpdate) -> None:
    """Append a schema; it is not current yet."""
    schema = update.schema_
    highest = schema.highest_field_id
    if highest > USER_FIELD_ID_MAX:
        raise InvalidInputError("a field id is in the reserved range", field_id=highest)
    schemas = changes.get("schemas")
    existing = next((one for one in schemas if one.schema_id == schema.schema_id), None)
    if existing is not None and existing != schema:
        raise _taken("schema id", schema.schema_id)
    changes.added_schema_id = schema.schema_id
    if existing is not None:
        return
    changes.set("schemas", [*schemas, schema])
    changes.set("last_column_id", max(changes.get("last_column_id"), highest))


def set_current_schema(changes: MetadataChanges, update: SetCurrentSchemaUpdate) -> None:
    """Make a schema the current one."""
    wanted = _resolve("schema", update.schema_id, changes.added_schema_id)
    if wanted == changes.get("current_schema_id"):
        return
    _require("schema", wanted, [one.schema_id for one in changes.get("schemas")])
    changes.set("current_schema_id", wanted)
    changes.structure = True


def remove_schemas(changes: MetadataChanges, update: RemoveSchemasUpdate) -> None:
    """Forget schemas that are not current."""
    gone = set(update.schema_ids)
    _require_all("schema", gone, {one.schema_id for one in changes.get("schemas")})
    if changes.get("current_schema_id") in gone:
        raise InvalidInputError("the current schema cannot be removed")
    kept = [one for one in changes.get("schemas") if one.schema_id not in gone]
    if gone:
        changes.set("schemas", kept)


def add_spec(changes: MetadataChanges, update: AddPartitionSpecUpdate) -> None:
    """Append a partition spec; it is not the default yet."""
    spec = update.spec
    specs = changes.get("partition_specs")
    existing = next((one for one in specs if one.spec_id == spec.spec_id), None)
    if existing is not None and existing != spec:
        raise _taken("partition spec id", spec.spec_id)
    changes.added_spec_id = spec.spec_id
    if existing is not None:
        return
    last = changes.get("last_partition_id") or PARTITION_FIELD_ID_START - 1
    changes.set("partition_specs", [*specs, spec])
    changes.set("last_partition_id", max([last, *(one.field_id for one in spec.fields)]))


def set_default_spec(changes: MetadataChanges, update: SetDefaultSpecUpdate) -> None:
    """Make a partition spec the one for new files."""
    wanted = _resolve("partition spec", update.spec_id, changes.added_spec_id)
    if wanted == changes.get("default_spec_id"):
        return
    _require("partition spec", wanted, [one.spec_id for one in changes.get("partition_specs")])
    changes.set("default_spec_id", wanted)
    changes.structure = True


def remove_specs(changes: MetadataChanges, update: RemovePartitionSpecsUpdate) -> None:
    """Forget partition specs; the caller knows that no file uses them."""
    gone = set(update.spec_ids)
    _require_all("partition spec", gone, {one.spec_id for one in changes.get("partition_specs")})
    if changes.get("default_spec_id") in gone:
        raise InvalidInputError("the default partition spec cannot be removed")
    kept = [one for one in changes.get("partition_specs") if one.spec_id not in gone]
    if gone:
        changes.set("partition_specs", kept)


def add_sort_order(changes: MetadataChanges, update: AddSortOrderUpdate) -> None:
    """Append a sort order; it is not the default yet."""
    order = update.sort_order
    orders = changes.get("sort_orders")
    existing = next((one for one in orders if one.order_id == order.order_id), None)
    if existing is not None and existing != order:
        raise _taken("sort order id", order.order_id)
    changes.added_sort_order_id = order.order_id
    if existing is None:
        changes.set("sort_orders", [*orders, order])


def set_default_sort_order(changes: MetadataChanges, update: SetDefaultSortOrderUpdate) -> None:
    """Make a sort order the one for new files."""
    wanted = _resolve("sort order", update.sort_order_id, changes.added_sort_order_id)
    if wanted == changes.get("default_sort_order_id"):
        return
    _require("sort order", wanted, [one.order_id for one in changes.get("sort_orders")])
    changes.set("default_sort_order_id", wanted)
    changes.structure = True


def _resolve(what: str, wanted: int, added: int | None) -> int:
    if wanted != _LAST_ADDED:
        return wanted
    if added is None:
        raise InvalidInputError(f"no {what} was added in this commit")
    return added


def _require(what: str, wanted: int, known: list[int]) -> None:
    if wanted not in known:
        raise NotFoundError(f"{what} does not exist", id=wanted)


def _require_all(what: str, wanted: set[int], known: set[int]) -> None:
    if missing := wanted - known:
        raise NotFoundError(f"{what} does not exist", id=min(missing))


def _taken(what: str, value: int) -> CommitConflictError:
    # Ids are planned on the base: a clash means that another evolution landed first.
    return CommitConflictError(f"{what} is taken by another one", id=value)


STRUCTURE_UPDATES: dict[type, Callable[[MetadataChanges, Any], None]] = {
    AssignUUIDUpdate: assign_uuid,
    SetLocationUpdate: set_location,
    UpgradeFormatVersionUpdate: upgrade_format_version,
    AddSchemaUpdate: add_schema,
    SetCurrentSchemaUpdate: set_current_schema,
    RemoveSchemasUpdate: remove_schemas,
    AddPartitionSpecUpdate: add_spec,
    SetDefaultSpecUpdate: set_default_spec,
    RemovePartitionSpecsUpdate: remove_specs,
    AddSortOrderUpdate: add_sort_order,
    SetDefaultSortOrderUpdate: set_default_sort_order,
}
