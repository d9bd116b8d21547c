"""`python -m tests.sim.run`: seeds of the simulator, and a summary that can be quoted."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from tests.support.sim_groups import run_group_seed
from tests.support.sim_run import SeedResult, run_seed
from tests.support.sim_world import MEDDLERS, Profile

DETERMINISM_EVERY = 50
V2_EVERY = 8
IN_PLACE_EVERY = 6
COMPUTES_EVERY = 7
MOVES_EVERY = 11
PROGRESS_EVERY_S = 600
SEEDS_PER_PROCESS = 500  # bounds what a long run may pile up in one process


@dataclass(frozen=True, slots=True)
class Job:
    """One seed to run, in whichever process."""

    seed: int
    steps: int
    trace: bool
    twice: bool
    meddlers: tuple[str, ...] | None = None
    rewrites: bool | None = None
    leaves_out: bool = False
    group: bool = False
    v2: bool = False
    index: str | None = None
    in_place: bool = False
    computes: bool = False
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """A seed that has run. `differs`: its second run gave another event log."""

    result: SeedResult
    differs: bool
    cpu_s: float


@dataclass(slots=True)
class Totals:
    """What all seeds together did."""

    figures: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    points: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    cpu_s: float = 0.0

    def add(self, ran: Ran, job: Job) -> bool:
        """Count a seed; whether it violated something, which is then printed."""
        result = ran.result
        self.figures.update(
            seeds=1, steps=result.steps, swaps=result.swaps, publishes=result.publishes
        )
        self.figures["run twice"] += job.twice and result.violation is None
        self.faults += result.faults
        self.outcomes += result.outcomes
        self.points += result.points
        self.cpu_s += ran.cpu_s
        violation = "two runs differ" if ran.differs else result.violation
        if violation is None:
            return False
        self.failed.append(result.seed)
        print("\n".join(result.trace or []))
        print(f"VIOLATION in seed {result.seed}: {violation}")
        print(f"  {result.profile}")
        chosen = "" if job.meddlers is None else f" --meddlers '{','.join(job.meddlers)}'"
        if job.rewrites is not None:
            chosen += f" --publish {'rewrite' if job.rewrites else 'link'}"
        chosen += "" if job.index is None else f" --index {job.index}"
        chosen += " --in-place" * job.in_place + " --computes" * job.computes
        chosen += " --moves" * job.moves
        chosen += " --leaves-out" * job.leaves_out + " --group" * job.group
        chosen += "" if job.group else f" --format-version {2 if job.v2 else 3}"
        replay = f"--seed {result.seed} --steps {job.steps}{chosen} --trace"
        print(f"  replay: scripts/sim --seeds 1 {replay}")
        return True

    def __str__(self) -> str:
        return (
            f"seeds {self.figures['seeds']}, steps {self.figures['steps']}, "
            f"faults injected {self.faults.total()}, kills (crashes) {self.faults['crash']}, "
            f"violations {len(self.failed)}" + (f": seeds {self.failed}" if self.failed else "")
        )

    def report(self, wall_s: float) -> None:
        """The summary."""
        figures = self.figures
        print(self)
        print(
            f"swaps {figures['swaps']}, publishes {figures['publishes']}, "
            f"run twice {figures['run twice']}"
        )
        print(f"faults: {dict(sorted(self.faults.items()))}")
        print(f"outcomes: {dict(sorted(self.outcomes.items()))}")
        for name in sorted({name for name, _ in self.points}):
            hits, errors, delays, kills = (
                self.points[name, what] for what in ("hit", "point error", "delay", "crash")
            )
            print(f"  {name}: hits {hits}, errors {errors}, delays {delays}, kills {kills}")
        rate = figures["seeds"] / max(self.cpu_s, 1e-9)
        print(f"{wall_s:.0f} s, {self.cpu_s:.0f} s CPU, {rate:.1f} seeds/CPU-s")


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    print(f"commit {_commit()} seeds {options.seed}..{options.seed + options.seeds - 1} "
          f"steps {options.steps}", flush=True)  # fmt: skip
    begin = time.monotonic()
    totals = Totals()
    jobs = (  # one at a time: a run of minutes may name any number of seeds
        Job(
            seed,
            options.steps,
            options.trace,
            (seed - options.seed) % DETERMINISM_EVERY == 0,
            None if options.meddlers is None else tuple(filter(None, options.meddlers.split(","))),
            None if options.publish is None else options.publish == "rewrite",
            options.leaves_out,
            options.group,
            _is_v2(options, seed),
            options.index,
            _is_in_place(options, seed),
            _computes(options, seed),
            _moves(options, seed),
        )
        for seed in range(options.seed, options.seed + options.seeds)
    )
    end = None if options.minutes is None else begin + options.minutes * 60
    for each in (signal.SIGINT, signal.SIGTERM):  # in the background, a shell has SIGINT ignored
        signal.signal(each, signal.default_int_handler)
    try:
        _run_into(totals, run_all(jobs, options.jobs, end), keep_going=options.keep_going)
    except KeyboardInterrupt:
        print("interrupted")
    totals.report(time.monotonic() - begin)
    return 1 if totals.failed else 0


def _is_v2(options: argparse.Namespace, seed: int) -> bool:
    """One seed in eight; not where actors or publishes are chosen that only v3 has."""
    if options.format_version is not None:
        return bool(options.format_version == 2)
    chosen = options.meddlers or options.publish or options.leaves_out or options.group
    return not (chosen or options.computes) and seed % V2_EVERY == 0


def _is_in_place(options: argparse.Namespace, seed: int) -> bool:
    """One seed in six, where nothing is chosen that draws other actors."""
    if options.in_place:
        return True
    chosen = options.meddlers is not None or options.publish or options.leaves_out or options.group
    return not (chosen or options.computes) and seed % IN_PLACE_EVERY == 0


def _computes(options: argparse.Namespace, seed: int) -> bool:
    """One seed in seven, where nothing else is chosen and nothing but v3 is drawn."""
    if options.computes:
        return True
    others = _is_v2(options, seed) or _is_in_place(options, seed) or options.meddlers is not None
    return not (others or options.leaves_out or options.group) and seed % COMPUTES_EVERY == 0


def _moves(options: argparse.Namespace, seed: int) -> bool:
    """One seed in eleven, of those that are drawn as plain ones."""
    if options.moves:
        return True
    others = _is_v2(options, seed) or _is_in_place(options, seed) or _computes(options, seed)
    chosen = options.meddlers is not None or options.leaves_out or options.group
    return not (others or chosen) and seed % MOVES_EVERY == 0


def _run_into(totals: Totals, runs: Iterator[tuple[Job, Ran]], *, keep_going: bool) -> None:
    begin = told = time.monotonic()
    for job, ran in runs:
        if totals.add(ran, job) and not keep_going:
            return
        if time.monotonic() - told > PROGRESS_EVERY_S:
            told = time.monotonic()
            print(f"{told - begin:.0f} s: {totals}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/sim")
    parser.add_argument("--seeds", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="the first (default 1)")
    parser.add_argument("--steps", type=int, default=500, help="per seed (default 500)")
    parser.add_argument("--minutes", type=float, help="stop after so many")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--trace", action="store_true", help="print the events of failing seeds")
    parser.add_argument("--publish", choices=["link", "rewrite"], help="instead of what is drawn")
    parser.add_argument("--leaves-out", action="store_true", help="writers leave columns out")
    parser.add_argument("--in-place", action="store_true", help="a tool deletes by keys on main")
    parser.add_argument("--computes", action="store_true", help="a stored computed column")
    parser.add_argument("--moves", action="store_true", help="staging is dropped and moved")
    parser.add_argument("--group", action="store_true", help="tables that are published together")
    parser.add_argument("--index", choices=["memory", "disk"], help="instead of what is drawn")
    parser.add_argument("--meddlers", help=f"instead of those drawn, of {', '.join(MEDDLERS)}")
    parser.add_argument(
        "--format-version",
        type=int,
        choices=[2, 3],
        help="2 for all, 3 for none; else one seed in eight has v2",
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a violation")
    return parser


def run_all(
    jobs: Iterable[Job], processes: int, end: float | None, run: Callable[[Job], Ran] | None = None
) -> Iterator[tuple[Job, Ran]]:
    """The jobs that begin before `end`, in their order whichever process ran them.

    Seeds may end their process: native code aborts. Those that were under way then run again, each
    in a process of its own, and the one that dies again is a violation.
    """
    run = run or _run
    left = iter(jobs)
    waiting: deque[tuple[Job, Future[Ran]]] = deque()
    while True:
        with _pool(processes) as pool:
            try:
                while True:
                    while len(waiting) < 2 * processes and (end is None or time.monotonic() < end):
                        job = next(left, None)
                        if job is None:
                            break
                        waiting.append((job, pool.submit(run, job)))
                    if not waiting:
                        return
                    yield waiting[0][0], waiting[0][1].result()
                    waiting.popleft()
            except BrokenProcessPool:
                again = [job for job, _ in waiting]
                waiting.clear()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        for job in again:
            yield job, _run_alone(job, run)


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_quiet,
        max_tasks_per_child=SEEDS_PER_PROCESS,
    )


def _run_alone(job: Job, run: Callable[[Job], Ran]) -> Ran:
    with _pool(1) as pool:
        try:
            return pool.submit(run, job).result()
        except BrokenProcessPool:
            none: Counter[Any] = Counter()
            profile = Profile.draw(random.Random(f"{job.seed}/profile"), job.steps)
            died = SeedResult(
                seed=job.seed,
                steps=0,
                swaps=0,
                publishes=0,
                faults=none,
                outcomes=none,
                points=none,
                violation="the process died",
                log_hash="",
                profile=profile,
            )
            return Ran(died, differs=False, cpu_s=0.0)


def _run(job: Job) -> Ran:
    cpu = time.process_time()
    given: dict[str, Any] = {"steps": job.steps}
    run = run_group_seed if job.group else run_seed
    if not job.group:
        given |= {"meddlers": job.meddlers, "rewrites": job.rewrites}
        given |= {"leaves_out": job.leaves_out, "v2": job.v2, "index": job.index}
        given |= {"in_place": job.in_place, "computes": job.computes, "moves": job.moves}
    result = run(job.seed, trace=job.trace, **given)
    differs = False
    if job.twice and result.violation is None:
        again = run(job.seed, **given)
        differs = again.log_hash != result.log_hash
    return Ran(result, differs, time.process_time() - cpu)


def _quiet() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent, which ends this process
    logging.disable(logging.WARNING)  # rebuilt indexes and the like are what faults are for


def _commit() -> str:
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
