"""`python -m tests.fuzz.run`: long runs of the fuzz targets, and a summary that can be quoted.

`--serve` answers requests of the tests, one JSON object per line: imports are paid once.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.sandbox import Failure, Report, run_inputs, run_one
from tests.fuzz.target import Target
from tests.fuzz.targets.all_targets import TARGETS

_SHOWN_BYTES = 3_000


def fuzz(target: Target, *, seed: int, inputs: int, seconds: float | None, first: int) -> Report:
    """The corpus, then generated inputs from ordinal `first` on."""
    corpus = [data for _, data in target.corpus()]

    def make(at: int) -> bytes:
        if at < len(corpus):
            return corpus[at]
        return target.generate(corpus, seed=seed, ordinal=first + at - len(corpus))

    report = run_inputs(target, make, inputs=len(corpus) + inputs, seconds=seconds)
    for failure in report.failures:
        at = failure.ordinal
        failure.ordinal = -1 - at if at < len(corpus) else first + at - len(corpus)
    return report


def plain_report(report: Report) -> dict[str, Any]:
    """What a test compares, as JSON values."""
    failures = [
        {**dataclasses.asdict(each), "data": base64.b64encode(each.data).decode()}
        for each in report.failures
    ]
    return {"inputs": report.inputs, "failures": failures}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="*", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--inputs", type=int, default=10**9, help="per target, at most")
    parser.add_argument("--seconds", type=float, help="per target (default 20 without --inputs)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="begin at this input of the seed")
    parser.add_argument("--replay", type=Path, help="run this file through the target instead")
    parser.add_argument("--save", type=Path, default=Path("fuzz-failures"), help="folder")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    if options.serve:
        return _serve()
    unknown = set(options.target) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    seconds = options.seconds
    if seconds is None and options.inputs == 10**9:
        seconds = 20.0
    failed = 0
    for name in options.target or TARGETS:
        target = TARGETS[name]
        began = time.monotonic()
        if options.replay is not None:
            report = run_one(target, options.replay.read_bytes())
        else:
            report = fuzz(
                target, seed=options.seed, inputs=options.inputs, seconds=seconds,
                first=options.first,
            )  # fmt: skip
        _print(name, report, time.monotonic() - began)
        for failure in report.failures:
            failed += 1
            _print_failure(target, failure, options)
    return 1 if failed else 0


def _print(name: str, report: Report, wall_seconds: float) -> None:
    rate = report.inputs / max(report.cpu_seconds, 1e-9)
    print(
        f"{name}: {report.inputs} inputs, {rate:.0f}/CPU-s, {wall_seconds:.0f} s, "
        f"slowest {1000 * report.slowest_seconds:.0f} ms, "
        f"memory +{report.grown_bytes >> 20} MiB, failures {len(report.failures)}; "
        + ", ".join(f"{count} {what}" for what, count in report.outcomes.most_common()),
        flush=True,
    )


def _print_failure(target: Target, failure: Failure, options: argparse.Namespace) -> None:
    alone = run_one(target, failure.data)
    options.save.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(failure.data).hexdigest()[:12]
    path = options.save / f"{target.name}-{digest}"
    path.write_bytes(failure.data)
    text = base64.b64encode(failure.data).decode()
    shown = text if len(text) <= _SHOWN_BYTES else f"{text[:_SHOWN_BYTES]}... (whole: {path})"
    print(
        f"  FAILURE x{failure.count} {failure.where}: {failure.reason}\n"
        f"    {'again' if alone.failures else 'NOT AGAIN'} when run alone\n"
        f"    replay: scripts/fuzz {target.name} --replay {path}"
        f"   (seed {options.seed}, input {failure.ordinal})\n"
        f"    base64: {shown}",
        flush=True,
    )


def _serve() -> int:
    for line in sys.stdin:
        request = json.loads(line)
        report = fuzz(
            TARGETS[request["target"]], seed=request["seed"], inputs=request["inputs"],
            seconds=None, first=0,
        )  # fmt: skip
        print(json.dumps(plain_report(report)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
