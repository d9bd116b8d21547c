"""Planning a statement: versions are pinned, files chosen, and what cannot be done is refused.

```
target ── version, schema, properties ─┐
other tables ── versions, in order ────┼─> ScanContext
condition ── what metadata can decide ─┤─> files covered whole │ files to look into
assignments ── columns, types ─────────┘
```

No data is read and nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField
from sqlglot import exp

from tableformat.catalog.base import TableState
from tableformat.commit.matching import FileMatcher
from tableformat.commit.request import check_v3
from tableformat.environment import Environment
from tableformat.errors import (
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
    refusing_deep_nesting,
)
from tableformat.rowlevel.changes import ROW_COLUMNS
from tableformat.rowlevel.context import ScanContext, TableVersion
from tableformat.rowlevel.tables import PinnedTable, find_target, pin_tables
from tableformat.scan.plan import FileScanTask, ScanPlan, plan_scan
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.constraints import check_deletes_allowed, immutable_columns
from tableformat.spec.names import STAGING_BRANCH
from tableformat.spec.properties import isolation_of, mode_of
from tableformat.sql.columns import TargetColumns
from tableformat.sql.predicates import PushedFilter, push_down
from tableformat.sql.statement import (
    Assignment,
    MatchKind,
    MergeAction,
    RowLevelOperation,
    Statement,
    has_subquery,
)

_NOT_DETERMINISTIC = frozenset(
    [
        "input_file_block_length",
        "input_file_block_start",
        "input_file_name",
        "monotonically_increasing_id",
        "rand",
        "randn",
        "random",
        "randstr",
        "shuffle",
        "spark_partition_id",
        "uniform",
        "uuid",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPlan:
    """What a commit needs to know of the scan before it, whoever computes. Immutable.

    Attributes:
        state: The target as it was loaded.
        context: The pinned versions and what the commit is held to.
        scan: Files to look into.
        covered: Files of which every row is deleted, proven by metadata.
    """

    state: TableState
    context: ScanContext
    scan: ScanPlan
    covered: tuple[FileScanTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementPlan(OperationPlan):
    """Everything that is decided before the first row of a statement is read. Immutable.

    Attributes:
        statement: What was asked for.
        columns: Resolves names of the target.
        pushed: What of the condition metadata and our own reader can decide.
        others: The other tables, by the text they have in the statement.
    """

    statement: Statement
    columns: TargetColumns
    pushed: PushedFilter
    others: dict[str, PinnedTable]

    @property
    def schema(self) -> Schema:
        """The target's schema."""
        return self.columns.schema


@refusing_deep_nesting("statement")
def plan_statement(
    environment: Environment,
    statement: Statement,
    *,
    branch: str | None = None,
    mode: str | None = None,
) -> StatementPlan:
    """Pin every table, then decide what has to be read.

    Args:
        environment: Catalog and store; manifests are read.
        statement: Parsed.
        branch: The branch to change; None: what the target's name says, else `main`.
        mode: Overrides `write.<operation>.mode`.

    Raises:
        InvalidInputError: Unknown columns, wrong properties, a tag, the staging branch, immutable
            columns that are enforced, functions that are not deterministic.
        NotFoundError: No such table or branch.
        UnsupportedError: A version of a table as the target, or a table that is not v3.
    """
    state, branch = find_target(environment, statement, branch)
    check_target(state, branch)
    metadata = state.metadata
    schema = metadata.schema()
    _check_deterministic(statement)
    deletes = any(clause.action == MergeAction.DELETE for clause in statement.clauses)
    if deletes or statement.operation == RowLevelOperation.DELETE:
        check_deletes_allowed(metadata)
    columns = TargetColumns(
        schema,
        statement.alias,
        state.identifier,
        is_qualified=statement.operation == RowLevelOperation.MERGE,
    )
    updated = _updated_columns(statement, columns, state)
    others, rereads = pin_tables(environment, statement, state, branch)
    pushed = _pushed(statement, columns)
    scan = scan_of(environment, state, branch, pushed.expression)
    is_deleted = statement.operation == RowLevelOperation.DELETE and pushed.is_exact
    covered = covered_tasks(scan, state, pushed.expression) if is_deleted else ()
    context = ScanContext(
        operation=statement.operation,
        branch=branch,
        tables=(
            target_version(state, scan.snapshot),
            *(pinned.version for pinned in others.values()),
        ),
        isolation=isolation_of(metadata.properties, statement.operation),
        mode=mode_of(metadata.properties, statement.operation, mode),
        conflict_filter=AlwaysTrue() if rereads else pushed.expression,
        required_columns=_required_columns(statement, schema),
        updated_columns=updated,
        rereads_target=rereads,
        inserts_rows=any(clause.action == MergeAction.INSERT for clause in statement.clauses),
    )
    return StatementPlan(
        statement=statement,
        state=state,
        context=context,
        columns=columns,
        pushed=pushed,
        scan=without_tasks(scan, covered),
        covered=covered,
        others=others,
    )


