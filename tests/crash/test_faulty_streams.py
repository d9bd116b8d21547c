"""`icefold run`, one or two at once, killed, stopped and continued behind services that misbehave.

`python -m tests.support.faulty_streams FIRST COUNT` runs more seeds, and prints what was said.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faulty_histories import MAKERS, Commands
from tests.support.faulty_streams import StreamHistory
from tests.support.kafka import kafka

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.interop]


@pytest.mark.parametrize("kind", [*MAKERS])
@pytest.mark.parametrize(
    ("first", "count", "steps"), [(3, 1, 6), pytest.param(5000, 50, 12, marks=pytest.mark.long)]
)
@pytest.mark.timeout(7200)
def test_stream_that_is_killed_and_stopped_ends_as_its_events_say(
    tmp_path: Path, kind: str, first: int, count: int, steps: int
) -> None:
    broker = kafka()
    world, commands = MAKERS[kind](tmp_path), Commands(tmp_path)
    try:
        for seed in range(first, first + count):
            # Topics of a broker are there for all kinds, so each has its own.
            history = StreamHistory(world, commands, seed * 10 + [*MAKERS].index(kind), broker)
            history.run(steps)
            assert not history.failures, "\n".join([*history.failures, *history.log])
    finally:
        commands.close()
        for proxy in world.proxies:
            proxy.refuse_connections()
