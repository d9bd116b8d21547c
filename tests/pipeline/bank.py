"""`scripts/pipeline --bank`: transfers in PostgreSQL, and at every cut all the money is there.

One `icefold run --cut transaction`, killed with `kill -9` like Connect and the broker.
"""

from __future__ import annotations

import random
import time
from collections import Counter

from tests.pipeline.service import Service
from tests.support.pipeline import Pipeline, wait_until
from tests.support.pipeline_bank import (
    Balances,
    check_cuts,
    open_accounts,
    shown,
    source_balances,
    transfer,
    words,
)

ACTORS = ("run", "connect", "broker")
CHECK_S = 2.0


def run_bank(
    pipeline: Pipeline, *, seconds: float, kills: list[str], seed: int = 1
) -> Counter[str]:
    """Transfer for so long while actors are killed; then wait for the end, and compare.

    Args:
        pipeline: With its connectors running.
        seconds: How long.
        kills: Actors, each to be killed once for each time that it is named; `stop` is SIGTERM. Who
            is killed with a lease in hand costs the next one the time of a lease.
        seed: Of what is transferred, and when who is killed.

    Returns:
        Counts: transfers, cuts that were checked, kills by actor.

    Raises:
        AssertionError: A cut lacks money, or the end is not what PostgreSQL holds.
    """
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    checked: set[object] = set()
    service = Service("run", words(pipeline.warehouse, pipeline.servers), pipeline.folder)
    due = sorted((rng.uniform(0.1, 0.9) * seconds, actor) for actor in kills)
    try:
        with pipeline.connection() as connection:
            pipeline.await_slots([f"{pipeline.database.name}_bank"])
            open_accounts(connection)
            opening = source_balances(connection)
            wait_until(lambda: _shows(pipeline, service, opening), "the opening balances")
            start = checked_s = time.monotonic()
            while (now := time.monotonic()) - start < seconds:
                service.keep_up()
                if due and now - start >= due[0][0]:
                    actor = due.pop(0)[1]
                    _kill(pipeline, service, actor)
                    counts[f"{actor} kills"] += 1
                if now - checked_s >= CHECK_S:
                    check_cuts(pipeline.catalog, checked)
                    checked_s = time.monotonic()
                transfer(connection, rng)
                counts["transfers"] += 1
            pipeline.await_slots([f"{pipeline.database.name}_bank"])
            expected = source_balances(connection)
        wait_until(lambda: _shows(pipeline, service, expected), "what PostgreSQL holds")
        status = service.stop()
        assert status == 0, _log(pipeline)[-3000:]
        check_cuts(pipeline.catalog, checked)
    finally:
        service.kill()
    counts["cuts"] = len(checked)
    return counts


def _shows(pipeline: Pipeline, service: Service, expected: dict[str, Balances]) -> bool:
    service.keep_up()
    return shown(pipeline.catalog) == expected


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
