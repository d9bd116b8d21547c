"""A stream into many tables that is killed at each of its steps, and run again."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tableformat.runtime import Runtime
from tableformat.spec.names import BATCH_ID, BATCH_TABLES, SOURCE_OFFSETS
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import Killed, engine_of, killed_at, message, notes

TABLES = ("a", "b", "c")
NEW_KEYS = {"assume-new-keys": "true"}  # a change that is staged twice is two rows


class World:
    def __init__(self):
        self.runtime = Runtime()
        self.catalog = memory_catalog(runtime=self.runtime)
        self.cluster = FakeCluster()
        self.sent = {}

    def send(self, name, count, partition=0):
        keys = self.sent.setdefault(name, [])
        first = len(keys)
        keys += range(first, first + count)
        changes = (message("c", {"id": key, "note": "new"}) for key in keys[first:])
        self.cluster.send(f"pg.public.{name}", *changes, partition=partition)

    def run(self, kill_at=None, **pace):
        """The fail points that were hit; killed at the one of this number."""
        with killed_at(self.runtime, kill_at) as life:
            engine_of(self.catalog, self.cluster, defaults=NEW_KEYS, **pace).run(follow=False)
        assert kill_at is not None or not life.is_killed
        return life.hits

    def check(self):
        """Every event is in its table once, and every batch on all tables that it names."""
        for name, keys in self.sent.items():
            assert sorted(notes(self.catalog, f"shop.{name}")) == keys, name
        held, named = {}, {}
        for name in self.sent:
            metadata = self.catalog.load_table(f"shop.{name}").state.metadata
            summaries = [s.summary.additional_properties for s in metadata.snapshots]
            numbers = [int(s[BATCH_ID]) for s in summaries]
            assert numbers == sorted(set(numbers)), "a batch came twice, or late"
            for number, summary in zip(numbers, summaries, strict=True):
                held.setdefault(number, set()).add(f"shop.{name}")
                told = json.loads(summary[BATCH_TABLES])
                assert named.setdefault(number, told) == told
            ends = [json.loads(s[SOURCE_OFFSETS])[f"pg.public.{name}"] for s in summaries]
            total = sum(len(log) for (t, _), log in self.cluster.logs.items()
                        if t == f"pg.public.{name}")  # fmt: skip
            assert sum(ends[-1].values()) == total
        assert {number: sorted(tables) for number, tables in held.items()} == named


@pytest.mark.slow
def test_killed_at_any_step_every_event_is_staged_once_and_every_batch_is_whole():
    world = World()
    for name in TABLES:
        world.send(name, 4)
    steps = len(world.run(batch_events=6))
    world.check()
    assert steps > 20
    # The process and its catalog die at step k of the second run; the third goes on.
    for kill_at in range(1, steps, 3):
        world = World()
        for name in TABLES:
            world.send(name, 2)
        world.run()
        for name in TABLES:
            world.send(name, 4)
        world.run(kill_at, batch_events=6)
        for name in TABLES[:2]:
            world.send(name, 1)
        world.run()
        world.check()


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_killed_again_and_again_while_topics_come_and_grow(seed):
    drawn = random.Random(seed)
    world = World()
    world.send("a", 1)
    for _ in range(drawn.randint(2, 6)):
        for name in drawn.sample(TABLES, drawn.randint(1, 3)):
            world.send(name, drawn.randint(1, 5), partition=0)
        world.run(drawn.randint(1, 60), batch_events=drawn.choice([2, 5, 100]))
    world.run()
    world.check()


@pytest.mark.parametrize("failing", ["shop.a", "shop.b"])
def test_table_that_fails_after_others_have_the_batch_is_done_again_from_its_offset(failing):
    """The crash after one of two commits: what the other lacks is told by the first alone."""
    world = World()
    world.send("a", 2)
    world.send("b", 2)
    commits = []

    def hit(name):
        if name == "ingest.before_commit":
            commits.append(name)
            if len(commits) == 2:
                raise Killed

    world.runtime.fail_points.observer = hit
    with pytest.raises(Killed):
        engine_of(world.catalog, world.cluster, defaults=NEW_KEYS).run(follow=False)
    world.runtime.fail_points.observer = None
    world.send(failing.removeprefix("shop."), 3)
    engine = engine_of(world.catalog, world.cluster, defaults=NEW_KEYS)
    engine.run(follow=False)
    assert engine.listener.batches == [(0, ["shop.b"]), (1, [failing])]
    world.check()


@pytest.mark.parametrize("seed", range(6))
def test_bad_records_are_put_aside_once_whatever_is_killed_and_cut_anew(seed):
    drawn = random.Random(seed)
    world, sent = World(), Counter()
    options = NEW_KEYS | {"on-bad-record": "dead-letter"}

    def send(name, count):
        for offset in range(sent[name], sent[name] + count):
            good = message("c", {"id": offset, "note": "new"})
            world.cluster.send(f"pg.public.{name}", (None, "{bad") if offset % 2 else good)
        sent[name] += count

    def run(kill_at, batch_events):
        with killed_at(world.runtime, kill_at) as life:
            engine = engine_of(
                world.catalog, world.cluster, defaults=options, batch_events=batch_events
            )
            engine.run(follow=False)
        return life

    for name in "ab":
        send(name, 2)
    for _ in range(6):
        for name in "ab":
            send(name, drawn.randint(0, 4))
        run(drawn.randint(1, 60), drawn.choice([1, 2, 3, 100]))
    assert not run(None, 100).is_killed
    for name in "ab":
        bad = [f"pg.public.{name}-0@{offset}" for offset in range(1, sent[name], 2)]
        letters = world.catalog.load_table(f"shop.{name}_dead_letter").scan().to_arrow()
        assert sorted(letters["position"].to_pylist()) == sorted(bad)
        assert sorted(notes(world.catalog, f"shop.{name}")) == list(range(0, sent[name], 2))
