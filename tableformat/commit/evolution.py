"""Schema, partition spec, sort order, properties and format version: changes of metadata alone.

PyIceberg's update builders say what a change of schema or spec means (ids, promotions, identifier
rules); the swap is ours. A builder's edit is a function, run again on the fresh version when the
swap is lost to a data commit. When somebody else has changed the same structure meanwhile, the edit
may mean something else now, so that is a conflict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.types import IcebergType, UnknownType

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.column_properties import follow_columns
from tableformat.commit.swap import swap_until_settled
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, InvalidInputError, UnsupportedError
from tableformat.spec.column_defaults import (
    check_defaults,
    exact_default,
    has_defaults,
    with_defaults_of,
    with_widened_defaults,
)
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.constraints import (
    IMMUTABLE_PROPERTIES,
    SEQUENCE_PROPERTIES,
    properties_after,
)
from tableformat.spec.promotion import is_wider
from tableformat.spec.types import check_new_column_names

_EDIT_ERRORS = (ValueError, TypeError, KeyError, ValidationError)


def update_schema(
    environment: Environment,
    identifier: Identifier,
    edit: Callable[[UpdateSchema], object],
    *,
    allow_incompatible_changes: bool = False,
    declare: Callable[[TableMetadata, Schema], Mapping[str, str]] = lambda *_: {},
) -> TableState:
    """Evolve the schema: `update_schema(env, id, lambda s: s.add_column("x", LongType()))`.

    Args:
        environment: Catalog and clock.
        identifier: The table.
        edit: Calls the builder: add (with default), delete, rename, move, promote and document
            columns, `set_identifier_fields`, `union_by_name`. May be called again on a newer
            version.
        allow_incompatible_changes: Let PyIceberg accept changes that break older readers.
        declare: Properties to set in the same commit, from the version and its new schema; may
            refuse by raising.

    Raises:
        CommitConflictError: The schema was changed by somebody else meanwhile.
        InvalidInputError: The edit is not possible on this schema, gives a column a type that the
            spec does not promote its own to, or drops what a constraint names (see
            `spec.constraints`).
        UnsupportedError: A column default on a table older than v3.
    """

    def plan(state: TableState) -> Sequence[TableUpdate]:
        metadata = state.declared.metadata
        builder = _ExactUpdate(
            _planning_on(metadata),
            allow_incompatible_changes=allow_incompatible_changes,
            name_mapping=metadata.name_mapping(),
        )
        updates = _built(edit, builder)
        schema = builder._apply()  # noqa: SLF001 - pure
        _check_defaults(schema, metadata)
        _check_names(schema, metadata.schema())
        if not allow_incompatible_changes:
            _check_types(schema, metadata.schema())
        followed = follow_columns(metadata.properties, metadata.schema(), schema)
        return [*updates, *followed, *_declared(updates, state, declare)]

    return _evolve(environment, identifier, plan, structure=lambda m: m.current_schema_id)


def update_spec(
    environment: Environment, identifier: Identifier, edit: Callable[[UpdateSpec], object]
) -> TableState:
    """Evolve the partition spec: `update_spec(env, id, lambda s: s.add_field("ts", "day"))`.

    Only new files follow the new spec; old files keep theirs. A field that comes back gets its old
    field id (spec: Partition Evolution).

    Raises:
        CommitConflictError: The spec or the schema was changed by somebody else meanwhile.
        InvalidInputError: The edit is not possible.
    """

    def plan(state: TableState) -> Sequence[TableUpdate]:
        # PyIceberg reuses field ids for v2 only; the rule holds for v3 too.
        as_v2 = state.declared.metadata.model_copy(update={"format_version": 2})
        return _built(edit, UpdateSpec(_planning_on(as_v2)))

    return _evolve(
        environment,
        identifier,
        plan,
        structure=lambda m: (m.default_spec_id, m.current_schema_id),
    )


def update_properties(
    environment: Environment,
    identifier: Identifier,
    *,
    updates: Mapping[str, str] | None = None,
    removals: Sequence[str] = (),
) -> TableState:
    """Set and remove table properties. The last writer of a property wins.

    Raises:
        InvalidInputError: A property is both set and removed, is not a string, or declares columns
            (see `commit.declarations`).
    """
    wanted = dict(updates or {})
    for name in (*wanted, *removals):
        if name in (*IMMUTABLE_PROPERTIES, *SEQUENCE_PROPERTIES):
            raise InvalidInputError(
                "this property belongs to a declaration about columns",
                property=name,
                action="use set_immutable_columns, set_sequence_column, or their drop_ methods",
            )
    if set(wanted) & set(removals):
        raise InvalidInputError(
            "a property is both set and removed", property=sorted(set(wanted) & set(removals))[0]
        )
    for name, value in wanted.items():
        if not isinstance(value, str):
            raise InvalidInputError("a property value must be a string", property=name)

    return update_declarations(environment, identifier, lambda _: (wanted, removals))


def update_declarations(
    environment: Environment,
    identifier: Identifier,
    decide: Callable[[TableMetadata], tuple[Mapping[str, str], Sequence[str]]],
) -> TableState:
    """Set and remove properties that depend on the version they are committed on.

    Args:
        environment: Catalog and clock.
        identifier: The table.
        decide: From the metadata to the properties to set and those to remove; may refuse by
            raising. Called again on every newer version that gets in between.
    """
    return decide_properties(environment, identifier, lambda state: decide(state.metadata))


def decide_properties(
    environment: Environment,
    identifier: Identifier,
    decide: Callable[[TableState], tuple[Mapping[str, str], Sequence[str]]],
) -> TableState:
    """As `update_declarations`, from the table; returns it as it is then, changed or not."""

    def plan(state: TableState) -> Sequence[TableUpdate]:
        metadata = state.metadata
        wanted, removals = decide(state)
        changed = {k: v for k, v in wanted.items() if metadata.properties.get(k) != v}
        gone = [name for name in removals if name in metadata.properties]
        result: list[TableUpdate] = []
        if changed:
            result.append(SetPropertiesUpdate(updates=changed))
        if gone:
            result.append(RemovePropertiesUpdate(removals=gone))
        return result

    return _evolve(environment, identifier, plan, structure=lambda _: None)


def upgrade_format_version(environment: Environment, identifier: Identifier) -> TableState:
    """Upgrade the table to v3. Old snapshots stay readable and without row ids.

    `next-row-id` starts at 0; the first commit afterwards gives every data manifest its
    `first_row_id`, and so every existing row an id (spec: Row Lineage for Upgraded Tables).

    Raises:
        InvalidInputError: The table has a higher version.
    """

    def plan(state: TableState) -> Sequence[TableUpdate]:
        if state.metadata.format_version == 3:
            return []
        return [UpgradeFormatVersionUpdate(format_version=3)]

    return _evolve(environment, identifier, plan, structure=lambda _: None)


@dataclass(slots=True)
class _MetadataChange:
    """`TableChange` of metadata alone."""

    plan: Callable[[TableState], Sequence[TableUpdate]]
    structure: Callable[[TableMetadata], object]
    _planned_on: list[object] = field(default_factory=list)
    _updates: Sequence[TableUpdate] = ()

    def prepare(self, state: TableState) -> Sequence[TableUpdate]:
        """Plan on `state`; a conflict if the structure is not the one first planned on."""
        current = self.structure(state.metadata)
        if not self._planned_on:
            self._planned_on.append(current)
        elif self._planned_on[0] != current:
            raise CommitConflictError(
                "the table's structure was changed by another commit",
                action="look at the new structure, then evolve again",
                table=state.name,
            )
        self._updates = self.plan(state)
        return self._updates

    def has_landed(self, state: TableState) -> bool:
        """Whether the table shows every update; who made it so makes no difference."""
        metadata = state.declared.metadata
        return bool(self._updates) and all(_shows(metadata, each) for each in self._updates)

    def context(self) -> dict[str, object]:
        """Nothing that names it."""
        return {}


def _evolve(
    environment: Environment,
    identifier: Identifier,
    plan: Callable[[TableState], Sequence[TableUpdate]],
    *,
    structure: Callable[[TableMetadata], object],
) -> TableState:
    change = _MetadataChange(plan, structure)
    return swap_until_settled(environment, identifier, change).state


def _shows(metadata: TableMetadata, update: TableUpdate) -> bool:
    """Whether the metadata is as after `update`. -1 stands for what the same commit added."""
    match update:
        case AddSchemaUpdate():
            return metadata.schema() == update.schema_
        case SetCurrentSchemaUpdate():
            return update.schema_id in (-1, metadata.current_schema_id)
        case AddPartitionSpecUpdate():
            return metadata.spec() == update.spec
        case SetDefaultSpecUpdate():
            return update.spec_id in (-1, metadata.default_spec_id)
        case AddSortOrderUpdate():
            return metadata.sort_order() == update.sort_order
        case SetDefaultSortOrderUpdate():
            return update.sort_order_id in (-1, metadata.default_sort_order_id)
        case SetPropertiesUpdate():
            return update.updates.items() <= metadata.properties.items()
        case RemovePropertiesUpdate():
            return not set(update.removals) & metadata.properties.keys()
        case UpgradeFormatVersionUpdate():
            return metadata.format_version >= update.format_version
    return False


def _planning_on(metadata: TableMetadata) -> Transaction:
    """What PyIceberg's builders need of a transaction: the metadata to plan on."""
    return cast("Transaction", _Planned(metadata))


