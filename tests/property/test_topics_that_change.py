"""Topics that are made anew, grow, or lose messages that nobody has read, beside a stream of them.

Tables stand aside for a run, some before they are made.

The oracle is what was sent. Each table holds all of it, once; or it stands aside with the reason.
Whoever drops a table, as that says, has what the topic holds then.
"""

from __future__ import annotations

import bisect
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tableformat.cdc.many.stream_tables import StreamTables
from tableformat.errors import FencedError, InvalidInputError, NotFoundError
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import engine_of, killed_at, message, notes

TABLES = ("a", "b")
WRONG = "its options are wrong"
NEW_KEYS = {"assume-new-keys": "true"}  # a change that is staged twice is two rows


@contextmanager
def untakable(name: str | None) -> Iterator[None]:
    """A table stands aside with its next batch."""
    prepared = StreamTables._prepared

    def preparing(tables, prepare, table, events):
        if table.name == name:
            raise InvalidInputError(WRONG)
        return prepared(tables, prepare, table, events)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamTables, "_prepared", preparing)
        yield


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.catalog, self.cluster = memory_catalog(), FakeCluster()
        self.sent: dict[str, int] = dict.fromkeys(TABLES, 0)
        self.may_lack: set[str] = set()  # of which messages are gone that nobody may have read
        self.dropped: set[str] = set()
        self.anew: dict[str, list[int]] = {name: [] for name in TABLES}  # first keys of each topic
        self.done: list[str] = []
        for name in TABLES:
            self.cluster.create(f"pg.public.{name}", self.rng.randint(1, 2))
            self.send(name)
        self.warned: set[str] = set()  # of a partition that is new to the stream

    def partitions(self, name: str) -> int:
        return sum(topic == f"pg.public.{name}" for topic, _ in self.cluster.logs)

    def send(self, name: str) -> None:
        keys = range(self.sent[name], self.sent[name] + self.rng.randint(1, 4))
        self.sent[name] = keys.stop
        changes = [message("c", {"id": key, "note": "new"}) for key in keys]
        at = self.rng.randrange(self.partitions(name))
        self.cluster.send(f"pg.public.{name}", *changes, partition=at)

    def grow(self, name: str) -> None:
        self.cluster.create(f"pg.public.{name}", self.partitions(name) + 1)

    def make_anew(self, name: str) -> None:
        self.cluster.make_anew(f"pg.public.{name}")
        self.may_lack.add(name)
        self.anew[name].append(self.sent[name])
        for _ in range(self.rng.choice([0, 1, 2, 3, 12])):  # also beyond where it was read to
            self.send(name)

    def delete_records(self, name: str) -> None:
        at = self.rng.randrange(self.partitions(name))
        self.cluster.delete_records((f"pg.public.{name}", at))
        self.may_lack.add(name)

    def drop_table(self, name: str) -> None:
        try:
            self.catalog.drop_table(f"shop.{name}")
        except NotFoundError:
            return
        self.dropped.add(name)

    def in_kafka(self, name: str) -> set[int]:
        first = self.cluster.first
        kept = [log[first.get(p, 0) :] for p, log in self.cluster.logs.items() if p[0][-1] == name]
        return {json.loads(value)["payload"]["after"]["id"] for log in kept for _, value in log}

    def act(self) -> None:
        name = self.rng.choice(TABLES)
        acts = [self.send] * 6 + [
            self.grow, self.make_anew, self.delete_records, self.drop_table
        ]  # fmt: skip
        act = self.rng.choice(acts)
        self.done.append(f"{act.__name__} {name}")
        act(name)

    def run(self) -> None:
        """A process that ends or is killed, with others between its turns."""
        engine = engine_of(
            self.catalog,
            self.cluster,
            defaults=NEW_KEYS,
            resume=self.mended(),
            interval_ms=0,
            refresh_ms=self.rng.choice([0, 0, 1e9]),  # never: others act within seconds
        )
        follow = self.rng.random() < 0.7
        self.done.append("run" if follow else "run to the end")
        left = iter(range(self.rng.randint(1, 6)))

        def stop() -> bool:
            if follow and self.rng.random() < 0.3:
                self.act()
            return follow and next(left, None) is None

        kill_at = self.rng.randint(1, 60) if self.rng.random() < 0.4 else None
        runtime = self.catalog.environment.runtime
        with untakable(self.one()), killed_at(runtime, kill_at), suppress(FencedError):
            engine.run(follow=follow, stop=stop)

    def one(self) -> str | None:
        """A table that cannot take its next batch."""
        name = self.rng.choice([None, None, *(f"shop.{each}" for each in TABLES)])
        self.done.append(f"{name} cannot take its events")
        return name

    def mended(self) -> list[str]:
        """Tables to resume."""
        found = []
        for name in TABLES:
            with suppress(NotFoundError):
                table = self.catalog.load_table(f"shop.{name}")
                if WRONG in table.properties.get("icefold.ingest.set-aside", ""):
                    found.append(table.name)
        return found

    def shown(self, name: str) -> set[int]:
        try:
            return set(notes(self.catalog, f"shop.{name}"))
        except NotFoundError:
            return set()  # nothing to make it of

    def check(self, log: pytest.LogCaptureFixture) -> None:
        """After a run to the end."""
        engine = engine_of(self.catalog, self.cluster, defaults=NEW_KEYS, resume=self.mended())
        engine.run(follow=False)
        self.warned = {each.args[0][-1] for each in log.records if "deleted all before" in each.msg}
        for name in TABLES:
            shown = self.shown(name)
            wanted = set(range(self.sent[name]))
            assert shown <= wanted
            of = {bisect.bisect_right(self.anew[name], key) for key in shown}
            assert len(of) <= 1, f"{name} holds messages of several topics of its name: {shown}"
            reason = engine.aside.get(f"shop.{name}")
            if reason is None and name in self.dropped:
                assert shown >= self.in_kafka(name), f"{name} lacks what is in Kafka"
            elif reason is None and (name not in self.warned or name not in self.may_lack):
                assert shown == wanted, f"{name} lacks {sorted(wanted - shown)}, and nobody says so"
            elif reason is None:
                assert shown >= self.in_kafka(name), f"{name} lacks what is in Kafka"
            else:
                assert name in self.may_lack, reason
                assert "made anew" in reason or "no longer has" in reason
                self.catalog.drop_table(f"shop.{name}")
                healed = engine_of(self.catalog, self.cluster, defaults=NEW_KEYS)
                healed.run(follow=False)
                assert f"shop.{name}" not in healed.aside
                assert self.shown(name) == self.in_kafka(name), f"{name}, dropped and made anew"


@pytest.mark.parametrize(
    ("first", "count"), [(0, 40), pytest.param(1000, 3000, marks=pytest.mark.long)]
)
def test_messages_that_are_gone_are_never_gone_silently(first, count, caplog) -> None:
    for seed in range(first, first + count):
        world = World(seed)
        caplog.clear()
        try:
            run_to_the_end(world, caplog)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(world.done)) from error


def run_to_the_end(world: World, log: pytest.LogCaptureFixture) -> None:
    with untakable(world.one()):
        engine_of(world.catalog, world.cluster, defaults=NEW_KEYS).run(follow=False)
    for _ in range(world.rng.randint(1, 4)):
        for _ in range(world.rng.randint(0, 4)):
            world.act()
        world.run()
    world.check(log)
