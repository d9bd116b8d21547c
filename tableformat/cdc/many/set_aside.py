"""A table whose events cannot be taken is set aside: a property of the table says so and why.

It stays so over restarts, its offsets stay where they stood, and the other tables go on. Who
resumes it asks the stream to take it up where it stood. Until it has caught up, its batches hold
old events beside the others' new ones, so it keeps the property, and no cut has it. Then the
property goes, and another one says which batches lack it (`LeftOut`): cuts of those do not have
it, whenever they are published or read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.evolution import update_properties
from tableformat.environment import Environment
from tableformat.errors import NotFoundError
from tableformat.spec.names import LEFT_OUT, SET_ASIDE

REASON_CHARS_MAX = 1_000
RESUME = "resume"  # an operator's value of the property: take it up again


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Why a table was set aside, by which query, in which batch, and when (wall clock).

    `resumed`: the stream has taken it up again, and it has not caught up yet.
    """

    query: str
    batch: int
    reason: str
    at_ms: int
    resumed: bool = False

    @property
    def is_asked_back(self) -> bool:
        """Whether it may be taken up: it was resumed, or somebody asks for that."""
        return self.resumed or self.reason == RESUME


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Batches `[begin, end)` of a query: the table shows less of the stream than they do."""

    query: str
    begin: int
    end: int

    def covers(self, query: str, batch: int) -> bool:
        """Whether a cut at the batch does not have the table; of a lost query every one."""
        return self.query in (query, "") and self.begin <= batch < self.end


def read_set_aside(properties: Mapping[str, str]) -> SetAside | None:
    """Why a table is set aside; None: it is not. What cannot be read is a reason, too."""
    text = properties.get(SET_ASIDE)
    if text is None:
        return None
    try:
        return SetAside(**json.loads(text))
    except (ValueError, TypeError):
        return SetAside(query="", batch=0, reason=text, at_ms=0)


def left_out(properties: Mapping[str, str]) -> list[LeftOut]:
    """The batches whose cuts do not have the table; those of now, if it is set aside, have no end.

    What cannot be read counts as all of them.
    """
    found = []
    record = read_set_aside(properties)
    if record is not None:
        found.append(LeftOut(query=record.query, begin=record.batch, end=_ENDLESS))
    text = properties.get(LEFT_OUT)
    if text is not None:
        try:
            found.append(LeftOut(**json.loads(text)))
        except (ValueError, TypeError):
            found.append(LeftOut(query="", begin=0, end=_ENDLESS))
    return found


_ENDLESS = 1 << 63


def set_aside(environment: Environment, identifier: Identifier, record: SetAside) -> None:
    """Write down that a table is set aside; a table that does not exist cannot say so.

    Effects: one metadata commit.
    """
    shown = asdict(record) | {"reason": record.reason[:REASON_CHARS_MAX]}
    try:
        update_properties(environment, identifier, updates={SET_ASIDE: json.dumps(shown)})
    except NotFoundError:
        return


def resume(environment: Environment, state: TableState) -> TableState:
    """Let a stream take the table up again, where it stood.

    Effects: one metadata commit, if the table is set aside.
    """
    record = read_set_aside(state.metadata.properties)
    if record is None or record.is_asked_back:
        return state
    text = json.dumps(asdict(replace(record, resumed=True)))
    return update_properties(environment, state.identifier, updates={SET_ASIDE: text})


def end_set_aside(
    environment: Environment, state: TableState, record: SetAside, *, batch: int
) -> None:
    """The table has caught up: cuts from `batch` on have it again.

    Effects: one metadata commit.
    """
    updates: dict[str, str] = {}
    if batch > record.batch:  # else it lacks nothing, and what it lacked before stays
        gaps = [each for each in left_out(state.metadata.properties) if each.query == record.query]
        # One gap is kept, from the first that is remembered on.
        begin = min([record.batch, *(each.begin for each in gaps)])
        gap = LeftOut(query=record.query, begin=begin, end=batch)
        updates = {LEFT_OUT: json.dumps(asdict(gap))}
    update_properties(environment, state.identifier, updates=updates, removals=[SET_ASIDE])
