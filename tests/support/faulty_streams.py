"""Histories of `icefold run` processes that are killed, stopped and continued behind bad services.

A history is drawn from a seed: events of a few topics are sent to Kafka while one or two processes
take them into their tables and maintain those, with other commands beside them, behind the proxies
of `faulty_histories`. What is right is told by the events alone: each table's rows at the end, and
on the way that no key ever shows a state older than one that was seen. Half of the streams have
transactions, and each cut shows all tables after the same one of them.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.faulty_histories import MAKERS, Commands, Ended, Running, World
from tests.support.interop_engines import duckdb_connection
from tests.support.kafka import Kafka, kafka
from tests.support.stream_worlds import message

FIELDS = {"id": "int32", "v": "int32"}
CHANGES = [{"id": "int64"}, {"v": "int64"}, {"w": "int64"}]  # types widened, a column that comes
TABLES = ("a", "b", "fresh")  # `fresh`: inserts without deletes, so that none may come twice
PARTITIONS = {"a": 1, "b": 2, "fresh": 1}
LEASE_MS = 1_500
STOPS_WITHIN_S = 60.0
LINES_MAX = 60  # of a process that lives for a history
Rows = dict[int, int]


@dataclass
class StreamHistory:
    """One seed. `failures` is empty if all went as it has to."""

    world: World
    commands: Commands
    seed: int
    kafka: Kafka
    number: int = 0
    transactions: int = 0
    sent: dict[str, dict[int, list[int | None]]] = field(default_factory=dict)
    fields: dict[str, dict[str, str]] = field(default_factory=dict)
    wide_since: dict[str, int] = field(default_factory=dict)  # the number from which `w` is sent
    sent_by: dict[int, dict[tuple[str, int], int | None]] = field(default_factory=dict)
    seen: dict[tuple[str, int], int] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)
    met: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    shapes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.namespace = f"n{self.seed}"
        self.is_cut = self.rng.random() < 0.5
        self.sent = {name: {} for name in TABLES}
        self.fields = {name: dict(FIELDS) for name in TABLES}

    def run(self, steps: int = 12) -> None:
        """All of it."""
        self.kafka.create_topic(f"{self.namespace}.transaction", partitions=1)
        for name in TABLES:
            self.kafka.create_topic(self._topic(name), partitions=PARTITIONS[name])
        self.tables = self.commands.folder / f"{self.namespace}.yaml"
        self.tables.write_text(
            "defaults: {schema-evolution: full}\ntables:\n  fresh: {assume-new-keys: true}\n"
        )
        self._send()
        self._start(clean=True)
        try:
            for _ in range(steps):
                if self.failures:
                    return
                self._step()
            self._end()
        finally:
            self.world.proxy.faults.clear()
            for each in self.running:
                each.signal(signal.SIGKILL)
                each.ended()

    def _topic(self, table: str) -> str:
        return f"{self.namespace}.public.{table}"

    def _send(self) -> None:
        """A few transactions."""
        for _ in range(self.rng.randint(1, 3)):
            self._send_one()

    def _send_one(self) -> None:
        """Some events for some tables, in the order of their numbers."""
        self.transactions += 1
        name, counts = f"{self.transactions}:{self.transactions * 7}", []
        changed = self.sent_by[self.transactions] = {}
        self._tell(status="BEGIN", id=name)
        for table in self.rng.sample(TABLES, self.rng.randint(1, len(TABLES))):
            events = []
            for order in range(1, self.rng.choice([2, 4, 11, 61])):
                self.number += 1
                key = self.number if table == "fresh" else self.rng.randrange(20)
                states = self.sent[table].setdefault(key, [None])
                if states[-1] is not None and self.rng.random() < 0.3:
                    op, state = "d", None
                else:
                    op, state = ("c" if states[-1] is None else "u"), self.number
                row = dict.fromkeys(self.fields[table], self.number) | {"id": key}
                fields = [
                    {"field": each, "type": its, "optional": each == "w"}
                    for each, its in self.fields[table].items()
                ]
                events.append(message(op, row, fields=fields, transaction=(name, order)))
                states.append(state)
                changed[table, key] = state
            self.kafka.send(self._topic(table), events)
            counts.append({"data_collection": f"public.{table}", "event_count": len(events)})
        self._tell(status="END", id=name, data_collections=counts)

    def _evolve(self) -> None:
        """The source's table gets another column, or a wider type of one."""
        table = self.rng.choice(TABLES)
        self.fields[table] |= self.rng.choice(CHANGES)
        if "w" in self.fields[table]:
            self.wide_since.setdefault(table, self.number + 1)
        self.log.append(f"{table} is {self.fields[table]}")

    def _tell(self, **boundary: Any) -> None:
        self.kafka.send(f"{self.namespace}.transaction", [(None, json.dumps(boundary))])

    def _step(self) -> None:
        rng = self.rng
        weights = {
            self._send: 4, self._misbehave: 5, self._end_one: 4, self._stand_still: 2,
            self._beside: 3, self._look: 2, self._evolve: 2,
        }  # fmt: skip
        [step] = rng.choices(list(weights), list(weights.values()))
        step()
        self._reap()
        if not self.running or (len(self.running) < 2 and rng.random() < 0.25):
            self._start()
        time.sleep(rng.choice([0.05, 0.3, 1.0, 2.0]))

    def _start(self, *, clean: bool = False) -> None:
        argv = [
            *self.world.options(clean=clean or self.rng.random() < 0.15),
            *self._own_index(),
            *self._stream("run"),
            "--interval-s", str(self.rng.choice([0.1, 1])), "--allow-dead-letters",
            "--set", "compact.min-interval-ms=1000", "--set", "expire.min-interval-ms=1000",
        ]  # fmt: skip
        self.running.append(self.commands.start(argv, lease_ms=LEASE_MS))
        self.log.append(f"start {len(self.log)}")

    def _stream(self, command: str) -> list[str]:
        return [
            command, "--kafka", self.kafka.servers, "--topics", f"{self.namespace}.public.*",
            "--into", self.namespace, "--engine", "local", "--tables", str(self.tables),
            *(["--cut", "transaction"] if self.is_cut else []),
        ]  # fmt: skip

    def _own_index(self) -> list[str]:
        """Now and then a process of another machine."""
        which = self.rng.choice(["", "", "1", "2"])
        path = self.commands.folder / f"index{which}"
        return ["-p", f"index-directory={path}"] if which else []

    def _misbehave(self) -> None:
        """Faults of the services, for whoever runs into them."""
        drawn = [one for _ in range(self.rng.randint(1, 3)) for one in self.world.draw(self.rng)]
        for one in drawn:
            one.times *= self.rng.choice([1, 1, 4])
            if one.status == 404:  # an object that is denied for long is taken for lost
                one.times = min(one.times, 3)
        self.world.proxy.faults[:] = drawn
        self.log.append("; ".join(f"{f.kind} {f.method} {f.status} x{f.times}" for f in drawn))
        if self.rng.random() < 0.1 and hasattr(self.world.proxy, "listen"):
            self.world.proxy.refuse_connections()
            time.sleep(self.rng.choice([0.5, 3.0]))
            self.world.proxy.listen()
            self.log.append("the proxy was gone")

    def _end_one(self) -> None:
        """Kill a process, or ask it to stop."""
        if self.running:
            one = self.rng.choice(self.running)
            number = self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            self._continue(one)
            one.signal(number)
            self.log.append(f"signal {number.name}")
            self.met[number.name] += 1
            if number == signal.SIGTERM and self.rng.random() < 0.3:
                time.sleep(0.2)
                one.signal(signal.SIGTERM)
            if number == signal.SIGKILL:
                one.ended()

    def _stand_still(self) -> None:
        """Stop a process for longer than its lease, or for less; another one most likely runs."""
        awake = [each for each in self.running if each.pid not in self.stopped]
        if not awake:
            return
        one = self.rng.choice(awake)
        one.signal(signal.SIGSTOP)
        self.stopped.add(one.pid)
        self.met["SIGSTOP"] += 1
        self.log.append("stopped")
        if len(self.running) < 2 and self.rng.random() < 0.8:
            self._start()
        self._send()
        time.sleep(self.rng.choice([0.5, 2.5, 4.0]))
        if self.rng.random() < 0.7:
            self._continue(one)

    def _continue(self, one: Running) -> None:
        if one.pid in self.stopped:
            self.stopped.discard(one.pid)
            one.signal(signal.SIGCONT)
            self.log.append("continued")

    def _beside(self) -> None:
        """Another command of somebody else."""
        table = f"{self.namespace}.{self.rng.choice(TABLES)}"
        argv = self.rng.choice(
            [
                ["resolve", table],
                ["compact", table, "--rewrite-all"],
                ["expire", table, "--older-than", "1ms"],
                ["orphans", table, "--older-than", "1h", "--delete"],
                ["maintain", f"{self.namespace}.*", "--once"],
                ["status", f"{self.namespace}.*", "--json"],
                ["scan", table, "--branch", "staging"],
            ]
        )
        one = self.commands.start(
            [*self.world.options(clean=self.rng.random() < 0.3), *self._own_index(), *argv],
            lease_ms=LEASE_MS,
        )
        ended = one.ended(self.rng.choice([0.3, 1.0, 30.0, 90.0]))
        if ended is None:
            one.signal(signal.SIGKILL)
            ended = one.ended()
        assert ended is not None
        self._check_manners(ended, lines_max=6)

    def _reap(self) -> None:
        """Note processes that have ended, and what they said."""
        for one in list(self.running):
            ended = one.ended(0)
            if ended is not None:
                self.running.remove(one)
                self.stopped.discard(one.pid)
                self._check_manners(ended, lines_max=LINES_MAX)

    def _check_manners(self, ended: Ended, *, lines_max: int) -> None:
        """It ends as commands do, and its words are whole lines of no surprise."""
        err = ended.err
        self.log.append(str(ended))
        if ended.code not in {0, 1, 3, 143, -signal.SIGTERM, -signal.SIGKILL}:
            self._fail(f"exit code {ended.code}", ended)
        if re.search("Traceback|Exception ignored|panicked|set aside", err):
            self._fail("traceback, or a table was set aside", ended)
        if ended.code == 1 and not err.strip():
            self._fail("failed without a word", ended)
        if len(err.splitlines()) > lines_max:
            self._fail("many lines", ended)
        for line in err.splitlines():
            stamped = re.sub(r"^\S+ \S+ ", "", line) if line[:2] == "20" else line
            ids = r"[0-9a-f]{8}-[0-9a-f-]{27,}|n\d+\.\w+|/\S*|\d+"
            self.shapes[re.sub(ids, "#", stamped)[:300]] += 1

    def _fail(self, what: str, ended: Ended | None = None) -> None:
        self.failures.append(f"seed {self.seed}: {what}: {ended or ''}")

    def _clean(self, *argv: str) -> Ended:
        one = self.commands.start(
            [*self.world.options(clean=True), *argv], read_timeout_s=None, lease_ms=LEASE_MS
        )
        ended = one.ended(120)
        if ended is None:
            one.signal(signal.SIGABRT)
            ended = one.ended()
            assert ended is not None
            self._fail("hangs", ended)
        return ended

    def _rows(self, table: str, snapshot_id: int | None = None) -> Rows | None:
        """What is published; None: the table or the snapshot is not there."""
        name = f"{self.namespace}.{table}"
        if self.world.kind in ("rest", "postgres"):
            try:
                metadata = self.world.metadata(name)
            except Exception:
                return None
            if metadata.get("current-snapshot-id", -1) in (-1, None):
                return {}
            known = {each["snapshot-id"] for each in metadata["snapshots"]}
            if snapshot_id is not None and snapshot_id not in known:
                return None
            location = metadata["location-of-it"].removeprefix("file://")
            at = "" if snapshot_id is None else f", snapshot_from_id = {snapshot_id}"
            query = f"SELECT * FROM iceberg_scan('{location}'{at})"
            found = duckdb_connection().execute(query).to_arrow_table().to_pylist()
        else:
            at = [] if snapshot_id is None else ["--snapshot-id", str(snapshot_id)]
            ended = self._clean("scan", name, "--format", "json", *at)
            if ended.code != 0:
                return None
            found = [json.loads(line) for line in ended.out.splitlines()]
        since = self.wide_since.get(table, self.number + 1)
        if bad := [r for r in found if r.get("w") != (r["v"] if r["v"] >= since else None)]:
            self._fail(f"{name}: from {since} on `w` is `v`: {bad}")
        rows = {row["id"]: row["v"] for row in found}
        if len(rows) != len(found):
            self._fail(f"{name}: keys twice: {found}")
        return rows

    def _look(self) -> None:
        """Each key shows a state it had, and none older than it showed before."""
        for table in TABLES:
            rows = self._rows(table)
            if rows is None:
                continue
            if unknown := rows.keys() - self.sent[table].keys():
                self._fail(f"{table}: keys that nobody sent: {unknown}")
            for key, states in self.sent[table].items():
                since = self.seen.get((table, key), 0)
                shown = rows.get(key)
                later = [at for at in range(since, len(states)) if states[at] == shown]
                if not later:
                    self._fail(f"{table}: {key} shows {shown}, after {states[since]} of {states}")
                else:
                    self.seen[table, key] = later[0]
        if self.is_cut:
            self._look_at_cuts()

    def _look_at_cuts(self) -> None:
        """Each shows all tables after the same transaction."""
        ended = self._clean("cuts", self.namespace, "--json")
        for cut in json.loads(ended.out) if ended.code == 0 else []:
            snapshots = {name.partition(".")[2]: at for name, at in cut["snapshots"].items()}
            shown: dict[tuple[str, int], int] = {}
            for table, at in snapshots.items():
                rows = self._rows(table, at)
                if rows is None:
                    break  # expired since
                shown |= {(table, key): value for key, value in rows.items()}
            else:
                self.met["cuts"] += 1
                if not any(each == shown for each in self._states(snapshots)):
                    self._fail(f"{cut} is no state of the source: {shown}")

    def _states(self, tables: Container[str]) -> Iterator[dict[tuple[str, int], int]]:
        """After each transaction."""
        held: dict[tuple[str, int], int] = {}
        for changed in self.sent_by.values():
            for place, state in changed.items():
                if state is None:
                    held.pop(place, None)
                elif place[0] in tables:
                    held[place] = state
            yield held

    def _end(self) -> None:
        """The services are well; who runs stops when it is asked, clean runs make it all right."""
        self.world.proxy.faults.clear()
        for one in self.running:
            self._continue(one)
            one.signal(signal.SIGTERM)
        for one in list(self.running):
            if one.ended(STOPS_WITHIN_S) is None:
                one.signal(signal.SIGABRT)
                self._fail("does not stop", one.ended())
        self._reap()
        for proxy in self.world.proxies:
            proxy.settle()
        time.sleep(2.1)  # what is late has come
        self._look()
        ended = self._clean(*self._stream("ingest"))
        self.log.append(str(ended))
        if ended.code != 0:
            self._fail("clean ingest", ended)
        ended = self._clean("maintain", f"{self.namespace}.*", "--once")
        self.log.append(str(ended))
        if ended.code != 0:
            self._fail("clean maintenance", ended)
        for table in TABLES:
            name = f"{self.namespace}.{table}"
            wanted = {
                key: states[-1]
                for key, states in self.sent[table].items()
                if states[-1] is not None
            }
            if self.sent[table] and (found := self._rows(table)) != wanted:
                self._fail(f"{name}: rows are {found}, wanted {wanted}")


def main() -> None:
    """`python -m tests.support.faulty_streams FIRST COUNT [KIND...]`: prints what is wrong."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    kinds = sys.argv[3:] or [*MAKERS]
    shapes, met = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="icefold-streams-") as name:
        folder = Path(name)
        os.chdir(folder)
        worlds: list[Any] = [MAKERS[kind](folder) for kind in kinds]
        commands = Commands(folder)
        for seed in range(first, first + count):
            world = worlds[seed % len(worlds)]
            history = StreamHistory(world, commands, seed, kafka())
            try:
                history.run()
            except Exception as error:
                history._fail(f"{type(error).__name__}: {error}")
            shapes += history.shapes
            met += history.met
            print("done", seed, world.kind, dict(met), flush=True)
            if history.failures:
                print("=====", *history.failures, "-- last --", *history.log[-14:], sep="\n")
        print("lines:")
        for shape, times in shapes.most_common():
            print(times, shape)
        commands.close()


if __name__ == "__main__":
    main()
