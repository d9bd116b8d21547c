"""Files that were written under a schema which is no earlier version of the one that reads them.

REPLACE TABLE begins `main` anew with other columns: they keep their ids by their names, whatever
their types. Branches, tags and snapshots of before keep the files of then. Those can be read with
their own schema alone, and no commit can bring them to the new table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from tableformat.catalog.base import TableState
from tableformat.errors import UnsupportedError
from tableformat.scan.key_fields import is_promotion
from tableformat.spec.metadata_models import snapshot_index


def why_unreadable(schema: Schema, written: Schema, *, whole: bool = True) -> str | None:
    """The first column of `schema` that a file written under `written` cannot give. Pure.

    `whole`: also one that is required and was not there; else only those of another type.
    """
    if schema.schema_id == written.schema_id:
        return None
    return _difference(schema.fields, written.fields, "", whole)


def check_readable(
    state: TableState,
    schema: Schema,
    snapshot_ids: Iterable[int | None],
    *,
    action: str,
    whole: bool = True,
) -> None:
    """Refuse what some snapshots have written if `schema` cannot read it.

    Args:
        state: The table version.
        schema: What rows are read with, or are to be part of.
        snapshot_ids: Those that added files; of one that has expired nothing is told.
        action: What to do instead.
        whole: See `why_unreadable`.

    Raises:
        UnsupportedError: Names the first, the column, and where the table was replaced.
    """
    for snapshot, why in unreadable(state.metadata, schema, snapshot_ids, whole=whole):
        raise cannot_read(state, schema, snapshot, why, action=action)


def cannot_read(
    state: TableState, schema: Schema, snapshot: Snapshot, why: str, *, action: str
) -> UnsupportedError:
    """What to say of a snapshot that is `unreadable`."""
    return UnsupportedError(
        f"what was written under schema {snapshot.schema_id} cannot be read with schema "
        f"{schema.schema_id}{_replaced(state.metadata, snapshot)}: {why}",
        table=state.name,
        snapshot_id=snapshot.snapshot_id,
        action=action,
    )


def unreadable(
    metadata: TableMetadata,
    schema: Schema,
    snapshot_ids: Iterable[int | None],
    *,
    whole: bool = True,
) -> Iterator[tuple[Snapshot, str]]:
    """Those of some snapshots whose files `schema` cannot read, in their order, and why. Pure."""
    by_id = snapshot_index(metadata)
    told: dict[int | None, str | None] = {schema.schema_id: None, None: None}
    for snapshot_id in dict.fromkeys(snapshot_ids):
        snapshot = by_id.get(snapshot_id or 0)
        if snapshot is None:
            continue
        if snapshot.schema_id not in told:
            found = (each for each in metadata.schemas if each.schema_id == snapshot.schema_id)
            written = next(found, schema)
            told[snapshot.schema_id] = why_unreadable(schema, written, whole=whole)
        why = told[snapshot.schema_id]
        if why is not None:
            yield snapshot, why


def _replaced(metadata: TableMetadata, snapshot: Snapshot) -> str:
    """Where main and its log begin, if that is later."""
    first = next(iter(metadata.snapshot_log), None)
    begun = None if first is None else snapshot_index(metadata).get(first.snapshot_id)
    number = snapshot.sequence_number or 0
    if begun is None or begun.parent_snapshot_id or (begun.sequence_number or 0) <= number:
        return ""
    return f", as the table was replaced (REPLACE TABLE, by snapshot {begun.snapshot_id})"


def _difference(
    wanted: Iterable[NestedField], written: Iterable[NestedField], path: str, whole: bool
) -> str | None:
    stored = {each.field_id: each for each in written}
    for field in wanted:
        here, known, why = f"{path}{field.name}", stored.get(field.field_id), None
        if known is not None:
            why = _difference_of(field, known, here, whole)
        elif whole and field.required and field.initial_default is None:
            why = f"column '{here}' is required, and was not there"
        if why is not None:
            return why
    return None


def _difference_of(field: NestedField, known: NestedField, path: str, whole: bool) -> str | None:
    wanted, written = field.field_type, known.field_type
    if wanted is written:
        return None
    if type(wanted) is type(written) and _parts(wanted):
        return _difference(_parts(wanted), _parts(written), f"{path}.", whole)
    if is_promotion(known, field):
        return None
    return f"column '{path}' is {wanted}, and was {written}"


def _parts(kind: IcebergType) -> Sequence[NestedField]:
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    return (kind.key_field, kind.value_field) if isinstance(kind, MapType) else ()
