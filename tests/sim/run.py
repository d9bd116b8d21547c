"""`python -m tests.sim.run`: seeds of the simulator, and a summary that can be quoted."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time
from collections import Counter

from tests.support.sim_run import run_seed

DETERMINISM_EVERY = 50


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/sim")
    parser.add_argument("--seeds", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="the first (default 1)")
    parser.add_argument("--steps", type=int, default=500, help="per seed (default 500)")
    parser.add_argument("--minutes", type=float, help="stop after so many")
    parser.add_argument("--trace", action="store_true", help="print the events of failing seeds")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a violation")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # rebuilt indexes and the like are what faults are for
    print(f"commit {_commit()} seeds {options.seed}..{options.seed + options.seeds - 1} "
          f"steps {options.steps}", flush=True)  # fmt: skip
    begin, cpu = time.monotonic(), time.process_time()
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    failed: list[int] = []
    for seed in range(options.seed, options.seed + options.seeds):
        if options.minutes is not None and time.monotonic() - begin > options.minutes * 60:
            break
        result = run_seed(seed, steps=options.steps, trace=options.trace)
        totals.update(seeds=1, steps=result.steps, swaps=result.swaps, publishes=result.publishes)
        faults += result.faults
        outcomes += result.outcomes
        if result.violation is not None:
            failed.append(seed)
            print("\n".join(result.trace or []))
            print(f"VIOLATION in seed {seed}: {result.violation}")
            print(f"  {result.profile}")
            print(f"  replay: scripts/sim --seeds 1 --seed {seed} --steps {options.steps} --trace")
            if not options.keep_going:
                break
        elif (seed - options.seed) % DETERMINISM_EVERY == 0:
            again = run_seed(seed, steps=options.steps)
            totals["run twice"] += 1
            if again.log_hash != result.log_hash:
                failed.append(seed)
                print(f"VIOLATION in seed {seed}: two runs differ")
    wall, used = time.monotonic() - begin, time.process_time() - cpu
    print(", ".join(f"{name} {count}" for name, count in totals.items()))
    print(f"faults {faults.total()}: {dict(sorted(faults.items()))}")
    print(f"outcomes: {dict(sorted(outcomes.items()))}")
    print(f"{wall:.0f} s, {used:.0f} s CPU, {totals['seeds'] / max(used, 1e-9):.1f} seeds/CPU-s")
    print(f"violations {len(failed)}" + (f": seeds {failed}" if failed else ""))
    return 1 if failed else 0


def _commit() -> str:
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
