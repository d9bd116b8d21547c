"""`python -m tests.mutants.run`: plant each bug, run its tests, print who noticed."""

from __future__ import annotations

import argparse
import queue
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutants.catalogue import ROOT, Mutant, load_mutants
from tests.mutants.trees import TestRun, Tree, Verdict

BASELINE_TIMEOUT_S = 900.0
JOBS = 2


def run_mutants(
    mutants: Sequence[Mutant],
    folder: Path,
    *,
    jobs: int,
    tell: Callable[[Mutant, TestRun], None] = lambda _mutant, _run: None,
) -> dict[str, TestRun]:
    """Run mutants on copies of the checkout below `folder`, `jobs` at a time.

    Args:
        mutants: Which.
        folder: Empty.
        jobs: Copies, and mutants at a time.
        tell: Called with each result, in the order they come.

    Returns:
        By id. The tests themselves must pass, which is for the caller to know.
    """
    first = Tree.of_checkout(folder / "0")
    first.check_is_used()
    idle: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    idle.put(first)
    for number in range(1, jobs):
        idle.put(first.copy(folder / str(number)))

    def run(mutant: Mutant) -> TestRun:
        tree = idle.get()
        try:
            with tree.planted(mutant):
                return tree.test(mutant.tests)
        finally:
            idle.put(tree)

    results: dict[str, TestRun] = {}
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(run, mutant): mutant for mutant in mutants}
        for future in as_completed(waiting):
            mutant = waiting[future]
            results[mutant.id] = future.result()
            tell(mutant, results[mutant.id])
    return results


def run_baseline(mutants: Sequence[Mutant], folder: Path, *, jobs: int) -> list[TestRun]:
    """Run all tests of the mutants on an unchanged copy; whatever did not pass."""
    tree = Tree.of_checkout(folder / "unchanged")
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    parts = [part for part in (sorted(tests)[at::jobs] for at in range(jobs)) if part]
    with ThreadPoolExecutor(jobs) as pool:
        runs = pool.map(lambda part: tree.test(part, timeout_s=BASELINE_TIMEOUT_S), parts)
        return [run for run in runs if run.verdict is not Verdict.SURVIVED]


def line_of(mutant: Mutant, run: TestRun) -> str:
    """One mutant for the report."""
    by = {Verdict.KILLED: f"killed by {run.detail}", Verdict.SURVIVED: "SURVIVED"}
    outcome = by.get(run.verdict, f"{run.verdict} {run.detail}")
    head = f"{mutant.id:38} {mutant.tie:4} {run.seconds:5.1f} s  {outcome}"
    return f"{head}\n    {mutant.file}: {mutant.bug}"


def main() -> int:
    """Exit code 1: a mutant survived, or its tests do not run."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("--only", metavar="ID", action="append", help="a mutant, or part of its id")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"at a time (default {JOBS})")
    parser.add_argument("--list", action="store_true", help="say what there is, run nothing")
    options = parser.parse_args()
    only = options.only
    mutants = [m for m in load_mutants() if only is None or any(part in m.id for part in only)]
    if not mutants or options.jobs < 1:
        parser.error("no such mutant" if not mutants else "--jobs must be at least 1")
    for mutant in mutants:  # before anything is copied
        mutant.mutate((ROOT / mutant.file).read_text())
    if options.list:
        for mutant in mutants:
            print(f"{mutant.id:38} {mutant.tie:4} {mutant.file}: {mutant.bug}")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        return _report(mutants, Path(folder), jobs=options.jobs)


def _report(mutants: Sequence[Mutant], folder: Path, *, jobs: int) -> int:
    started = time.perf_counter()
    broken = run_baseline(mutants, folder, jobs=jobs)
    if broken:
        for run in broken:
            print(f"without a bug: {run.verdict} {run.detail}")
        print("the tests of the mutants do not pass; nothing was planted")
        return 1
    print(f"without a bug: all tests pass ({time.perf_counter() - started:.0f} s)", flush=True)
    results = run_mutants(
        mutants, folder, jobs=jobs, tell=lambda *found: print(line_of(*found), flush=True)
    )
    counts = Counter(run.verdict for run in results.values())
    print(
        f"\n{len(mutants)} mutants: {counts[Verdict.KILLED]} killed, "
        f"{counts[Verdict.SURVIVED]} survived, {counts[Verdict.BROKEN]} broken; "
        f"{time.perf_counter() - started:.0f} s, {_children_cpu_s():.0f} s of CPU"
    )
    for mutant in mutants:
        if results[mutant.id].verdict is not Verdict.KILLED:
            print(f"{results[mutant.id].verdict}: {mutant.id}")
    return 0 if counts[Verdict.KILLED] == len(mutants) else 1


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
