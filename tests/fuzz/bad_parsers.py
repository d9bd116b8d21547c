"""Parsers that break the rules, each in its own way, to see that the sandbox sees it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np
import pyarrow as pa

from tableformat.errors import CorruptDataError
from tests.fuzz import sandbox
from tests.fuzz.run import plain_report
from tests.fuzz.sandbox import run_inputs
from tests.fuzz.target import Accepted, Target


class BadError(Exception):
    """May be raised, if it says what is wrong."""


def refuses(_: bytes) -> None:
    raise CorruptDataError("not a good one", location="a")


def accepts(_: bytes) -> None: ...


def raises_another_error(data: bytes) -> None:
    data.index(b"what is not there")


def takes_memory(_: bytes) -> None:
    np.ones(400 << 20, np.uint8)


def hides_that_it_takes_memory(_: bytes) -> None:
    try:
        pa.allocate_buffer(1 << 30)
    except pa.ArrowException as error:
        raise CorruptDataError("damaged") from error


def takes_time(_: bytes) -> None:
    while True:
        pass


def takes_time_where_no_signal_gets_in(_: bytes) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])
    began = time.process_time()
    while time.process_time() - began < 2 * CPU_SECONDS:
        pass


def dies(_: bytes) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def says_several_lines(_: bytes) -> None:
    raise BadError("one\rtwo")


def says_nothing(_: bytes) -> None:
    raise BadError("")


def says_too_much(data: bytes) -> None:
    raise BadError(f"this is wrong: {'x' * 10_000}")


def says_what_a_terminal_obeys(_: bytes) -> None:
    raise BadError("not \x1b[31m")


def takes_what_it_must_refuse(_: bytes) -> None:
    raise Accepted("twice")


GOOD = (refuses, accepts)
BAD = (
    raises_another_error,
    takes_memory,
    hides_that_it_takes_memory,
    takes_time,
    takes_time_where_no_signal_gets_in,
    dies,
    says_several_lines,
    says_nothing,
    says_too_much,
    says_what_a_terminal_obeys,
    takes_what_it_must_refuse,
)


CPU_SECONDS = 0.3
INPUTS = (b"a", b"xx", b"b")


def main() -> None:
    """The reports of all by name; only inputs that hold an `x` reach them."""
    sandbox.CPU_SECONDS = CPU_SECONDS  # the rule, not its number
    reports = {}
    for parse in (*GOOD, *BAD):

        def on_x(data: bytes, parse=parse) -> None:  # type: ignore[no-untyped-def]
            if b"x" in data:
                parse(data)

        target = Target(name="none", parse=on_x, mutators=(), corpus_of="index_current",
                        errors=(BadError, CorruptDataError))  # fmt: skip
        report = run_inputs(target, INPUTS.__getitem__, inputs=len(INPUTS))
        reports[parse.__name__] = plain_report(report)
    json.dump(reports, sys.stdout)


if __name__ == "__main__":
    main()
