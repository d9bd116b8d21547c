"""Files of events with a query id: runs go on where the one before stopped, whatever grew."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resolver import resolve
from tableformat import FencedError, InvalidInputError, TableCatalog
from tableformat.cdc import event_files
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.event_files import ingest_files
from tableformat.cdc.ingest import write_batch
from tableformat.cdc.replay import replay_dead_letters
from tableformat.cdc.sink import plan_sink
from tests.support.change_events import ORDERS, create_orders, envelope, events_table, order
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import Killed, killed_at


class World:
    """A table, and files whose rows it has to have."""

    def __init__(self, folder: Path) -> None:
        self.table = create_orders(memory_catalog(str(folder / "index")))
        self.folder = folder
        self.written = 0

    def lines(self, name: str, count: int, *, bad: bool = False) -> Path:
        """A file gets so many events more."""
        path = self.folder / name
        with path.open("a") as file:
            for number in range(self.written, self.written + count):
                file.write(envelope("c", after=order(number, note=name)) + "\n")
            file.write("{bad\n" if bad else "")
        self.written += count
        return path

    def plan(self, format_name: str = "debezium-json", **options: str):
        return plan_sink(
            self.table.environment,
            self.table.identifier,
            format_name=format_name,
            options=options,
            branch="staging",
        )

    def read(self, *paths: Path, size: int = 10, query: str = "q", **options: str) -> list[bool]:
        """Whether each batch had been read before."""
        found = ingest_files(self.plan(**options), paths, query_id=query, batch_events=size)
        return [each.repeated for each in found]

    def ids(self, branch: str = "staging") -> list[int]:
        """Of all events once, as each has a key of its own."""
        found = self.table.refresh().scan(branch=branch).to_arrow()["id"].to_pylist()
        assert len(found) == len(set(found))
        return sorted(found)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("is_published", [False, True])
@pytest.mark.parametrize("size", [1, 7, 10, 1_000])
def test_events_behind_those_that_were_read_are_read_however_they_are_cut(
    world: World, size: int, is_published: bool
) -> None:
    first = world.lines("a.jsonl", 25)
    assert world.read(first) == [False] * 3
    if is_published:
        resolve(world.table.refresh())
    world.lines("a.jsonl", 6)
    second = world.lines("b.jsonl", 12)
    assert True in world.read(first, second, size=size)
    assert world.ids() == list(range(43))
    assert set(world.read(first, second, size=size + 1)) == {True}
    resolve(world.table.refresh())
    assert world.ids("main") == list(range(43))


@pytest.mark.parametrize("count", [3, 25, 40])
def test_files_that_do_not_begin_with_what_was_read_are_refused_and_nothing_is_written(
    world: World, count: int
) -> None:
    world.read(world.lines("monday.jsonl", 25))
    before = world.table.refresh().metadata_location
    tuesday = world.lines("tuesday.jsonl", count)
    with pytest.raises(InvalidInputError, match="do not begin with the 25 events"):
        world.read(tuesday)
    assert world.table.refresh().metadata_location == before
    world.read(tuesday, query="another")
    assert len(world.ids()) == 25 + count


def test_other_queries_do_not_take_away_how_far_one_has_read(world: World) -> None:
    one = world.lines("one.jsonl", 15)
    world.read(one)
    world.read(world.lines("other.jsonl", 5), query="other")
    write_batch(world.plan(), events_table([envelope("c", after=order(100))]), BatchId("third", 7))
    world.lines("one.jsonl", 5)
    assert world.read(one) == [True, True, False]
    assert world.ids() == [*range(25), 100]


def test_batches_without_changes_and_of_bad_records_only_count(world: World) -> None:
    path = world.lines("a.jsonl", 1, bad=True)
    options = {"on-bad-record": "dead-letter"}
    assert world.read(path, size=1, **options) == [False, False]
    world.lines("a.jsonl", 1, bad=True)
    assert world.read(path, size=2, **options) == [True, False]
    assert world.ids() == [0, 1]
    letters = TableCatalog(world.table.environment).load_table("shop.orders_dead_letter")
    assert letters.scan().to_arrow().num_rows == 2


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_batches_of_large_events_have_fewer(
    world: World, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, options = world.lines("a.jsonl", 40), {}
    if suffix == "parquet":
        rows = {"id": range(40), "region": [f"{'x' * 100}{number}" for number in range(40)]}
        path = tmp_path / "a.parquet"
        columns = pa.schema([ORDERS.field(name) for name in rows])
        pq.write_table(pa.table(rows).cast(columns), path, use_dictionary=False)
        options = {"format_name": "upsert"}
    assert [each.num_rows for each in event_files.read_events(path, 1_000)] == [40]
    monkeypatch.setattr(event_files, "BATCH_BYTES", 1_000)
    assert max(each.num_rows for each in event_files.read_events(path, 1_000)) < 20
    world.read(path, size=1_000, **options)
    assert world.ids() == list(range(40))
    assert all(world.read(path, size=1_000, **options))
    assert world.ids() == list(range(40))


def test_rows_of_parquet_files_count_and_another_file_is_refused(world: World) -> None:
    def write(name: str, first: int) -> Path:
        rows = {"id": range(first, first + 20), "region": ["EU"] * 20}
        path = world.folder / name
        pq.write_table(pa.table(rows).cast(pa.schema([ORDERS.field(n) for n in rows])), path)
        return path

    def read(*paths: Path, size: int) -> list[bool]:
        plan = world.plan("upsert")
        found = ingest_files(plan, paths, query_id="q", batch_events=size)
        return [each.repeated for each in found]

    one, two = write("1.parquet", 0), write("2.parquet", 20)
    assert read(one, size=15) == [False, False]
    with pytest.raises(InvalidInputError, match="do not begin with the 20 events"):
        read(two, size=15)
    assert read(one, two, size=50) == [True, False]
    assert world.ids() == list(range(40))


def test_two_processes_that_cut_other_batches_are_told_and_the_next_run_reads_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = world.lines("a.jsonl", 30)
    real = event_files.write_batch

    def beside(*given, **more):
        monkeypatch.setattr(event_files, "write_batch", real)
        next(ingest_files(world.plan(), [path], query_id="q", batch_events=4))
        return real(*given, **more)

    monkeypatch.setattr(event_files, "write_batch", beside)
    with pytest.raises(FencedError, match="another process of this query"):
        world.read(path, size=30)
    assert world.ids() == list(range(4))
    world.read(path, size=30)
    assert world.ids() == list(range(30))


def test_batches_of_a_release_that_did_not_count_are_told_by_their_numbers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = world.lines("a.jsonl", 20)
    real = event_files.write_batch
    monkeypatch.setattr(
        event_files,
        "write_batch",
        lambda plan, events, batch, **_: real(plan, events, batch),
    )
    world.read(path)
    monkeypatch.undo()
    world.lines("a.jsonl", 10)
    assert world.read(path) == [True, True, False]
    world.lines("a.jsonl", 5)
    assert world.read(path, size=100) == [True, False]
    assert world.ids() == list(range(35))


@pytest.mark.parametrize("seed", range(5))
def test_any_history_of_growing_files_and_runs_reads_each_event_once(
    world: World, seed: int
) -> None:
    rng = random.Random(seed)
    paths: list[Path] = []
    for _ in range(12):
        if not paths or rng.random() < 0.3:
            paths.append(world.lines(f"{len(paths)}.jsonl", rng.randint(0, 8)))
        else:
            world.lines(paths[-1].name, rng.randint(0, 8))
        runs = ingest_files(world.plan(), paths, query_id="q", batch_events=rng.randint(1, 9))
        for _ in range(rng.randint(0, 6)):  # and then it is killed
            next(runs, None)
        if rng.random() < 0.3 and world.table.refresh().state.head("staging") is not None:
            resolve(world.table)
    world.read(*paths)
    assert world.ids() == list(range(world.written))


BAD = {"on-bad-record": "dead-letter"}


def letters(world: World, table: str = "shop.orders_dead_letter") -> Counter[tuple[str, str]]:
    found = TableCatalog(world.table.environment).load_table(table).scan().to_arrow()
    return Counter(zip(found["from_table"].to_pylist(), found["position"].to_pylist(), strict=True))


def killed(world: World, *paths: Path, at: int, size: int, **options: str) -> None:
    """A run that ends at the fail point of that number."""
    with killed_at(world.table.environment.runtime, at):
        world.read(*paths, size=size, **options)


@pytest.mark.parametrize("seed", range(12))
def test_bad_records_are_put_aside_once_whatever_is_killed_and_cut_anew(
    world: World, seed: int
) -> None:
    rng = random.Random(seed)
    paths: list[Path] = []
    bad: Counter[tuple[str, str]] = Counter()
    lines: Counter[str] = Counter()
    for step in range(10):
        name = f"{rng.choice([len(paths), max(len(paths) - 1, 0)])}.jsonl"
        for _ in range(rng.randint(0, 5)):
            count, is_bad = rng.randint(0, 2), rng.random() < 0.7
            path = world.lines(name, count, bad=is_bad)
            lines[name] += count + is_bad
            if is_bad:
                bad["shop.orders", f"{name}:{lines[name]}"] += 1
            paths += [] if path in paths else [path]
        if step and rng.random() < 0.3 and world.table.refresh().state.head("staging"):
            resolve(world.table)
        killed(world, *paths, at=rng.randint(1, 30), size=rng.randint(1, 9), **BAD)
    world.read(*paths, **BAD)
    assert letters(world) == bad
    assert world.ids() == list(range(world.written))


@pytest.mark.parametrize("size", [2, 5, 100])
def test_files_that_were_replaced_after_a_kill_keep_their_own_bad_records(
    world: World, size: int
) -> None:
    path = world.lines("a.jsonl", 2, bad=True)

    def kill(name: str) -> None:
        if name == "ingest.before_commit":
            raise Killed

    points = world.table.environment.runtime.fail_points
    points.observer = kill
    with pytest.raises(Killed):
        world.read(path, **BAD)
    points.observer = None
    assert letters(world) == {("shop.orders", "a.jsonl:3"): 1}
    good = path.read_text().splitlines()[:2]
    path.write_text("\n".join(["{other", *good, "{more"]))
    world.read(path, size=size, **BAD)
    want = {("shop.orders", f"a.jsonl:{line}"): 1 for line in (1, 3, 4)}
    assert letters(world) == want
    assert world.ids() == [0, 1]


def test_tables_that_share_a_query_id_and_a_dead_letter_table_keep_all_bad_records(
    world: World,
) -> None:
    """Also after a replay whose records are bad still."""
    catalog = TableCatalog(world.table.environment)
    other = catalog.create_table("shop.more", ORDERS, primary_key=["id"])
    shared = BAD | {"dead-letter-table": "shop.dead"}
    path = world.lines("a.jsonl", 1, bad=True)
    plans = [
        plan_sink(
            world.table.environment, each.identifier,
            format_name="debezium-json", options=shared, branch="staging",
        )
        for each in (world.table, other)
    ]  # fmt: skip
    for plan in plans:
        list(ingest_files(plan, [path], query_id="daily"))
    want = {("shop.orders", "a.jsonl:2"): 1, ("shop.more", "a.jsonl:2"): 1}
    assert letters(world, "shop.dead") == want
    for plan in reversed(plans):
        list(replay_dead_letters(plan, any_order=True))
    assert letters(world, "shop.dead") == want


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("batches", [1, 2])
def test_process_whose_only_batch_another_has_cut_otherwise_is_told(
    world: World, bad: bool, batches: int
) -> None:
    path = world.lines("a.jsonl", 2)
    world.lines("a.jsonl", 1, bad=bad)
    points = world.table.environment.runtime.fail_points

    def beside(name: str) -> None:
        if name == "ingest.before_commit":
            points.observer = None
            one = ingest_files(world.plan(**BAD), [path], query_id="q", batch_events=1)
            assert not any(next(one).repeated for _ in range(batches))

    points.observer = beside
    with pytest.raises(FencedError, match="another process of this query"):
        world.read(path, **BAD)
    world.read(path, **BAD)
    assert world.ids() == [0, 1, 2]
    assert sum(letters(world).values()) == bad


def test_two_processes_that_cut_other_batches_put_each_bad_record_aside_once(
    world: World,
) -> None:
    """The other one commits more bad records between this one's look and its commit."""
    path = world.lines("a.jsonl", 0, bad=True)
    world.lines("a.jsonl", 0, bad=True)
    points = world.table.environment.runtime.fail_points

    def beside(name: str) -> None:
        if name == "catalog.before_swap":
            points.observer = None
            list(ingest_files(world.plan(**BAD), [path], query_id="q", batch_events=1))

    world.plan(**BAD)  # makes the table
    points.observer = beside
    world.read(path, **BAD)
    assert letters(world) == {("shop.orders", f"a.jsonl:{line}"): 1 for line in (1, 2)}
