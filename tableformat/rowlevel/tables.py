"""Tables of a statement: found by name, pinned to one snapshot each, in planning order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, NotFoundError, UnsupportedError
from tableformat.rowlevel.context import TableVersion
from tableformat.scan.snapshot_selection import SelectedSnapshot, select_version
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import MAIN_BRANCH
from tableformat.sql.statement import Statement, table_parts, to_sql

BRANCH_PREFIX, TAG_PREFIX = "branch_", "tag_"
_VERSION_PREFIXES = ("snapshot_id_", "at_timestamp_")


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedTable:
    """One table that a sub-query or the source of MERGE reads; only this snapshot of it."""

    state: TableState
    selected: SelectedSnapshot

    @property
    def version(self) -> TableVersion:
        """For the scan context."""
        snapshot = self.selected.snapshot
        return TableVersion(
            name=self.state.name,
            table_uuid=self.state.metadata.table_uuid,
            snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        )


def find_target(
    environment: Environment, statement: Statement, branch: str | None
) -> tuple[TableState, str]:
    """Load the table that changes, and name the branch.

    `namespace.table.branch_<name>` names a branch, as in Iceberg's Spark catalog.

    Raises:
        NotFoundError: There is no such table.
        UnsupportedError: The name says a version (`snapshot_id_…`, `at_timestamp_…`).
        InvalidInputError: A tag, or two branches.
    """
    parts = statement.target
    state = load_named(environment, parts)
    if state is not None:
        return state, MAIN_BRANCH if branch is None else branch
    owner = load_named(environment, parts[:-1]) if len(parts) > 2 else None
    if owner is None:
        raise NotFoundError(f"there is no table {'.'.join(parts)}")
    selector = parts[-1]
    if selector.startswith(_VERSION_PREFIXES):
        raise UnsupportedError(
            f"Cannot set time travel options {selector} for row-level command scans"
        )
    if selector.startswith(TAG_PREFIX):
        raise InvalidInputError(
            f"{selector.removeprefix(TAG_PREFIX)!r} is a tag, which cannot change",
            table=owner.name,
            action="use a branch",
        )
    if not selector.startswith(BRANCH_PREFIX):
        raise NotFoundError(f"there is no table {'.'.join(parts)}")
    named = selector.removeprefix(BRANCH_PREFIX)
    if branch not in (None, named):
        raise InvalidInputError("two branches are named", branch=branch, table=".".join(parts))
    return owner, named


def pin_tables(
    environment: Environment, statement: Statement, target: TableState, branch: str
) -> tuple[dict[str, PinnedTable], bool]:
    """Fix the snapshot of every other icefold table, in the order the statement names them.

    Returns:
        Snapshots by the table's text in the statement (`table_text`), and whether the target
        itself is read again: at the same snapshot, so its changes meanwhile are conflicts.

    Raises:
        NotFoundError: A version that does not exist.
        InvalidInputError: A version that cannot be read.
    """
    pinned: dict[str, PinnedTable] = {}
    states: dict[tuple[str, ...], TableState] = {target.identifier: target}
    rereads = False
    for table in _tables(statement):
        text = table_text(table)
        if text in pinned:
            continue
        parts = table_parts(table)
        state, selector = _find(environment, parts, states)
        if state is None:
            continue
        is_target = state.identifier == target.identifier
        selected = _select(state, table, selector, branch if is_target else None)
        rereads = rereads or (is_target and _is_head(table, selector, branch))
        pinned[text] = PinnedTable(state=state, selected=selected)
    return pinned, rereads


def table_text(table: exp.Table) -> str:
    """What a table is called in the statement, its version included, its alias not."""
    bare = table.copy()
    bare.set("alias", None)
    return to_sql(bare)


def load_named(environment: Environment, parts: Sequence[str]) -> TableState | None:
    """The table of that name, the catalog's own name in front or not; None if there is none."""
    catalog = environment.catalog
    candidates = [tuple(parts)]
    if len(parts) > 2 and parts[0] == catalog.name:
        candidates.append(tuple(parts[1:]))
    for identifier in candidates:
        if len(identifier) < 2:
            continue
        try:
            return catalog.load_table(identifier)
        except NotFoundError:
            continue
    return None


def _tables(statement: Statement) -> list[exp.Table]:
    return [
        table
        for tree in statement.expressions()
        for table in tree.find_all(exp.Table, bfs=False)
        if len(table_parts(table)) > 1
    ]


def _find(
    environment: Environment,
    parts: tuple[str, ...],
    states: dict[tuple[str, ...], TableState],
) -> tuple[TableState | None, str | None]:
    """The table, each loaded once, and the branch, tag or version its name ends with."""
    for length in (len(parts), len(parts) - 1):
        selector = parts[-1] if length < len(parts) else None
        prefixes = (BRANCH_PREFIX, TAG_PREFIX, *_VERSION_PREFIXES)
        if length < 2 or (selector is not None and not selector.startswith(prefixes)):
            continue
        name = parts[:length]
        state = states.get(name) or load_named(environment, name)
        if state is not None:
            return states.setdefault(state.identifier, state), selector
    return None, None


def _is_head(table: exp.Table, selector: str | None, branch: str) -> bool:
    """Whether the text means the head of `branch`, by whatever name, and no fixed version."""
    version = table.args.get("version")
    if version is None:
        return selector in (None, f"{BRANCH_PREFIX}{branch}")
    value = version.args["expression"]
    return bool(isinstance(value, exp.Literal) and value.is_string and value.this == branch)


def _select(
    state: TableState,
    table: exp.Table,
    selector: str | None,
    branch: str | None,
) -> SelectedSnapshot:
    version = table.args.get("version")
    if version is not None:
        return _versioned(state, version)
    if selector is None:
        if branch is not None and state.head(branch) is None:
            branch = None
        return select_version(state, branch=branch)
    prefix = next(
        p for p in (BRANCH_PREFIX, TAG_PREFIX, *_VERSION_PREFIXES) if selector.startswith(p)
    )
    name = selector.removeprefix(prefix)
    if prefix == BRANCH_PREFIX:
        return select_version(state, branch=name)
    if prefix == TAG_PREFIX:
        return select_version(state, tag=name)
    number = _version_number(name, state)
    if prefix == "snapshot_id_":
        return select_version(state, snapshot_id=number)
    return select_version(state, as_of_ms=number)


def _versioned(state: TableState, version: exp.Expr) -> SelectedSnapshot:
    value = version.args["expression"]
    if version.name.upper() != "VERSION" or not isinstance(value, exp.Literal):
        raise UnsupportedError(
            f"a sub-query cannot read {to_sql(version)}",
            table=state.name,
            action="use VERSION AS OF with a snapshot id, a branch or a tag",
        )
    text = str(value.this)
    if not value.is_string:
        return select_version(state, snapshot_id=_version_number(text, state))
    ref = state.ref(text)
    if ref is None:
        raise NotFoundError(f"there is no branch or tag {text!r}", table=state.name)
    return select_version(state, branch=text)


def _version_number(text: str, state: TableState) -> int:
    number = parse_decimal(text)
    if number is None:
        raise InvalidInputError(f"not a version of a table: {text[:80]}", table=state.name)
    return number
