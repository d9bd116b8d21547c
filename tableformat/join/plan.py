"""A definition held against its tables: what is read of each, by which index, and the result's key.

The result is made of trees. Each has a root; a result row belongs to one root row, and is what that
row and the rows that its joins lead to say. So a change anywhere touches the rows of the roots that
lead to it, and no others. The joins are gone through in their order:

| join | what becomes of the trees before it |
|---|---|
| inner | each goes on to the new table; one without the compared table ends: null equals nothing |
| left | the same, but rows without a match stay, and so does such a tree |
| right | as inner, and one more: the rows of the new table that no row before is joined to |
| full | as left, and the same one more |
| right, as the first | one tree: the second table, left-joined to the first |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, FixedType, UUIDType

from tableformat.catalog.base import TableState
from tableformat.errors import InvalidInputError
from tableformat.join.definition import ColumnOfTable, JoinDefinition, JoinStep, JoinTable
from tableformat.scan.row_filter import bind_filter, parse_filter
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.secondary_indexes import secondary_indexes
from tableformat.spec.types import arrow_schema, arrow_type

Columns = tuple[str, ...]


class Match(StrEnum):
    """What becomes of a row by how many rows it is joined to."""

    INNER = "inner"  # one row per match
    LEFT = "left"  # the same, and one with nulls where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One join of a tree: from a table nearer to the root to the next one."""

    parent: str
    child: str
    parent_columns: Columns
    child_columns: Columns
    match: Match


@dataclass(frozen=True, slots=True)
class Tree:
    """See the module's text.

    Attributes:
        root: The table whose rows the result rows belong to.
        edges: The joins, each after the one that leads to its parent.
        unmatched: Of the root only the rows count that nothing here is joined to; None: all.
    """

    root: str
    edges: tuple[Edge, ...] = ()
    unmatched: Unmatched | None = None

    @property
    def tables(self) -> set[str]:
        """Aliases of the tables in it; result rows of the tree have nulls for the others."""
        return {self.root, *(edge.child for edge in self.edges)}

    def joined(self, edge: Edge) -> Tree | None:
        """With one more join; None: no row is left."""
        if edge.parent in self.tables:
            return replace(self, edges=(*self.edges, edge))
        return None if edge.match == Match.INNER else self

    def only_for(self, alias: str) -> Tree:
        """The joins that decide which rows of a table of the tree are in its result rows."""
        wanted, kept = {alias}, []
        for edge in reversed(self.edges):
            if edge.match == Match.INNER or edge.child in wanted:
                wanted.add(edge.parent)
                kept.append(edge)
        return replace(self, edges=tuple(reversed(kept)))


@dataclass(frozen=True, slots=True)
class Unmatched:
    """All that a right or full join finds before it.

    Attributes:
        trees: Those that have the table that is compared, and of them what decides its rows.
        edge: The join, from that table to the root of the tree that this is of.
    """

    trees: tuple[Tree, ...]
    edge: Edge


