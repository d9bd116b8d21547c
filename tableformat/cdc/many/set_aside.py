"""A table whose events cannot be taken is set aside: a property of the table says so and why.

It stays so over restarts, its offsets stay where they stood, and the other tables go on. `resume`
takes the property away; a stream that runs notices by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.evolution import update_properties
from tableformat.environment import Environment
from tableformat.errors import NotFoundError
from tableformat.spec.names import SET_ASIDE

REASON_CHARS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Why a table was set aside, by which query, in which batch, and when (wall clock)."""

    query: str
    batch: int
    reason: str
    at_ms: int


def read_set_aside(properties: Mapping[str, str]) -> SetAside | None:
    """Why a table is set aside; None: it is not. What cannot be read is a reason, too."""
    text = properties.get(SET_ASIDE)
    if text is None:
        return None
    try:
        return SetAside(**json.loads(text))
    except (ValueError, TypeError):
        return SetAside(query="?", batch=0, reason=text, at_ms=0)


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
    if SET_ASIDE not in state.metadata.properties:
        return state
    return update_properties(environment, state.identifier, removals=[SET_ASIDE])
