"""A stream that is followed waits for what does not answer, tells it once, and loses nothing."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace

import pytest

from tableformat import TableCatalog
from tableformat.cdc.many import local_engine
from tableformat.cdc.many.outages import follow_through_outages
from tableformat.cdc.many.set_aside import read_set_aside
from tableformat.errors import (
    AccessRefusedError,
    CommitConflictError,
    CommitUnknownError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)
from tableformat.runtime import Runtime
from tableformat.spec.names import BATCH_TABLES
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import engine_of, message, notes

TABLES = ("orders", "lines", "parts")


@dataclass
class QuickClock:
    """Sleeps take no time."""

    at_ms: float = 1_000_000.0

    def now_ms(self):
        return int(self.at_ms)

    def monotonic_ms(self):
        self.at_ms += 1
        return self.at_ms

    def sleep_ms(self, duration_ms):
        self.at_ms += duration_ms


@dataclass
class Failing:
    """Passes on what it is asked, but for calls that fail or whose answers are lost."""

    inner: object
    plan: dict[str, list] = field(default_factory=dict)

    def __getattr__(self, name):
        what = getattr(self.inner, name)
        if name not in self.plan:
            return what

        def call(*given, **more):
            left = self.plan[name]
            error = left.pop(0) if left else None
            if error is None:
                return what(*given, **more)
            if isinstance(error, CommitUnknownError):
                what(*given, **more)
            raise error

        return call


@pytest.fixture
def world():
    """A catalog, the same behind what fails, and a cluster with three topics."""
    catalog = memory_catalog(runtime=Runtime(clock=QuickClock(), side_by_side=False))
    environment = catalog.environment
    seam, store = Failing(environment.catalog), Failing(environment.store)
    failing = TableCatalog(replace(environment, catalog=seam, store=store))
    cluster = FakeCluster()
    for name in TABLES:
        cluster.send(f"pg.public.{name}", message("c", {"id": 1, "note": "new"}))
    return catalog, failing, cluster


def follow(engine, catalog, cluster, held, *, turns=4_000):
    """Follow until all tables hold what they have to."""
    left = iter(range(turns))

    def shows(name):
        try:
            return notes(catalog, f"shop.{name}") == held
        except NotFoundError:
            return False

    def stop():
        return next(left, None) is None or all(map(shows, TABLES))

    follow_through_outages(engine, stop)
    for name in TABLES:
        assert notes(catalog, f"shop.{name}") == held


def lines(caplog):
    return [(one.levelname, one.getMessage()) for one in caplog.records]


NO_ANSWER = StoreUnavailableError("nobody answers")
DENIED = NotFoundError("object does not exist", location="a manifest list")
WRONG = CorruptDataError("not an Avro file", location="a manifest list")
UNKNOWN = CommitUnknownError("the answer was lost")


@pytest.mark.parametrize(
    ("seam", "plan"),
    [
        ("catalog", {"load_table": [None] * 4 + [NO_ANSWER] * 9}),
        ("catalog", {"load_table": [None] * 4 + [AccessRefusedError("not authorized")] * 9}),
        ("catalog", {"commit": [None, NO_ANSWER, NO_ANSWER, NO_ANSWER]}),
        ("catalog", {"commit": [UNKNOWN, None, UNKNOWN]}),
        ("store", {"put": [None] * 5 + [NO_ANSWER] * 4}),
        ("store", {"get": [DENIED, WRONG, DENIED]}),
        ("source", {"ends": [NO_ANSWER] * 3}),
        ("source", {"topics": [None, NO_ANSWER, NO_ANSWER], "ends": [NO_ANSWER]}),
    ],
    ids=["load", "access", "commit", "answers", "store", "objects", "brokers", "brokers-restart"],
)
@pytest.mark.parametrize("begun", [False, True])
def test_stream_waits_over_an_outage_and_every_event_is_in_its_table_once(
    world, caplog, seam, plan, begun
):
    catalog, failing, cluster = world
    if begun:
        engine_of(catalog, cluster).run(follow=False)
        for name in TABLES:
            cluster.send(f"pg.public.{name}", message("u", {"id": 1, "note": "paid"}))
            cluster.send(f"pg.public.{name}", message("c", {"id": 2, "note": "new"}))
    held = {1: "paid", 2: "new"} if begun else {1: "new"}
    engine = engine_of(failing, cluster, interval_ms=0)
    engine.open(follow=True)
    faulty = getattr(failing.environment, seam) if seam != "source" else Failing(engine.source)
    if seam == "source":
        engine.source = faulty
    faulty.plan.update({name: list(calls) for name, calls in plan.items()})
    with caplog.at_level(logging.INFO, logger="icefold.ingest"):
        follow(engine, catalog, cluster, held)
    warned = [text for level, text in lines(caplog) if level != "INFO"]
    assert len(warned) <= 1, warned
    assert not [text for text in warned if "waits, and tries again" not in text]
    for name in TABLES:
        table = catalog.load_table(f"shop.{name}")
        assert read_set_aside(table.state.metadata.properties) is None


def test_outage_is_told_once_with_its_reason_and_once_that_it_is_over(world, caplog):
    catalog, failing, cluster = world
    engine = engine_of(failing, cluster, interval_ms=0)
    engine.open(follow=True)
    failing.environment.store.plan["put"] = [NO_ANSWER] * 6
    left = iter(range(400))
    with caplog.at_level(logging.INFO, logger="icefold.ingest"):
        follow_through_outages(engine, lambda: next(left, None) is None)
    told = [each for each in lines(caplog) if "stream" in each[1]]
    assert [level for level, _ in told] == ["WARNING", "INFO"]
    assert told[0][1] == "the stream waits, and tries again: unavailable: nobody answers"
    assert told[1][1].startswith("the stream goes on, after ")
    assert notes(catalog, "shop.orders") == {1: "new"}


def test_stop_ends_a_stream_that_waits(world):
    _, failing, cluster = world
    engine = engine_of(failing, cluster, interval_ms=0)
    engine.open(follow=True)
    failing.environment.store.plan["put"] = [NO_ANSWER] * 1_000
    left = iter(range(50))
    follow_through_outages(engine, lambda: next(left, None) is None)
    assert failing.environment.store.plan["put"], "it has tried to the end"


@pytest.mark.parametrize(
    "error", [FencedError("another process"), InvalidInputError("a setting is wrong")]
)
def test_what_is_no_outage_ends_the_stream(world, monkeypatch, error):
    _, failing, cluster = world
    engine = engine_of(failing, cluster)
    monkeypatch.setattr(local_engine.LocalEngine, "_stage", _raising(error))
    with pytest.raises(type(error)):
        follow_through_outages(engine, lambda: False)


def test_first_opening_is_not_repeated(world):
    _, failing, cluster = world
    failing.environment.catalog.plan["list_tables"] = [NO_ANSWER]
    with pytest.raises(StoreUnavailableError):
        follow_through_outages(engine_of(failing, cluster), lambda: False)


def test_lost_races_are_waited_for(world, caplog):
    catalog, failing, cluster = world
    engine = engine_of(failing, cluster, interval_ms=0)
    engine.open(follow=True)
    failing.environment.catalog.plan["commit"] = [CommitConflictError("lost")] * 300
    follow(engine, catalog, cluster, {1: "new"}, turns=40_000)


def test_tables_that_stand_aside_are_told_once_however_often_the_stream_begins_anew(world, caplog):
    catalog, failing, cluster = world
    engine_of(catalog, cluster).run(follow=False)
    cluster.send("pg.public.parts", ('{"x": 1}', '{"what": 1}'))
    cluster.send("pg.public.orders", message("u", {"id": 1, "note": "paid"}))
    cluster.first["pg.public.lines", 0] = 5
    engine = engine_of(failing, cluster, interval_ms=0)
    engine.open(follow=True)
    failing.environment.store.plan["put"] = [NO_ANSWER] * 5
    left = iter(range(300))
    with caplog.at_level(logging.INFO, logger="icefold.ingest"):
        follow_through_outages(engine, lambda: next(left, None) is None)
    aside = [text for _, text in lines(caplog) if "lines is set aside" in text]
    assert len(aside) == 1
    assert notes(catalog, "shop.orders") == {1: "paid"}


def test_topics_that_brokers_do_not_list_yet_are_waited_for(world, caplog):
    catalog, failing, cluster = world
    engine = engine_of(failing, cluster, interval_ms=0)
    engine.open(follow=True)
    all_topics, few = engine.source.topics(), {"pg.public.orders": 1}
    answers = iter([few] * 5)
    source = engine.source

    class Restarted(Failing):
        def topics(self):
            return next(answers, all_topics)

    engine.source = Restarted(source, {"ends": [NO_ANSWER]})
    failing.environment.store.plan["put"] = [NO_ANSWER] * 5
    follow(engine, catalog, cluster, {1: "new"})
    for name in TABLES:  # one batch, of all
        summary = catalog.load_table(f"shop.{name}").state.head("staging").summary
        assert json.loads(summary.additional_properties[BATCH_TABLES]) == [
            "shop.lines", "shop.orders", "shop.parts"
        ]  # fmt: skip


def test_brokers_that_are_gone_are_told_once_and_that_they_are_back(world, caplog):
    catalog, _, cluster = world
    engine = engine_of(catalog, cluster, interval_ms=0, refresh_ms=1)
    engine.open(follow=True)
    gone = [StoreUnavailableError(f"no broker answers: {text}") for text in "abab"]
    engine.source = Failing(engine.source, {"topics": [None, *gone]})
    left = iter(range(60))
    with caplog.at_level(logging.INFO, logger="icefold.ingest"):
        follow_through_outages(engine, lambda: next(left, None) is None)
    told = [each for each in lines(caplog) if "broker" in each[1]]
    assert told == [
        ("WARNING", "no broker answers: a; the stream waits for it"),
        ("INFO", "a Kafka broker answers again"),
    ]


def _raising(error):
    def stage(*_given, **_more):
        raise error

    return stage
