"""What a test run has checked, against the goals of the fast gate.

A test says what it did, as often as it likes, in its own process: `goal("G4", kills=1)`. The
counts travel with its report, so they add up over xdist's workers; the end of a run shows the
table. Counts of tests that failed are in it: the run says so itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """What is checked, and how many of each the gate of a pull request should see.

    The table of a run shows both. What the gate's minutes have no room for (the seeds of G1, G6 and
    G18 above all) it does not reach: `scripts/sim` and `scripts/test -m long` do.
    """

    what: str
    fast: Mapping[str, int]


GOALS = {
    "G1": Goal("published rows equal the model: simulator", {"seeds": 15_000, "steps": 3_000_000}),
    "G2": Goal("the same on real components", {"operations": 3_600}),
    "G3": Goal("the same, every schedule in small scope", {"states": 1_000_000, "depth": 14}),
    "G4": Goal("processes killed at fail points", {"kills": 80}),
    "G5": Goal("unknown outcomes of commits", {"trials": 2_000}),
    "G6": Goal("locks that lie: simulator", {"seeds": 3_000}),
    "G7": Goal("locks under faults", {"postgresql": 500, "s3": 500, "gcs": 200, "azure": 200}),
    "G8": Goal("stores that lie, found at start-up", {"races": 50}),
    "G9": Goal("object store faults", {"operations": 5_000}),
    "G10": Goal("isolation of statements", {"simulated": 1_500, "real": 300}),
    "G11": Goal("conflict matrix, phase-locked", {"interleavings": 486}),
    "G12": Goal("key encoding", {"values": 300_000}),
    "G13": Goal("changed deletion vectors refused", {"decodes": 1_000_000}),
    "G14": Goal("fuzzed inputs of parsers", {"inputs": 700_000}),
    "G15": Goal("locations outside refused", {"attempts": 320}),
    "G16": Goal("orphan removal beside writers", {"runs": 200}),
    "G17": Goal("index killed and damaged", {"kills": 100, "corruptions": 150}),
    "G18": Goal("backlog drained once faults stop", {"seeds": 15_000}),
    "G19": Goal("soak", {"cycles": 200, "keys": 1_000_000}),
    "G20": Goal("tables read by other engines", {"tables": 20}),
    "G21": Goal("regression list", {"ids": 80}),
    "G22": Goal("planted bugs that apply", {"mutants": 40}),
}
MOST = frozenset({("G3", "depth")})  # the largest value counts, not the sum

Counts = Counter[tuple[str, str]]
_of_this_test: Counts = Counter()


def goal(name: str, /, **counts: int) -> None:
    """Add what the running test did towards a goal; KeyError for what no goal counts."""
    for measure, count in counts.items():
        GOALS[name].fast[measure]
        merge(_of_this_test, {(name, measure): count})


def take() -> list[tuple[str, str, int]]:
    """What was counted since the last time, in a form that can be sent."""
    taken = [(*key, count) for key, count in _of_this_test.items()]
    _of_this_test.clear()
    return taken


def merge(total: Counts, counts: Mapping[tuple[str, str], int]) -> None:
    """Add counts, in place."""
    for key, count in counts.items():
        total[key] = max(total[key], count) if key in MOST else total[key] + count


def table(total: Counts, *, whole: bool) -> Iterator[str]:
    """Lines `goal, what, measure, this run, fast gate`; `whole`: also goals with no count."""
    row = "{:4} {:42} {:14} {:>11} {:>11}".format
    yield row("goal", "what", "count", "this run", "fast gate")
    for name, each in GOALS.items():
        for measure, fast in each.fast.items():
            if whole or total[name, measure]:
                yield row(name, each.what, measure, f"{total[name, measure]:,}", f"{fast:,}")