def scan_of(
    environment: Environment,
    state: TableState,
    branch: str,
    row_filter: str | BooleanExpression | None,
) -> ScanPlan:
    """The files of the branch's head that may hold rows of the operation."""
    head = state.head(branch)
    scan = plan_scan(
        environment,
        state,
        snapshot_id=None if head is None else head.snapshot_id,
        row_filter=row_filter,
        schema=state.metadata.schema(),
    )
    # Without a head the plan would be that of main: never, for an empty branch.
    return scan if head is not None else replace(scan, snapshot=None, tasks=())


def target_version(state: TableState, snapshot: Snapshot | None) -> TableVersion:
    """A table as it is read."""
    return TableVersion(
        name=state.name,
        table_uuid=state.metadata.table_uuid,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
    )


def covered_tasks(
    scan: ScanPlan, state: TableState, row_filter: BooleanExpression
) -> tuple[FileScanTask, ...]:
    """Files of which every row matches, by metadata. The filter counts as a whole or not at all."""
    matcher = FileMatcher(state.metadata, row_filter)
    return tuple(task for task in scan.tasks if matcher.must_match(task.entry.data_file))


def without_tasks(scan: ScanPlan, covered: Sequence[FileScanTask]) -> ScanPlan:
    """The scan without some files."""
    paths = {task.entry.data_file.file_path for task in covered}
    rest = tuple(task for task in scan.tasks if task.entry.data_file.file_path not in paths)
    return replace(scan, tasks=rest)


def mentioned_names(statement: Statement) -> frozenset[str]:
    """Every name in the statement's expressions, lower case; columns are among them."""
    return frozenset(
        identifier.name.casefold()
        for tree in statement.expressions()
        for identifier in tree.find_all(exp.Identifier)
    )


def check_target(state: TableState, branch: str) -> None:
    """Refuse a branch or a table that no operation may change.

    Raises:
        InvalidInputError: A tag, or the staging branch.
        NotFoundError: There is no such branch.
        UnsupportedError: A table that is not v3, or with a column named like a metadata column.
    """
    ref = state.ref(branch)
    if ref is not None and ref.snapshot_ref_type == SnapshotRefType.TAG:
        raise InvalidInputError(
            f"{branch!r} is a tag, which cannot change", table=state.name, action="use a branch"
        )
    if branch == STAGING_BRANCH:
        raise InvalidInputError(
            "statements do not change the staging branch: its rows are not final",
            table=state.name,
            action="resolve first, or change main; the resolver gets along with it",
        )
    if ref is None and branch != "main":
        raise NotFoundError(
            f"there is no branch {branch!r}", table=state.name, refs=sorted(state.metadata.refs)
        )
    check_v3(
        state.metadata, table=state.name, what="change rows of", why="deletion vectors and row ids"
    )
    for field in state.metadata.schema().fields:
        if field.name.casefold() in ROW_COLUMNS:
            raise UnsupportedError(
                "row-level statements need the metadata columns, and a column of the table hides "
                "one",
                column=field.name,
                action="rename it",
            )


def _check_deterministic(statement: Statement) -> None:
    for tree in statement.scalar_expressions():
        for function in tree.find_all(exp.Func):
            name = (
                function.name if isinstance(function, exp.Anonymous) else function.sql_name()
            ).lower()
            if name in _NOT_DETERMINISTIC:
                raise InvalidInputError(
                    f"{statement.operation.upper()} cannot use {name}(): it gives another value "
                    "each time it is asked",
                    action="compute it into a table first",
                )