@dataclass(frozen=True, slots=True)
class _Planned:
    table_metadata: TableMetadata


class _ExactUpdate(UpdateSchema):
    """PyIceberg's builder; its defaults are values that the columns hold, see `exact_default`."""

    def add_column(
        self,
        path: str | tuple[str, ...],
        field_type: IcebergType,
        doc: str | None = None,
        required: bool = False,
        default_value: Any = None,
    ) -> UpdateSchema:
        if default_value is not None:
            default_value = exact_default(default_value, field_type, _dotted(path))
        super().add_column(path, field_type, doc, required, default_value)
        for fields in self._adds.values():
            if fields[-1].field_id == self._added_name_to_id[_dotted(path)]:
                kind = with_defaults_of(field_type, fields[-1].field_type)
                fields[-1] = fields[-1].model_copy(update={"field_type": kind})
        return self

    def set_default_value(self, path: str | tuple[str, ...], default_value: Any) -> UpdateSchema:
        if default_value is not None:
            kind = self._schema.find_field(_dotted(path), self._case_sensitive).field_type
            default_value = exact_default(default_value, kind, _dotted(path))
        return super().set_default_value(path, default_value)

    def _apply(self) -> Schema:
        return with_widened_defaults(super()._apply(), self._schema)


def _dotted(path: str | tuple[str, ...]) -> str:
    return path if isinstance(path, str) else ".".join(path)


