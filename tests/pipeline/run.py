"""The long form of the pipeline: a workload, kills, and every value compared at the end.

Each `icefold ingest --follow` and the `icefold maintain` that publishes are processes of their own,
killed with `kill -9` like Connect and the broker, and started again as a service manager does.

What starts anew shows no leak. So icefold's own processes are killed in the first part of the run
only, the first target's ingest never, and memory is a line through the samples of one process.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from tests.pipeline.cuts import ACTORS, run_cuts
from tests.pipeline.service import LONG_S, MINUTE_S, Service
from tests.support.apicurio import missing_apicurio
from tests.support.debezium import states
from tests.support.pipeline import SHAPES, Pipeline, missing_pipeline, start_pipeline
from tests.support.pipeline_bank import Bank
from tests.support.pipeline_cuts import CutWorkload
from tests.support.pipeline_readers import READERS
from tests.support.pipeline_tables import (
    ACCOUNT,
    ACCOUNT_FULL,
    LINE,
    TOAST,
    TORN,
    differences,
    engine_rows,
    source_rows,
)
from tests.support.pipeline_tpcc import Tpcc
from tests.support.pipeline_workload import Workload

TABLES = {table.name: table for table in (ACCOUNT, ACCOUNT_FULL, LINE, TOAST, TORN)}
TARGETS = (
    *("db.account", "db.account_full", "bare.account", "bare.account_full"),
    *("flat.account", "flat.account_full", "flat.line", "db.toast", "db.torn"),
)
OPTIONS = {"torn": ["-o", "on-unavailable-value=keep"]}
TEAR_ROWS, TEAR_UPDATES = 300, 2000  # rows of `torn`; updated ones at a time
INTERVAL_S, SAMPLE_S, PAUSE_MAX_S = 5.0, 5.0, 5.0
# Parts of the run in which each actor may be killed.
KILLED_IN = {
    "writer": (0.05, 0.5),
    "resolver": (0.05, 0.5),
    "connect": (0.05, 0.95),
    "broker": (0.05, 0.95),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/pipeline", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", default=",".join(TARGETS), help="shape.table,...")
    parser.add_argument("--torn", type=int, default=0, help="updated rows of `torn` at the end")
    parser.add_argument(
        "--pause-s", type=float, default=0.2, help="between two transactions; the bank has none"
    )
    parser.add_argument("--bank", action="store_true", help="the bank, and nothing else")
    parser.add_argument("--tpcc", action="store_true", help="TPC-C, and nothing else")
    parser.add_argument("--clients", type=int, default=1, help="of the bank or TPC-C")
    parser.add_argument("--samples", type=Path, help="a file for the memory samples (JSON lines)")
    given = parser.parse_args()
    shapes = sorted({name.partition(".")[0] for name in given.targets.split(",")})
    missing = missing_pipeline()
    if missing is None and any(SHAPES[each].is_avro for each in shapes):
        missing = missing_apicurio()
    if missing is not None:
        print(f"scripts/pipeline: {missing}", file=sys.stderr)
        return 1
    if given.bank or given.tpcc:
        return _run_cuts(Tpcc() if given.tpcc else Bank(), given)
    pipeline = start_pipeline("long", Bank(), shapes)
    try:
        return Run(pipeline, given).run()
    finally:
        pipeline.close()


def _run_cuts(workload: CutWorkload, given: argparse.Namespace) -> int:
    pipeline = start_pipeline("long", workload, shapes=())
    kills = [ACTORS[number % len(ACTORS)] for number in range(given.kills)]
    seconds = given.minutes * 60
    try:
        pipeline.connect.start()
        counts = run_cuts(
            pipeline,
            workload,
            seconds=seconds,
            kills=kills,
            seed=given.seed,
            clients=given.clients,
            pause_s=0.0 if given.bank else given.pause_s,
        )
    finally:
        pipeline.close()
    print(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
    print(f"{counts['transactions'] / seconds:,.0f} transactions a second")
    return 0


class Run:
    def __init__(self, pipeline: Pipeline, given: argparse.Namespace) -> None:
        self._pipeline = pipeline
        self._given = given
        self._random = random.Random(given.seed)
        self._targets = [tuple(name.split(".")) for name in given.targets.split(",")]
        self._kills: Counter[str] = Counter()
        for shape, table in self._targets:
            pipeline.create_table(shape, TABLES[table])
        follow = ["--follow", "--interval-s", str(INTERVAL_S)]
        self._ingests = [
            Service(f"ingest-{shape}.{table}", [*self._words(shape, table), *follow], self._folder)
            for shape, table in self._targets
        ]
        words = ["--warehouse", pipeline.warehouse, "maintain", *given.targets.split(",")]
        self._maintain = Service(
            "maintain", [*words, "--every", f"{INTERVAL_S:.0f}s"], self._folder
        )

    @property
    def _folder(self) -> Path:
        return self._pipeline.folder

    @property
    def _services(self) -> list[Service]:
        return [*self._ingests, self._maintain]

    def _words(self, shape: str, table: str) -> list[str]:
        options = OPTIONS.get(table, [])
        return self._pipeline.ingest_words(SHAPES[shape], TABLES[table], *options)

    def run(self) -> int:
        pipeline, given = self._pipeline, self._given
        with pipeline.connection() as connection:
            workload = Workload(connection, given.seed)
            workload.seed_rows(500)
            pipeline.connect.start()
            self._work(workload)
            for _ in range(0, given.torn, TEAR_UPDATES):
                workload.tear(TEAR_ROWS, min(given.torn, TEAR_UPDATES))
                pipeline.await_arrival()
                for service in self._services:
                    service.keep_up()
            for service in self._services:
                service.stop()
            self._revive()
            pipeline.await_arrival()
        if given.samples is not None:
            self._write_samples(given.samples)
        return self._report(workload, self._compare())

    def _work(self, workload: Workload) -> None:
        start, length = time.monotonic(), self._given.minutes * 60
        kills = planned_kills(self._random, self._given.kills, length)
        sampled_s = 0.0
        while (now := time.monotonic() - start) < length:
            for service in self._services:
                service.keep_up()
            self._revive()
            if kills and now >= kills[0][0]:
                self._kill(kills.pop(0)[1])
            if now - sampled_s >= SAMPLE_S:
                sampled_s = now
                for service in self._services:
                    service.sample()
            workload.transaction()
            time.sleep(self._given.pause_s)

    def _kill(self, actor: str) -> None:
        self._kills[actor] += 1
        pause_s = self._random.uniform(0, PAUSE_MAX_S)
        if actor == "writer":
            self._random.choice(self._ingests[1:] or self._ingests).kill(pause_s)
        elif actor == "resolver":
            self._maintain.kill(pause_s)
        else:
            server = self._pipeline.connect if actor == "connect" else self._pipeline.broker
            server.kill()
            time.sleep(pause_s)
            server.start()
        print(f"killed the {actor}", flush=True)

    def _revive(self) -> None:
        """Start Connect again where it or one of its tasks has given up."""
        connect = self._pipeline.connect
        try:
            gone = connect.process is None or connect.process.poll() is not None
            for shape in self._pipeline.shapes if not gone else ():
                states(self._pipeline.connect_port, shape)
        except RuntimeError as error:
            print(f"Connect gave up: {str(error)[:200]}", flush=True)
            gone = True
        if gone:
            connect.kill()
            connect.start()

    def _compare(self) -> dict[str, dict[str, list[str]]]:
        """Stage and publish the rest, then compare in every reader."""
        pipeline = self._pipeline
        problems: dict[str, dict[str, list[str]]] = {}
        with pipeline.connection() as connection:
            for shape, name in self._targets:
                table = TABLES[name]
                rest = pipeline.icefold(*self._words(shape, name))
                done = pipeline.icefold(
                    "--warehouse", pipeline.warehouse, "resolve", f"{shape}.{name}"
                )
                if rest.status or done.status:
                    problems[f"{shape}.{name}"] = {"(command)": [rest.err + done.err]}
                    continue
                expected = source_rows(connection, name, table.columns)
                assert expected, f"{name} is empty: there is nothing to compare"
                loaded = pipeline.catalog.load_table(f"{shape}.{name}")
                for reader, read in READERS.items():
                    found = read(loaded, [each.name for each in table.columns])
                    differing = differences(
                        expected, engine_rows(found, table.columns), table.columns, table.key
                    )
                    if differing:
                        problems[f"{shape}.{name} in {reader}"] = differing
                print(f"{shape}.{name}: {len(expected):,} rows compared", flush=True)
        return problems

    def _write_samples(self, to: Path) -> None:
        """A line for each sample: service, which life, its age, bytes by program."""
        with to.open("w", encoding="utf-8") as file:
            for service in self._services:
                for number, life in enumerate(service.lives):
                    for age_s, sizes in life.samples:
                        line = [service.name, number, round(age_s, 1), sizes]
                        file.write(json.dumps(line) + "\n")

    def _report(self, workload: Workload, problems: dict[str, dict[str, list[str]]]) -> int:
        grown = False
        for service in self._services:
            print(f"{service.name}: {len(service.lives)} lives, {service.ends} ended by themselves")
            for life in service.lives:
                if life.length_s < LONG_S:
                    continue
                lines = life.lines()
                grown |= lines["all"].grows
                for program, line in lines.items():
                    print(f"  {life.length_s / MINUTE_S:.0f} minutes, {program}: {line}")
        kills = ", ".join(f"{count} {actor}" for actor, count in sorted(self._kills.items()))
        print(f"{workload.transactions:,} transactions, {workload.changes:,} statements")
        print(f"kills: {kills or 'none'}")
        for where, columns in problems.items():
            for column, texts in columns.items():
                print(f"DIFFERENT {where}, {column}: {len(texts):,} rows, first {texts[0]}")
        print(f"{len(problems)} differences" if problems else "zero differences")
        if problems or grown:
            for service in self._services:
                log = self._folder / f"{service.name}.log"
                if log.exists():
                    text = log.read_text(errors="replace")
                    errors = [each[:300] for each in text.splitlines() if "Error" in each]
                    print("\n".join([f"--- {log.name}", *errors[:3], "...", text[-1500:]]))
        return int(bool(problems) or grown)


def planned_kills(draw: random.Random, count: int, length_s: float) -> list[tuple[float, str]]:
    """When which actor is killed: each as often as the others, in its part of the run."""
    actors = list(KILLED_IN)
    draw.shuffle(actors)
    named = [actors[index % len(actors)] for index in range(count)]
    return sorted((draw.uniform(*KILLED_IN[each]) * length_s, each) for each in named)


if __name__ == "__main__":
    sys.exit(main())