def _updated_columns(
    statement: Statement, columns: TargetColumns, state: TableState
) -> tuple[str, ...]:
    """Assigned top-level columns in table order, after checking them."""
    updated: set[str] = set()
    for assignments, is_update, is_star in _assignment_lists(statement, columns.schema):
        seen: set[tuple[str, ...]] = set()
        for assignment in assignments:
            fields = columns.assigned(assignment.path)
            path = tuple(field.name for field in fields)
            if any(path[: len(other)] == other or other[: len(path)] == path for other in seen):
                raise InvalidInputError("a column is assigned twice", column=".".join(path))
            seen.add(path)
            if not is_star and not assignment.is_default:
                check_not_computed(state.metadata, fields[0].name)
            if is_update and not is_star:
                check_mutable(state.metadata, fields[-1], ".".join(path))
            updated.add(fields[0].name)
    if statement.operation == RowLevelOperation.UPDATE and not updated:
        raise InvalidInputError("UPDATE assigns nothing")
    return tuple(field.name for field in columns.schema.fields if field.name in updated)


def may_change_immutable(plan: OperationPlan) -> bool:
    """Whether rows that come have to be compared with those of their keys, and those that go.

    A statement of ours leaves columns alone that it does not assign; another engine is not trusted.
    """
    constraint = immutable_columns(plan.state.metadata)
    if constraint is None or not isinstance(plan, StatementPlan):
        return True
    schema = plan.schema
    ids = {*schema.identifier_field_ids, *constraint.field_ids}
    assigned = {each for name in plan.context.updated_columns for each in _ids_of(schema, name)}
    return plan.context.inserts_rows or bool(ids & assigned)


def _ids_of(schema: Schema, name: str) -> set[int]:
    """A top-level column and the fields in it."""
    return set(Schema(schema.find_field(name)).field_ids)


def check_mutable(metadata: TableMetadata, field: NestedField, name: str) -> None:
    """Refuse to change a column, or a field in a struct, whose values are declared final.

    Raises:
        InvalidInputError: It is IMMUTABLE and enforced, or something below it is.
    """
    constraint = immutable_columns(metadata)
    if constraint is None or not constraint.enforced:
        return
    if set(constraint.field_ids) & set(Schema(field).field_ids):
        raise InvalidInputError(
            "an IMMUTABLE column cannot be changed", column=name, constraint=constraint.name
        )


def check_not_computed(metadata: TableMetadata, column: str) -> None:
    """Refuse a value for a stored computed column, with `InvalidInputError`."""
    if column in stored_columns(metadata.properties, metadata.schema()):
        raise InvalidInputError(
            "a computed column cannot be assigned",
            column=column,
            action="leave it out, or assign DEFAULT, to have it computed again",
        )


def _assignment_lists(
    statement: Statement, schema: Schema
) -> Iterator[tuple[Iterable[Assignment], bool, bool]]:
    """Assignments that belong together, whether they change existing rows, whether all columns.

    Whole rows may bring the values that IMMUTABLE columns have; `may_change_immutable`.
    """
    yield statement.assignments, True, False
    for clause in statement.clauses:
        is_update = clause.action == MergeAction.UPDATE
        if clause.star:
            everything = [Assignment((field.name,), exp.null()) for field in schema.fields]
            yield everything, is_update, True
        else:
            yield clause.assignments, is_update, False


def _pushed(statement: Statement, columns: TargetColumns) -> PushedFilter:
    """What of the statement's condition selects rows of the target by themselves."""
    if statement.operation != RowLevelOperation.MERGE:
        return push_down(statement.where, columns)
    if any(clause.kind == MatchKind.NOT_MATCHED_BY_SOURCE for clause in statement.clauses):
        return PushedFilter(AlwaysTrue(), False)
    return PushedFilter(push_down(statement.on, columns).expression, False)


def _required_columns(statement: Statement, schema: Schema) -> tuple[str, ...]:
    """Columns to read: those mentioned, or all where whole rows are written again."""
    actions = {clause.action for clause in statement.clauses}
    writes = statement.operation == RowLevelOperation.UPDATE or MergeAction.UPDATE in actions
    stars = any(
        not (isinstance(star.parent, exp.Anonymous) and star.parent.name.lower() == "count")
        for tree in statement.scalar_expressions()
        if not has_subquery(tree)
        for star in tree.find_all(exp.Star)
    )
    names = mentioned_names(statement)
    return tuple(
        field.name for field in schema.fields if writes or stars or field.name.casefold() in names
    )
