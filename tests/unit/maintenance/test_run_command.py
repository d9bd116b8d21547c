"""`icefold run`: a stream and the maintenance of its tables in one process."""

from __future__ import annotations

import threading

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

import maintenance.scheduler
from maintenance.cli.ingest_many import Heard
from maintenance.cli.ingest_stream import Interrupt
from maintenance.cli.main import cli
from maintenance.cli.maintain import open_scheduler
from maintenance.cli.run import AT_ONCE, run_together
from maintenance.ingest_watch import IngestWatch
from maintenance.scheduler_options import SchedulerOptions
from maintenance.settings import TaskName, parse_config
from tableformat.errors import StoreUnavailableError
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import engine_of, message


@pytest.fixture
def catalog(tmp_path):
    return memory_catalog(str(tmp_path / "index"))


def open_both(catalog, **options):
    """Scheduler, engine and their registry, put together as the command does."""
    registry = CollectorRegistry()
    clock = catalog.environment.runtime.clock
    scheduler, _ = open_scheduler(
        catalog, ["shop.*"], SchedulerOptions(defaults=AT_ONCE, **options), registry
    )
    watch = IngestWatch("shop", clock, is_many=True, registry=registry)
    cluster = FakeCluster()
    for name in ("orders", "lines"):
        cluster.send(f"pg.public.{name}", message("c", {"id": 1, "note": name}))
    engine = engine_of(catalog, cluster, interval_ms=0)
    engine.listener = Heard(watch, on_staged=scheduler.wake)
    return scheduler, engine, cluster, registry


def following(engine):
    def stream(stop):
        wait = threading.Event()
        engine.run(follow=True, stop=lambda: wait.wait(0.01) or stop())

    return stream


def test_what_is_staged_is_published_without_a_poll_and_both_stop(catalog, monkeypatch):
    """With polls an hour apart the stream alone tells what to look at; new tables, too."""
    for name in ("POLL_MIN_MS", "POLL_MAX_MS"):
        monkeypatch.setattr(maintenance.scheduler, name, 3_600_000)
    only = (TaskName.RESOLVE,)
    scheduler, engine, cluster, registry = open_both(catalog, tasks=only)
    interrupted, seen = Interrupt(), []

    def when(run):
        seen.append(run)
        if len(seen) == 2:  # both tables of the first cut
            cluster.send("pg.public.orders", message("u", {"id": 1, "note": "paid"}))
        if len(seen) == 3:
            interrupted.set()

    scheduler._observers += (lambda run: run.outcome == "done" and when(run),)
    end = run_together(scheduler, following(engine), interrupted)
    assert (end.was_stopped, end.abandoned) == (True, ())
    assert [(run.table, run.task.value) for run in seen] == [
        ("shop.lines", "resolve"), ("shop.orders", "resolve"), ("shop.orders", "resolve"),
    ]  # fmt: skip
    assert catalog.load_table("shop.orders").scan().to_arrow()["note"].to_pylist() == ["paid"]
    labels = {"table": "shop.orders"}
    assert registry.get_sample_value("icefold_ingest_batches_total", labels) == 2
    assert registry.get_sample_value("icefold_staging_commits", labels) is not None


def test_stream_that_fails_stops_the_scheduler_and_is_told(catalog):
    scheduler, _, _, _ = open_both(catalog)

    def stream(_stop):
        raise StoreUnavailableError("no broker answers")

    with pytest.raises(StoreUnavailableError, match="no broker"):
        run_together(scheduler, stream, Interrupt())
    assert not [one for one in threading.enumerate() if one.name == "scheduler"]


def test_scheduler_that_fails_stops_the_stream(catalog, monkeypatch):
    scheduler, engine, _, _ = open_both(catalog)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(scheduler, "turn", lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="scheduler has failed"):
        run_together(scheduler, following(engine), Interrupt())


def test_table_that_says_how_much_shall_wait_is_obeyed():
    own = {"icefold.maintain.resolve.commits": "7"}
    assert parse_config(own, None, AT_ONCE)["resolve.commits"] == 7
    assert parse_config({}, None, AT_ONCE)["resolve.commits"] == 1
    assert parse_config(own, {"resolve.commits": 3.0}, AT_ONCE)["resolve.commits"] == 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "name --kafka, --topics and --into"),
        (["--topics", "a.*", "--into", "shop"], "--topics needs --kafka"),
        (["--topics", "a.*", "--kafka", "h:1"], "--topics needs --into"),
    ],
)
def test_words_that_miss_another_are_refused(tmp_path, words, text):
    result = CliRunner().invoke(cli, ["--warehouse", str(tmp_path), "run", *words])
    assert result.exit_code == 2
    assert text in result.stderr