@dataclass(frozen=True, slots=True, kw_only=True)
class SidePlan:
    """What is asked of one table.

    Attributes:
        alias, table: Its names.
        key: Its primary key.
        columns: What is read: the key, and what is joined by and selected.
        row_filter: Which of its rows take part, unbound; None: all.
        indexes: By the columns that rows are found by: the secondary index (None: the primary
            key's), and which of the columns it has.
    """

    alias: str
    table: str
    key: Columns
    columns: Columns
    row_filter: BooleanExpression | None
    indexes: Mapping[Columns, tuple[str | None, Columns]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPlan:
    """A join that can be kept.

    Attributes:
        definition: What it was made of.
        sides: The tables by alias.
        trees: See the module's text.
        select: The result's columns by name: table and column.
        key: The result's primary key.
        key_parts: What its computed key column is made of; none without one.
        schema: The result's, computed key included.
    """

    definition: JoinDefinition
    sides: Mapping[str, SidePlan]
    trees: tuple[Tree, ...]
    select: Mapping[str, tuple[str, str]]
    key: Columns
    key_parts: tuple[tuple[str, str], ...]
    schema: pa.Schema

    @property
    def tables(self) -> list[str]:
        """Names of the joined tables, each once, sorted."""
        return sorted({side.table for side in self.sides.values()})


def plan_join(definition: JoinDefinition, states: Mapping[str, TableState]) -> JoinPlan:
    """Check a definition against its tables.

    Args:
        definition: The join.
        states: The tables, by their names.

    Raises:
        InvalidInputError: An unknown column or alias, types that differ, a table without a key, an
            index that is not declared, or a result without a key. Names the key of the definition,
            or what has to be declared.
    """
    tables: list[JoinTable] = [definition.from_, *definition.join]
    aliases = [each.as_ for each in tables]
    repeated = next((alias for alias in aliases if aliases.count(alias) > 1), None)
    if repeated is not None:
        raise InvalidInputError("two tables of a join have one alias", alias=repeated)
    binder = _Binder({each.as_: states[each.table] for each in tables})
    trees = _trees(definition, binder)
    select = _select(definition, binder)
    key, parts = _key(definition, binder, trees, select)
    used = [*select.values(), *parts]
    for edge in trees[0].edges:  # it has all tables
        used += [(edge.parent, name) for name in edge.parent_columns]
        used += [(edge.child, name) for name in edge.child_columns]
    sides = {each.as_: _side(each, binder, trees, used) for each in tables}
    return JoinPlan(
        definition=definition,
        sides=sides,
        trees=trees,
        select=select,
        key=key,
        key_parts=parts,
        schema=_schema(definition, binder, trees, select, key),
    )


@dataclass(frozen=True, slots=True)
class _Binder:
    """The tables of a join by alias."""

    states: Mapping[str, TableState]

    def schema(self, alias: str) -> Schema:
        return self.states[alias].metadata.schema()

    def key(self, alias: str) -> Columns:
        schema = self.schema(alias)
        names = [schema.find_column_name(i) or "" for i in self.states[alias].key_ids]
        if not names or not {*names} <= {field.name for field in schema.fields}:
            raise InvalidInputError(
                "a join takes tables with a primary key of top-level columns",
                table=self.states[alias].name,
            )
        return tuple(names)

    def column(self, given: ColumnOfTable, key: str) -> tuple[str, str]:
        alias, _, name = given.partition(".")
        if alias not in self.states:
            raise InvalidInputError(
                "unknown alias in a join", key=key, alias=alias, known=list(self.states)
            )
        known = [field.name for field in self.schema(alias).fields]
        if name not in known:
            raise InvalidInputError(
                "unknown column in a join", key=key, column=given, columns=known
            )
        return alias, name


def _trees(definition: JoinDefinition, binder: _Binder) -> tuple[Tree, ...]:
    known = [definition.from_.as_]
    trees = [Tree(known[0])]
    for number, step in enumerate(definition.join):
        edge = _edge(step, f"join.{number}.on", known, binder)
        known.append(step.as_)
        if number == 0 and step.how == "right":
            trees = [Tree(edge.child, (_turned(edge),))]
            continue
        before = [tree.only_for(edge.parent) for tree in trees if edge.parent in tree.tables]
        trees = [longer for tree in trees if (longer := tree.joined(edge)) is not None]
        if step.how in ("right", "full"):
            trees.append(Tree(edge.child, unmatched=Unmatched(tuple(before), edge)))
    return tuple(trees)


def _turned(edge: Edge) -> Edge:
    """From the second table to the first."""
    return Edge(
        parent=edge.child,
        child=edge.parent,
        parent_columns=edge.child_columns,
        child_columns=edge.parent_columns,
        match=Match.LEFT,
    )


def _edge(step: JoinStep, key: str, known: list[str], binder: _Binder) -> Edge:
    pairs = [(binder.column(a, key), binder.column(b, key)) for a, b in step.on.items()]
    parents = {parent for (parent, _), _ in pairs}
    if len(parents) > 1 or not parents <= {*known} or {c for _, (c, _) in pairs} != {step.as_}:
        raise InvalidInputError(
            "a join compares columns of one table before it with its own",
            key=key,
            action=f'write on = {{"{known[-1]}.COLUMN" = "{step.as_}.COLUMN"}}',
        )
    for (parent, name), (child, other) in pairs:
        kinds = [
            binder.schema(a).find_field(n).field_type for a, n in ((parent, name), (child, other))
        ]
        if kinds[0] != kinds[1] or not kinds[0].is_primitive:
            raise InvalidInputError(
                "the columns of a join need one primitive type",
                key=key,
                columns=[f"{parent}.{name}", f"{child}.{other}"],
                types=[str(kind) for kind in kinds],
            )
    for each in zip(*pairs, strict=True):
        if len({*each}) < len(each):
            raise InvalidInputError("a join compares a column twice", key=key)
    return Edge(
        parent=parents.pop(),
        child=step.as_,
        parent_columns=tuple(name for (_, name), _ in pairs),
        child_columns=tuple(name for _, (_, name) in pairs),
        match=Match.INNER if step.how in ("inner", "right") else Match.LEFT,
    )


def _select(definition: JoinDefinition, binder: _Binder) -> dict[str, tuple[str, str]]:
    if definition.select is not None:
        return {
            name: binder.column(column, f"select.{name}")
            for name, column in definition.select.items()
        }
    found: dict[str, tuple[str, str]] = {}
    for alias in binder.states:
        for field in binder.schema(alias).fields:
            if field.name in found:
                raise InvalidInputError(
                    "two tables of a join have a column of one name",
                    column=field.name,
                    action='name the result\'s columns: [select] name = "alias.column"',
                )
            found[field.name] = (alias, field.name)
    return found


def _key(
    definition: JoinDefinition,
    binder: _Binder,
    trees: tuple[Tree, ...],
    select: Mapping[str, tuple[str, str]],
) -> tuple[Columns, tuple[tuple[str, str], ...]]:
    """The keys of the root, and of every table of which several rows may match.

    Iceberg's key columns are required. So where a join may leave a part of it without a value, or
    where the user asks for it, the parts are put into one computed text.
    """
    named = definition.key_column
    tree = trees[0]
    parts = [(tree.root, name) for name in binder.key(tree.root)]
    for edge in tree.edges:
        if len(trees) > 1 or not {*binder.key(edge.child)} <= {*edge.child_columns}:
            parts += [(edge.child, name) for name in binder.key(edge.child)]
    if named is not None:
        if named in select:
            raise InvalidInputError(
                "the computed key has the name of another column", key="key-column", column=named
            )
        for alias, name in parts:
            kind = binder.schema(alias).find_field(name).field_type
            if isinstance(kind, BinaryType | FixedType | UUIDType):
                raise InvalidInputError(
                    "a computed key cannot be made of this type",
                    key="key-column",
                    column=f"{alias}.{name}",
                    type=kind,
                )
        return (named,), tuple(parts)
    nullable = _nullable(trees)
    lost = next((part for part in parts if part[0] in nullable), None)
    if lost is not None:
        raise InvalidInputError(
            f"{'.'.join(lost)} is part of the result's key, and null where a row has no match",
            key="key-column",
            action='let the key be computed: key-column = "row_key"',
        )
    names = {column: name for name, column in select.items()}
    missing = next((part for part in parts if part not in names), None)
    if missing is not None:
        raise InvalidInputError(
            f"{'.'.join(missing)} is part of the result's key and not selected",
            key="select",
            action='select it, or let the key be computed: key-column = "row_key"',
        )
    return tuple(names[part] for part in parts), ()


def _nullable(trees: tuple[Tree, ...]) -> set[str]:
    """Tables that result rows may lack."""
    found: set[str] = set()
    for tree in trees:
        found |= trees[0].tables - tree.tables  # the first tree has all tables
        for edge in tree.edges:
            if edge.match == Match.LEFT or edge.parent in found:
                found.add(edge.child)
    return found


def _side(
    table: JoinTable,
    binder: _Binder,
    trees: tuple[Tree, ...],
    used: list[tuple[str, str]],
) -> SidePlan:
    alias, state = table.as_, binder.states[table.as_]
    key = binder.key(alias)
    edges = trees[0].edges  # the first tree has all tables
    joined = [edge.child_columns for edge in edges if edge.child == alias]
    joined += [edge.parent_columns for edge in edges if edge.parent == alias]
    columns = dict.fromkeys([*key, *(name for owner, name in used if owner == alias)])
    row_filter = None
    if table.filter is not None:
        row_filter = parse_filter(table.filter)
        bind_filter(row_filter, state.metadata.schema())
    return SidePlan(
        alias=alias,
        table=table.table,
        key=key,
        columns=tuple(columns),
        row_filter=row_filter,
        indexes={each: _index(state, key, each) for each in dict.fromkeys([key, *joined])},
    )


def _index(state: TableState, key: Columns, columns: Columns) -> tuple[str | None, Columns]:
    """The index by which rows with some values are found: the one on most of the columns."""
    found: list[tuple[str | None, Columns]] = []
    if {*key} <= {*columns}:
        found.append((None, key))
    found += [
        (index.name, index.columns)
        for index in secondary_indexes(state.metadata).values()
        if not index.dropped and {*index.columns} <= {*columns}
    ]
    if not found:
        raise InvalidInputError(
            "a join finds rows by an index on its columns, and none is declared",
            table=state.name,
            columns=list(columns),
            action=f"icefold index add {state.name} by_{columns[0]} {','.join(columns)}",
        )
    return max(found, key=lambda each: len(each[1]))


def _schema(
    definition: JoinDefinition,
    binder: _Binder,
    trees: tuple[Tree, ...],
    select: Mapping[str, tuple[str, str]],
    key: Columns,
) -> pa.Schema:
    nullable = _nullable(trees)
    fields = []
    for name, (alias, column) in select.items():
        field = binder.schema(alias).find_field(column)
        required = name in key or (field.required and alias not in nullable)
        kind = arrow_type(field.field_type, with_field_ids=False)
        fields.append(pa.field(name, kind, nullable=not required))
    if definition.key_column is not None:
        fields.insert(0, pa.field(definition.key_column, pa.string(), nullable=False))
    return pa.schema(fields)


def check_result(plan: JoinPlan, state: TableState) -> None:
    """Refuse a result's table that has not the join's columns and key.

    Raises:
        InvalidInputError: Names the first column that differs.
    """
    schema = state.metadata.schema()
    want = {field.name: field.type for field in plan.schema}
    computed = stored_columns(state.metadata.properties, schema).keys() - want
    fields = arrow_schema(schema, with_field_ids=False)
    have = {field.name: field.type for field in fields if field.name not in computed}
    wrong = sorted(name for name in have.keys() | want if have.get(name) != want.get(name))
    key = {schema.find_column_name(i) for i in schema.identifier_field_ids}
    if wrong or key != {*plan.key}:
        raise InvalidInputError(
            "the result's table is not the one that the join makes",
            table=state.name,
            column=wrong[0] if wrong else None,
            primary_key=list(plan.key),
            action="let the join create it, or name another table with 'into'",
        )
