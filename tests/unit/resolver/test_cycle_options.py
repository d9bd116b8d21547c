"""The phases of a cycle, in wall-clock time."""

from __future__ import annotations

from types import SimpleNamespace

from resolver.cycle_options import Phases
from tests.support.commit_tables import ManualClock


def test_each_millisecond_is_counted_once_where_phases_are_nested():
    clock = ManualClock()
    phases = Phases(SimpleNamespace(runtime=SimpleNamespace(clock=clock)))
    with phases.timed("rebase"):
        clock.advance(1)
        with phases.timed("match"):
            clock.advance(2)
            with phases.timed("index"):
                clock.advance(4)
            with phases.timed("index"):
                clock.advance(8)
        clock.advance(16)
    with phases.timed("match"):
        clock.advance(32)
    assert phases.spent_ms == {"index": 12, "match": 34, "rebase": 17}
