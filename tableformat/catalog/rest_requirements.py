"""What binds a REST commit to the version it was planned on (REST spec: TableRequirement).

A REST server compares no metadata locations. So every value that an update builds on is asserted:

| update                          | requirement                                    |
|---------------------------------|------------------------------------------------|
| any                             | table uuid                                     |
| set or remove a ref             | that ref's head, or that it does not exist      |
| remove snapshots                | the heads of all refs                          |
| add a schema                    | last assigned field id                         |
| change or remove schemas        | current schema id                              |
| add a partition spec            | last assigned partition id                     |
| change or remove specs          | default spec id                                |
| add or change the sort order    | default sort order id                          |

Sequence numbers and row ids are the server's to check: a snapshot planned before another branch
moved is refused by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionSpecsUpdate,
    RemoveSchemasUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)


def requirements_for(
    base: TableMetadata, updates: Sequence[TableUpdate]
) -> tuple[TableRequirement, ...]:
    """The requirements of `updates`, each once, in a fixed order."""
    found: list[TableRequirement] = [AssertTableUUID(uuid=base.table_uuid)]
    for name in sorted(_touched_refs(base, updates)):
        ref = base.refs.get(name)
        head = None if ref is None else ref.snapshot_id
        found.append(AssertRefSnapshotId(ref=name, snapshot_id=head))

    def has(*kinds: type[object]) -> bool:
        return any(isinstance(update, kinds) for update in updates)

    if has(AddSchemaUpdate):
        found.append(AssertLastAssignedFieldId(last_assigned_field_id=base.last_column_id))
    if has(SetCurrentSchemaUpdate, RemoveSchemasUpdate):
        found.append(AssertCurrentSchemaId(current_schema_id=base.current_schema_id))
    if has(AddPartitionSpecUpdate):
        last = base.last_partition_id
        found.append(AssertLastAssignedPartitionId(last_assigned_partition_id=last))
    if has(SetDefaultSpecUpdate, RemovePartitionSpecsUpdate):
        found.append(AssertDefaultSpecId(default_spec_id=base.default_spec_id))
    if has(AddSortOrderUpdate, SetDefaultSortOrderUpdate):
        order_id = base.default_sort_order_id
        found.append(AssertDefaultSortOrderId(default_sort_order_id=order_id))
    return tuple(found)


def _touched_refs(base: TableMetadata, updates: Sequence[TableUpdate]) -> set[str]:
    refs: set[str] = set()
    for update in updates:
        if isinstance(update, SetSnapshotRefUpdate | RemoveSnapshotRefUpdate):
            refs.add(update.ref_name)
        elif isinstance(update, RemoveSnapshotsUpdate):
            # A ref that moved onto an expiring snapshot must stop the expiry.
            refs.update(base.refs)
    return refs
