"""Under which partition spec equality deletes are written, so that they reach every older row.

A delete written under a partitioned spec reaches rows of the same spec and partition only. That is
enough, and cheaper to read, when the key alone decides the partition and no file was ever written
under another spec. Otherwise an update may move a row between partitions, and the old copy must
not survive (R09): such deletes are written under an unpartitioned spec, which makes them global.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddPartitionSpecUpdate, TableUpdate

from tableformat.catalog.base import TableState
from tableformat.commit.swap import swap_until_settled
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError
from tableformat.spec.constraints import immutable_columns
from tableformat.spec.unpartitioned import is_unpartitioned, source_ids


def delete_spec(
    environment: Environment, state: TableState, *, values_of_deletes_known: bool = True
) -> tuple[PartitionSpec, TableState]:
    """The spec to write equality deletes under, and the table that has it.

    Args:
        environment: Catalog, store, clock.
        state: The table.
        values_of_deletes_known: Deleted keys come with the row's other columns, so IMMUTABLE ones
            can place the delete. Without them the delete would go to the null partition (R10).

    Effects: adds an unpartitioned spec to the table (not as its default) where one is needed and
    missing; that is a metadata commit of its own, harmless if the caller stops after it.
    """
    known = values_of_deletes_known
    found = find_delete_spec(state.metadata, values_of_deletes_known=known)
    if found is not None:
        return found, state
    change = _AddUnpartitionedSpec(values_of_deletes_known=known)
    outcome = swap_until_settled(environment, state.identifier, change, state=state)
    added = find_delete_spec(outcome.state.metadata, values_of_deletes_known=known)
    assert added is not None
    return added, outcome.state


def find_delete_spec(
    metadata: TableMetadata, *, values_of_deletes_known: bool = True
) -> PartitionSpec | None:
    """The spec to write equality deletes under; None if the table has no fitting one."""
    spec = metadata.spec()
    if key_decides_partition(metadata, values_of_deletes_known=values_of_deletes_known):
        return spec
    for candidate in metadata.partition_specs:
        if is_unpartitioned(candidate):
            return candidate
    return None


def check_delete_scope(
    state: TableState, spec: PartitionSpec, *, values_of_deletes_known: bool = True
) -> None:
    """Refuse to commit deletes whose partition scope the table has outgrown meanwhile.

    A delete written under a partitioned spec does not reach rows of another spec, so it is only
    right while there is no other.

    Args:
        state: The table as it is now.
        spec: What the deletes were written under.
        values_of_deletes_known: See `delete_spec`.

    Raises:
        CommitConflictError: A partition spec was added, or the IMMUTABLE constraint that placed the
            deletes was dropped, since they were written.
    """
    known = values_of_deletes_known
    if is_unpartitioned(spec) or key_decides_partition(
        state.metadata, values_of_deletes_known=known
    ):
        return
    raise CommitConflictError(
        "the table got a new partition spec while the batch was written, or lost its "
        "IMMUTABLE constraint",
        action="write the batch again",
        table=state.name,
    )


def key_decides_partition(metadata: TableMetadata, *, values_of_deletes_known: bool = True) -> bool:
    """Whether all rows a key ever had lie in one partition of one spec that a delete can name."""
    if len(metadata.partition_specs) > 1:
        return False
    fixed = set(metadata.schema().identifier_field_ids)
    if values_of_deletes_known:
        fixed |= immutable_field_ids(metadata)
    return source_ids(metadata.spec()) <= fixed


def immutable_field_ids(metadata: TableMetadata) -> set[int]:
    """Columns that never change for one key, by the table's IMMUTABLE constraint."""
    constraint = immutable_columns(metadata)
    return set() if constraint is None else set(constraint.field_ids)


@dataclass(frozen=True, slots=True)
class _AddUnpartitionedSpec:
    """`TableChange`: one more partition spec, without fields."""

    values_of_deletes_known: bool

    def prepare(self, state: TableState) -> Sequence[TableUpdate]:
        if self.has_landed(state):
            return ()
        # Not the next id: PyIceberg on a SQL catalog, which has planned the same spec on an older
        # version, would write it a second time, and Java refuses a table with one id twice.
        free_id = max(spec.spec_id for spec in state.metadata.partition_specs) + 2
        return (AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=free_id)),)

    def has_landed(self, state: TableState) -> bool:
        known = self.values_of_deletes_known
        return find_delete_spec(state.metadata, values_of_deletes_known=known) is not None

    def context(self) -> dict[str, object]:
        return {"change": "add an unpartitioned spec for equality deletes"}
