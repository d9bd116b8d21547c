"""`scripts/pipeline --bank`, `--tpcc`: transactions in PostgreSQL, and what holds at every cut.

One `icefold run --cut transaction`, killed with `kill -9` like Connect and the broker.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg

from tests.pipeline.service import Service
from tests.support.pipeline import Pipeline, wait_until
from tests.support.pipeline_cuts import (
    CutWorkload,
    Rows,
    check_cuts,
    shown,
    source_rows,
    words,
)

ACTORS = ("run", "connect", "broker")
CHECK_S, TURN_S = 2.0, 0.05


def run_cuts(
    pipeline: Pipeline,
    workload: CutWorkload,
    *,
    seconds: float,
    kills: list[str],
    seed: int = 1,
    clients: int = 1,
    pause_s: float = 0.0,
) -> Counter[str]:
    """Transactions for so long while actors are killed; then wait for the end, and compare.

    Args:
        pipeline: With its connectors running.
        workload: Whose connector is among them.
        seconds: How long.
        kills: Actors, each to be killed once for each time that it is named; `stop` is SIGTERM. Who
            is killed with a lease in hand costs the next one the time of a lease.
        seed: Of the transactions, and when who is killed.
        clients: Connections at a time.
        pause_s: Before each of their transactions.

    Returns:
        Counts: transactions, deadlocks, cuts that were checked, kills by actor, and seconds from
        the last transaction to the end of the pipeline.

    Raises:
        AssertionError: A condition does not hold, or the end is not what PostgreSQL holds.
    """
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    checked: set[object] = set()
    service = Service("run", words(workload, pipeline.warehouse, pipeline.servers), pipeline.folder)
    due = sorted((rng.uniform(0.1, 0.9) * seconds, actor) for actor in kills)
    slots = [f"{pipeline.database.name}_{workload.namespace}"]
    ended = threading.Event()
    try:
        with pipeline.connection() as connection, ThreadPoolExecutor(clients) as pool:
            pipeline.await_slots(slots)
            workload.open(connection)
            opening = source_rows(workload, connection)
            wait_until(lambda: _shows(pipeline, workload, service, opening), "the opening")
            start = checked_s = time.monotonic()
            work = [
                pool.submit(
                    _work, pipeline, workload, random.Random(f"{seed}-{number}"), ended, pause_s
                )
                for number in range(clients)
            ]
            try:
                while (now := time.monotonic()) - start < seconds:
                    service.keep_up()
                    if due and now - start >= due[0][0]:
                        actor = due.pop(0)[1]
                        _kill(pipeline, service, actor)
                        counts[f"{actor} kills"] += 1
                    if now - checked_s >= CHECK_S:
                        check_cuts(workload, pipeline.catalog, checked)
                        checked_s = time.monotonic()
                    time.sleep(TURN_S)
            finally:
                ended.set()
            for each in work:
                counts += each.result()
            last_s = time.monotonic()
            pipeline.await_slots(slots)
            expected = source_rows(workload, connection)
        shows = "what PostgreSQL holds"
        wait_until(lambda: _shows(pipeline, workload, service, expected), shows)
        counts["seconds behind"] = round(time.monotonic() - last_s)
        status = service.stop()
        assert status == 0, _log(pipeline)[-3000:]
        check_cuts(workload, pipeline.catalog, checked)
    finally:
        service.kill()
    counts["cuts"] = len(checked)
    return counts


def _work(
    pipeline: Pipeline,
    workload: CutWorkload,
    rng: random.Random,
    ended: threading.Event,
    pause_s: float,
) -> Counter[str]:
    counts: Counter[str] = Counter()
    with pipeline.connection() as connection:
        while not ended.wait(pause_s):
            try:
                workload.transaction(connection, rng)
                counts["transactions"] += 1
            except psycopg.errors.DeadlockDetected:
                counts["deadlocks"] += 1
    return counts


def _shows(pipeline: Pipeline, workload: CutWorkload, service: Service, expected: Rows) -> bool:
    service.keep_up()
    return shown(workload, pipeline.catalog) == expected


def _log(pipeline: Pipeline) -> str:
    log = pipeline.folder / "run.log"
    return log.read_text(errors="replace") if log.exists() else ""


def _kill(pipeline: Pipeline, service: Service, actor: str) -> None:
    if actor == "run":
        service.kill()
        return
    if actor == "stop":
        wait_until(lambda: "streaming into" in _log(pipeline), "the start of icefold run")
        status = service.stop()
        assert status == 0, _log(pipeline)[-3000:]
        return
    server = pipeline.connect if actor == "connect" else pipeline.broker
    server.kill()
    server.start()
