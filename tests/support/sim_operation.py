"""What an actor asks for, as the model sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.sim_files import Spec
from tests.support.sim_schema import Named, Row, TableSchema


@dataclass(frozen=True, slots=True)
class KeyDelete:
    """An equality delete of another tool on main; `where`: its spec and partition."""

    fields: tuple[int, ...]
    keys: frozenset[tuple[Any, ...]]
    where: tuple[int, tuple[Any, ...]]
    is_global: bool

    def kills(self, row: Row, schema: TableSchema, where: tuple[int, tuple[Any, ...]]) -> bool:
        """Whether a row dies that was there before, in a file of this spec and partition."""
        key = tuple(row[schema.fields.index(each)] for each in self.fields)
        return key in self.keys and (self.is_global or where == self.where)


@dataclass(eq=False, slots=True)
class Operation:
    """What an actor asked for. `keys` die in rows staged before, `rows` come.

    `typed` are the columns it names, with the types it takes them for; those of `rows` come first.
    `becomes` is the meaning of an SQL statement: what a row is after it, None when it goes; what
    `inserts`, given the keys that are there, gives comes anew.
    `shows` says whether a schema and a partition spec are as a change of structure wants them.
    """

    actor: str
    # stage | append | upsert | publish | statement | rewrite | rollback | expire | clean | evolve |
    # pick | forward | set | loose
    kind: str
    rows: tuple[Row, ...] = ()
    keys: frozenset[int] = frozenset()
    typed: dict[str, str] = field(default_factory=dict)
    replaced: tuple[Row, ...] = ()  # given, too, and not there any more at its end
    ids: list[int] = field(default_factory=list)
    outcome: str = "running"
    becomes: Callable[[Named], Named | None] | None = None
    inserts: Callable[[set[int]], tuple[Row, ...]] | None = None
    shows: Callable[[TableSchema, Spec], bool] | None = None
    text: str = ""  # for the log
    since: int = 0  # swaps seen when it began
    shown: bool = False
    bound: tuple[TableSchema, tuple[Row, ...]] | None = None  # what a stage has landed as
    branch: str = "staging"  # of a stage
    is_foreign: bool = False  # another tool's: it repeats no marker, gives staging no retention
    is_lossy: bool = False  # a rewrite that gives new row ids
    epoch: tuple[str, int] | None = None  # of a stream's batch: its query, its number
    again: tuple[str, ...] = ()  # data files that it stages though they are staged already
    source: int | None = None  # the snapshot that is picked
    paths: tuple[str, ...] = ()  # staged data files that are added
    copies: bool = False  # a stage that writes a data file anew, with what lives on
    empties: bool = False  # a stage that deletes all rows from before it
    deletes: tuple[KeyDelete, ...] = ()  # of an upsert; what comes is `bound`

    def rows_under(
        self, schema: TableSchema, rows: tuple[Row, ...] | None = None
    ) -> list[Row] | None:
        """`rows`, by default its own, written under `schema`; None: they cannot be."""
        if not schema.takes(self.typed):
            return None
        rows = self.rows if rows is None else rows
        given = (*rows, *self.replaced)
        bound = schema.bound(list(self.typed)[: len(given[0])] if given else (), given)
        return None if bound is None else [schema.row(row) for row in bound[: len(rows)]]
