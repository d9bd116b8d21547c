"""Processes of one stream at once, killed ones, and late commits: nothing is torn or lost.

Each batch is staged table by table. Between any two commits another process of the stream may run,
this one may die, or its request may be on its way still and land when nobody waits for it. Tables
are set aside and resumed, compacted and expired meanwhile, and not every catalog commits groups.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from maintenance import CompactOptions, ExpireOptions, ExpiryPolicy, compact, expire
from resolver import resolve_group
from tableformat.cdc.many import staging, stream_tables
from tableformat.cdc.many.local_engine import Cut
from tableformat.errors import CommitUnknownError, FencedError, InvalidInputError, NotFoundError
from tests.crash.test_run_kills import balances, transaction
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_catalog import MemoryCatalog
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import engine_of

TABLES, ACCOUNTS, START = ("a", "b", "c"), 3, 100
NOTHING_KEPT = ExpireOptions(policy=ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1))
commit_of_table = staging._commit
prepare_messages = staging.prepare_messages


class Bank:
    """Transfers, the processes that stage them, and what tables must show."""

    def __init__(self, seed, monkeypatch):
        self.rng, self.number, self.depth, self.late = random.Random(seed), 1, 0, []
        self.catalog, self.cluster = memory_catalog(), FakeCluster()
        self.held = {name: dict.fromkeys(range(ACCOUNTS), START) for name in TABLES}
        self.all_take_part, self.untakable, self.resumes = seed % 3 != 0, None, False
        self.cut = self.rng.choice([Cut.TRANSACTION, Cut.TRANSACTION, Cut.BATCH])
        self.chunk = self.rng.choice([1, 3, 1_000_000])
        commits_groups = self.rng.random() < 0.7
        transaction(self.cluster, self.number, "c", self.held)
        monkeypatch.setattr(staging, "_commit", self.commit)
        monkeypatch.setattr(stream_tables, "prepare_messages", self.prepare)
        monkeypatch.setattr(MemoryCatalog, "commits_groups", property(lambda _: commits_groups))

    def transfer(self):
        rng, self.number = self.rng, self.number + 1
        amount, changed = rng.randint(1, 50), {}
        for table, sign in zip(rng.choices(TABLES, k=2), (-1, 1), strict=True):
            account = rng.randrange(ACCOUNTS)
            self.held[table][account] += sign * amount
            changed.setdefault(table, {})[account] = self.held[table][account]
        transaction(self.cluster, self.number, "u", changed)

    def run(self, tables=TABLES):
        """A process that stages what there is, however it ends."""
        self.depth += 1
        with contextlib.suppress(FencedError, CommitUnknownError):
            engine = engine_of(
                self.catalog,
                self.cluster,
                include=[f"pg.public.{name}" for name in tables],
                cut=self.cut,
                chunk=self.chunk,
                interval_ms=0 if self.chunk < 10 else 1_000,
                resume=[f"shop.{name}" for name in tables] if self.resumes else (),
                settle_ms=0,
            )
            engine.run(follow=False)
        self.depth -= 1

    def run_some(self):
        """A process that was told to leave out some tables: cuts are of the others."""
        self.run(self.rng.sample(TABLES, 2))

    def prepare(self, environment, table, messages, **how):
        if table.name == self.untakable:
            self.untakable, self.resumes, self.all_take_part = None, True, False
            raise InvalidInputError("its options are wrong")
        return prepare_messages(environment, table, messages, **how)

    def commit(self, environment, ready, *, batch, names):
        def land():
            return commit_of_table(environment, ready, batch=batch, names=names)

        if self.depth and self.rng.random() < 0.5:
            self.happen(land)
        return land()

    def happen(self, land):
        event = self.rng.choice(["die", "late", "beside", "beside"])
        if event == "beside" and self.depth < 3:
            for _ in range(self.rng.randint(0, 2)):
                self.transfer()
            self.run()
            if self.rng.random() < 0.3:
                self.publish()
        elif event in ("die", "late"):
            if event == "late":
                self.late.append(land)
            raise CommitUnknownError("nobody knows")

    def land_late(self):
        """A request of before reaches the catalog."""
        if self.late:
            with contextlib.suppress(FencedError):
                self.late.pop(self.rng.randrange(len(self.late)))()

    def publish(self):
        tables = [self.catalog.load_table(name) for name in self.catalog.list_tables("shop")]
        if tables:
            try:
                resolve_group(tables)
            except NotFoundError:
                return
            self.check()

    def maintain(self):
        """A table is rewritten, forgets what it can, or is set aside with its next batch."""
        names = self.catalog.list_tables("shop")
        table = self.catalog.load_table(self.rng.choice(names)) if names else None
        match table and self.rng.choice(["compact", "expire", "set aside"]):
            case "compact":
                compact(table, CompactOptions(rewrite_all=True))
            case "expire":
                expire(table, NOTHING_KEPT)
            case "set aside":
                self.untakable = table.name

    def check(self):
        """Every cut of all tables holds all the money."""
        if self.cut is Cut.BATCH:
            return
        for cut in self.catalog.cuts("shop"):
            if cut.snapshots.keys() != {f"shop.{name}" for name in TABLES}:
                assert not self.all_take_part, cut.name
                continue
            held = [balances(self.catalog.load_table(n), at) for n, at in cut.snapshots.items()]
            total = sum(sum(each.values()) for each in held)
            assert total == START * ACCOUNTS * len(TABLES), cut.name


@pytest.mark.parametrize(
    ("first", "count"),
    [
        (0, 3),
        pytest.param(3, 9, marks=pytest.mark.slow),
        pytest.param(1000, 500, marks=pytest.mark.long),
    ],
)
def test_processes_of_one_stream_lose_no_event_and_tear_no_transaction(first, count, monkeypatch):
    for seed in range(first, first + count):
        bank = Bank(seed, monkeypatch)
        bank.run()
        for _ in range(12):
            steps = [bank.transfer, bank.run, bank.land_late, bank.publish, bank.maintain]
            bank.rng.choice(steps + [bank.run_some] * (seed % 3 == 0))()
        while bank.late:
            bank.land_late()
        monkeypatch.setattr(staging, "_commit", commit_of_table)
        bank.untakable = None
        bank.run()
        for _ in range(3):  # what was published in part comes first
            bank.publish()
        names = [f"shop.{name}" for name in TABLES]
        shown = [balances(bank.catalog.load_table(name)) for name in names]
        assert shown == [bank.held[name] for name in TABLES], f"seed {seed}"


def test_two_batches_of_one_number_are_in_no_cut_and_lose_nothing(monkeypatch):
    """One process is about to commit on `a`; another has more to stage, and dies before `a`."""
    catalog, cluster = memory_catalog(), FakeCluster()

    def engine(**pace):
        return engine_of(catalog, cluster, cut=Cut.TRANSACTION, settle_ms=0, **pace)

    def publish(limit=None):
        tables = [catalog.load_table(f"shop.{name}") for name in "ab"]
        said = resolve_group(tables, limit=limit).describe()
        return said, [balances(catalog.load_table(table.name)) for table in tables]

    transaction(cluster, 1, "c", {"a": {0: 100}, "b": {0: 100}})
    engine().run(follow=False)
    transaction(cluster, 2, "u", {"a": {0: 100}})

    def dying(environment, ready, *, batch, names):
        if ready.table.name == "shop.a":
            raise CommitUnknownError("it has died")
        return commit_of_table(environment, ready, batch=batch, names=names)

    def slow(environment, ready, *, batch, names):
        transaction(cluster, 3, "u", {"a": {0: 60, 1: 10, 2: 10}, "b": {0: 120}})
        monkeypatch.setattr(staging, "_commit", dying)
        with pytest.raises(CommitUnknownError):
            engine().run(follow=False)
        monkeypatch.setattr(staging, "_commit", commit_of_table)
        return commit_of_table(environment, ready, batch=batch, names=names)

    first = engine()
    monkeypatch.setattr(staging, "_commit", slow)
    first.run(follow=False)
    said, shown = publish()
    assert "batch kafka:shop/1 was staged in two ways" in said
    assert shown == [{0: 100}, {0: 100}]
    transaction(cluster, 4, "u", {"b": {0: 110, 3: 10}})
    engine(chunk=1, interval_ms=0).run(follow=False)  # what `a` lacks comes after that
    assert publish(limit=1)[1] == [{0: 60, 1: 10, 2: 10}, {0: 120}]
    assert publish()[1] == [{0: 60, 1: 10, 2: 10}, {0: 110, 3: 10}]