def _built(edit: Callable[[Any], object], builder: Any) -> Sequence[TableUpdate]:
    try:
        edit(builder)
        updates, _ = builder._commit()  # noqa: SLF001 - builds updates, commits nothing
    except _EDIT_ERRORS as error:
        raise InvalidInputError(f"cannot evolve the table: {error}") from error
    return tuple(updates)


def _declared(
    updates: Sequence[TableUpdate],
    state: TableState,
    declare: Callable[[TableMetadata, Schema], Mapping[str, str]],
) -> list[TableUpdate]:
    """Properties that name columns follow a rename, in the same commit; and those of `declare`."""
    schemas = [update.schema_ for update in updates if isinstance(update, AddSchemaUpdate)]
    ids = [update.schema_id for update in updates if isinstance(update, SetCurrentSchemaUpdate)]
    known = {schema.schema_id: schema for schema in state.metadata.schemas}
    schemas += [known[schema_id] for schema_id in ids if schema_id in known]
    if not schemas:
        return []
    schema, metadata = _keyed(schemas[-1], state), state.metadata
    changed = {**properties_after(metadata, schema), **declare(metadata, schema)}
    if stored_columns(metadata.properties, schema):
        from tableformat.sql.computed_columns import StoredValues  # loads sqlglot

        StoredValues.of(metadata.properties, schema)  # refuses what no writer could compute
    return [SetPropertiesUpdate(updates=changed)] if changed else []


def _keyed(schema: Schema, state: TableState) -> Schema:
    """The new schema as it will be seen; refused without the key, as if that were declared."""
    if state.stored is None:
        return schema
    now = state.metadata.schema()
    for field_id in now.identifier_field_ids:
        if schema.find_column_name(field_id) is None:
            raise InvalidInputError(
                "cannot drop a column of the table's key",
                table=state.name,
                column=now.find_column_name(field_id),
                action="name another key first: icefold adopt TABLE --key COLUMNS --apply key",
            )
    return schema.model_copy(update={"identifier_field_ids": now.identifier_field_ids})


def _check_names(schema: Schema, before: Schema) -> None:
    """What a new table's names may not be is refused in new names; those that others made stay."""
    check_new_column_names({f.name for f in schema.fields} - {f.name for f in before.fields})
    known = Counter(each.name.lower() for each in before.fields)
    found = Counter(each.name.lower() for each in schema.fields)
    for each in schema.fields:
        if found[each.name.lower()] > max(1, known[each.name.lower()]):
            raise InvalidInputError(
                "column names must be distinct, also when case is ignored (Spark reads them so)",
                column=repr(each.name),
            )


def _check_types(schema: Schema, before: Schema) -> None:
    """PyIceberg also makes text of bytes, bytes of text and UUIDs of fixed: nobody reads that."""
    for field_id in schema.field_ids & before.field_ids:
        have, want = before.find_type(field_id), schema.find_type(field_id)
        is_plain = have.is_primitive and not isinstance(have, UnknownType)
        if is_plain and have != want and not is_wider(have, want):
            raise InvalidInputError(
                "a column's type can only be widened: int to long, float to double, or a decimal "
                "to more digits",
                column=schema.find_column_name(field_id),
                type=have,
                wanted=want,
            )


def _check_defaults(schema: Schema, metadata: TableMetadata) -> None:
    if metadata.format_version >= 3:
        check_defaults(schema, metadata.schema().field_ids)
        return
    for field_id in schema.field_ids:
        if has_defaults(schema.find_field(field_id)):
            raise UnsupportedError(
                "column defaults need v3",
                action="upgrade the table first",
                column=schema.find_column_name(field_id),
                format_version=metadata.format_version,
            )
