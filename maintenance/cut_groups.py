"""Tables that one stream feeds are published together: which they are, when, and the publish.

A table is in a group while its settings say so (`resolve.cut`). A table on which no batch of a
stream waits, only what others have staged behind the last one, is published by itself, up to what
was seen: that changes no cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lock import LockManager
from maintenance.run_history import Ledger
from maintenance.runners import TaskResult, cycle_result
from maintenance.scheduler_options import SchedulerOptions
from maintenance.settings import MaintainConfig, TaskName, parse_config
from maintenance.table_figures import backlog_of
from maintenance.triggers import held_until_ms
from maintenance.watched import WatchedTable
from resolver import resolve_group
from resolver.number_text import plural
from resolver.open_indexes import OpenIndexes
from tableformat import Environment, Table
from tableformat.catalog.base import Identifier
from tableformat.errors import NotFoundError, error_context
from tableformat.spec.names import SET_ASIDE
from tableformat.table_definition import parse_table_name

STALLED_MS = 10_000  # a cut that nothing has changed is looked at again after this time


@dataclass(frozen=True, slots=True, kw_only=True)
class CutGroup:
    """Tables that are published together.

    Attributes:
        members: Those that are watched, by name.
        others: Those that batches touch as well.
        aside: Names of tables that batches touch, and that do not go with the others.
    """

    members: tuple[WatchedTable, ...]
    others: tuple[Identifier, ...]
    aside: frozenset[str]

    @property
    def key(self) -> tuple[Identifier, ...]:
        """What tells groups apart."""
        return tuple(each.identifier for each in self.members)

    @property
    def locations(self) -> tuple[str | None, ...]:
        """The versions of its tables, as far as they are watched."""
        return tuple(each.location for each in self.members)

    @property
    def waiting(self) -> list[WatchedTable]:
        """Members with batches to publish."""
        return [each for each in self.members if has_batches(each)]

    def may_start(self, now_ms: int, *, with_waits: bool = True) -> bool:
        """Whether all members are known, and none is at work, pauses or waits after a failure.

        Args:
            now_ms: Wall clock.
            with_waits: Whether failures make it wait.
        """
        return all(
            each.look is not None and TaskName.RESOLVE not in each.running for each in self.members
        ) and all(
            _held_until_ms(each, now_ms, with_waits=with_waits) <= now_ms for each in self.waiting
        )


def has_batches(each: WatchedTable) -> bool:
    """Whether batches of a stream into several tables wait on a table that goes with them."""
    figures = each.figures
    return figures is not None and bool(figures.backlog.stream.waiting) and goes_with_others(each)


def cut_groups(tables: Iterable[WatchedTable]) -> dict[Identifier, CutGroup]:
    """The group of each table on which batches wait. Pure.

    Tables are of one group if one stream feeds them, or batches that wait name them.
    """
    watched = {each.name: each for each in tables}
    parts: list[tuple[set[str], set[str]]] = []  # queries, and the names of their tables
    for each in watched.values():
        if each.figures is None or not goes_with_others(each):
            continue
        stream = each.figures.backlog.stream
        queries, names = set(stream.queries), {each.name, *stream.tables}
        if not queries:
            continue
        for part in [part for part in parts if part[0] & queries]:
            parts.remove(part)
            queries |= part[0]
            names |= part[1]
        parts.append((queries, names))
    found: dict[Identifier, CutGroup] = {}
    for _, names in parts:
        known = [watched[name] for name in sorted(names & watched.keys())]
        members = [each for each in known if each.look is None or goes_with_others(each)]
        alone = {each.name for each in known} - {each.name for each in members}
        group = CutGroup(
            members=tuple(members),
            others=tuple(parse_table_name(name) for name in sorted(names - watched.keys())),
            aside=frozenset(alone),
        )
        found |= dict.fromkeys((each.identifier for each in group.waiting), group)
    return found


def goes_with_others(each: WatchedTable) -> bool:
    """Whether a table is published with others: its settings, and the stream, let it be.

    What was staged on a table before it was set aside, and while it catches up, goes alone.
    """
    if each.look is None or not _lets_publish(each.look.config):
        return False
    return each.look.state is None or not _is_aside(each.look.state.metadata.properties)


def _is_aside(properties: Mapping[str, str]) -> bool:
    return SET_ASIDE in properties


def _lets_publish(config: MaintainConfig) -> bool:
    return config.is_enabled(TaskName.RESOLVE) and bool(config["resolve.cut"])


def _held_until_ms(each: WatchedTable, now_ms: int, *, with_waits: bool) -> float:
    assert each.figures is not None
    assert each.look is not None
    ledger = each.ledger or Ledger()
    ledger = ledger if with_waits else ledger.without_waits()
    return held_until_ms(TaskName.RESOLVE, each.figures, ledger, each.look.config, now_ms=now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What it did.

    Attributes:
        tables: What was published on each, by name, and the target's head after it.
        text: One line.
    """

    tables: Mapping[str, tuple[TaskResult, int | None]] = field(default_factory=dict)
    text: str = ""


def publish_group(
    environment: Environment,
    group: CutGroup,
    options: SchedulerOptions,
    *,
    lock: LockManager,
    indexes: OpenIndexes,
    on_commit: Callable[[], None],
) -> GroupResult:
    """Publish the newest cut of a group; see `resolve_group`.

    Tables that do not go with the others are left out and not waited for, and so are tables that
    have been dropped.
    """
    tables, aside = _members(environment, group, options)
    report = resolve_group(
        tables,
        set_aside=aside,
        staging=options.staging,
        target=options.target,
        lock=lock,
        lock_timeout_ms=options.lock_timeout_ms,
        indexes=indexes,
        on_commit=on_commit,
    )
    if report.cut is None:
        return GroupResult(text=report.describe())
    head = f"cut {report.cut} of {plural(len(report.tables), 'table')}"
    results = {each.table: (cycle_result(each), each.target_snapshot_id) for each in report.tables}
    return GroupResult(
        tables={
            name: (
                TaskResult(
                    changed=True,
                    text=f"{head}: {result.text}",
                    facts={**result.facts, "cut": report.cut},
                ),
                snapshot_id,
            )
            for name, (result, snapshot_id) in results.items()
        },
        text=report.describe(),
    )


def _members(
    environment: Environment, group: CutGroup, options: SchedulerOptions
) -> tuple[Sequence[Table], set[str]]:
    """The tables that there are, and the names of those that are left out.

    A table that could not be looked at is loaded here, and so are those that only its batches name.
    """
    tables: list[Table] = []
    aside = set(group.aside)
    unseen = [".".join(identifier) for identifier in group.others]
    for each in group.members:
        if each.look is None or each.look.state is None:
            unseen.append(each.name)
        else:
            tables.append(Table(environment, each.look.state))
    found = {*aside, *unseen, *(table.name for table in tables)}
    for name in unseen:  # grows
        identifier = parse_table_name(name)
        try:
            table = Table(environment, environment.catalog.load_table(identifier))
        except NotFoundError:
            aside.add(name)
            continue
        with error_context(table=name):
            config = parse_config(table.properties, options.overrides, options.defaults)
        if not _lets_publish(config) or _is_aside(table.properties):
            aside.add(name)
            continue
        tables.append(table)
        backlog = backlog_of(table.state, staging=options.staging, target=options.target)
        named = backlog.stream.tables - found
        unseen += sorted(named)
        found |= named
    return tables, aside
