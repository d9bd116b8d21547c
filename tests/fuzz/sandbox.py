"""Runs inputs in a process of their own, with limits, and says what came of them.

The process that parses is forked from one that has imported everything but started no thread. What
it may allocate is limited to what it has after the whole corpus was parsed once, plus
`MEMORY_BYTES`; an input may take `CPU_SECONDS`, which other load on the machine does not change.
The input at hand is in memory shared with the parent, so that one that kills the process is known.

A parser may swallow `MemoryError` (Arrow's is an `ArrowException` too), so the causes of an error
are looked at as well.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import pickle
import resource
import select
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from tests.fuzz.target import Target

MEMORY_BYTES = 256 << 20
CPU_SECONDS = 2.0
HANG_SECONDS = 120.0  # without an end of one input: stuck where no time is used, or in C
MESSAGE_LENGTH_MAX = 5_000
FAILURES_MAX = 30  # distinct ones; after that a run is not worth going on

_M_ARENA_MAX = -8
_LENGTH_BYTES = 8
_SHARED_BYTES = 16 << 20
_PRODUCT = ("/tableformat/", "/resolver/", "/maintenance/", "/lock/")


class _OutOfTimeError(BaseException):
    """Not an `Exception`, so that no parser turns it into an error of its own."""


@dataclass(slots=True)
class Failure:
    """An input that broke a rule; `where` tells different causes apart."""

    reason: str
    where: str
    ordinal: int
    data: bytes
    count: int = 1


@dataclass(slots=True)
class Report:
    """What came of some inputs. `grown_bytes`: resident memory at its peak, above the start."""

    inputs: int = 0
    cpu_seconds: float = 0.0
    slowest_seconds: float = 0.0
    grown_bytes: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.inputs += other.inputs
        self.cpu_seconds += other.cpu_seconds
        self.slowest_seconds = max(self.slowest_seconds, other.slowest_seconds)
        self.grown_bytes = max(self.grown_bytes, other.grown_bytes)
        self.outcomes.update(other.outcomes)
        for failure in other.failures:
            self.fail(failure)

    def fail(self, failure: Failure) -> None:
        """Keep the shortest input of each cause."""
        for known in self.failures:
            if known.where == failure.where:
                known.count += failure.count
                if len(failure.data) < len(known.data):
                    known.data, known.ordinal, known.reason = (
                        failure.data, failure.ordinal, failure.reason)  # fmt: skip
                return
        self.failures.append(failure)


def run_inputs(
    target: Target,
    make: Callable[[int], bytes],
    *,
    inputs: int,
    seconds: float | None = None,
) -> Report:
    """Parse `make(0)`, `make(1)`, ... in limited processes; a new one after each that dies.

    Args:
        target: The parser.
        make: Inputs by ordinal.
        inputs: How many at most.
        seconds: Stop after so many, by the clock.
    """
    total = Report()
    until = None if seconds is None else time.monotonic() + seconds
    first = 0
    while first < inputs and len(total.failures) < FAILURES_MAX:
        if until is not None and time.monotonic() >= until:
            break
        report, finished = _run_child(target, make, range(first, inputs), until)
        total.add(report)
        first += report.inputs
        if finished:
            break
    return total


def run_one(target: Target, data: bytes) -> Report:
    """Parse one input in a fresh process."""
    return run_inputs(target, lambda _: data, inputs=1)


def _run_child(
    target: Target, make: Callable[[int], bytes], ordinals: range, until: float | None
) -> tuple[Report, bool]:
    shared = mmap.mmap(-1, _SHARED_BYTES)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            report, finished = _in_child(target, make, ordinals, until, shared)
            with os.fdopen(write_end, "wb") as pipe:
                pickle.dump((report, finished), pipe)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
        os._exit(0)
    os.close(write_end)
    answer, hung = _wait(pid, read_end, shared)
    _, status = os.waitpid(pid, 0)
    if answer:
        return cast("tuple[Report, bool]", pickle.loads(answer))  # from our own fork
    how = "hung" if hung else f"process died: {_ending(status)}"
    done = int.from_bytes(shared[_LENGTH_BYTES : 2 * _LENGTH_BYTES], "little")
    data = _current(shared)
    failure = Failure(how, how, ordinals.start + max(done - 1, 0), data)
    return Report(inputs=max(done, 1), outcomes=Counter([how]), failures=[failure]), False


def _wait(pid: int, read_end: int, shared: mmap.mmap) -> tuple[bytes, bool]:
    """What the child writes before it ends, and whether it had to be killed."""
    parts: list[bytes] = []
    before, since = b"", time.monotonic()
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], 1.0)
            if ready:
                part = pipe.read(1 << 16)
                if not part:
                    return b"".join(parts), False
                parts.append(part)
            progress = bytes(shared[: 2 * _LENGTH_BYTES])
            if progress != before:
                before, since = progress, time.monotonic()
            elif time.monotonic() - since > HANG_SECONDS and not parts:
                os.kill(pid, signal.SIGKILL)
                return b"", True


def _in_child(
    target: Target,
    make: Callable[[int], bytes],
    ordinals: range,
    until: float | None,
    shared: mmap.mmap,
) -> tuple[Report, bool]:
    _prepare()
    if target.setup is not None:
        target.setup()
    for _, data in target.corpus():
        with suppress(Exception):
            target.parse(data)
    gc.collect()
    _limit_memory(MEMORY_BYTES)
    report = Report()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for ordinal in ordinals:
        if until is not None and ordinal % 16 == 0 and time.monotonic() >= until:
            break
        data = make(ordinal)
        _show(shared, data, report.inputs + 1)
        _try(target, data, ordinal, report)
        if len(report.failures) >= FAILURES_MAX:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report.grown_bytes = (peak - resident) * 1024
    return report, True


def _prepare() -> None:
    """One heap and few threads: what is allocated can be counted."""
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    pa.set_memory_pool(pa.system_memory_pool())
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    signal.signal(signal.SIGPROF, _out_of_time)


def _out_of_time(_signal: int, _frame: Any) -> None:
    raise _OutOfTimeError


def _limit_memory(more_bytes: int) -> None:
    """Private writable memory, reserved or used: mapped files and code do not count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    used = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + more_bytes,) * 2)


def _show(shared: mmap.mmap, data: bytes, number: int) -> None:
    stop = 2 * _LENGTH_BYTES + len(data)
    shared[2 * _LENGTH_BYTES : stop] = data
    shared[: 2 * _LENGTH_BYTES] = len(data).to_bytes(8, "little") + number.to_bytes(8, "little")


def _current(shared: mmap.mmap) -> bytes:
    start = 2 * _LENGTH_BYTES
    return bytes(shared[start : start + int.from_bytes(shared[:_LENGTH_BYTES], "little")])


def _try(target: Target, data: bytes, ordinal: int, report: Report) -> None:
    began = time.process_time()
    problem: tuple[str, str] | None = None
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            target.parse(data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        outcome = "accepted"
    except _OutOfTimeError as error:
        outcome, problem = "slow", (f"longer than {CPU_SECONDS} s", _where(error))
    except target.errors as error:
        outcome = type(error).__name__
        problem = _wrong_error(error)
    except BaseException as error:
        outcome = f"untyped {type(error).__name__}"
        problem = (f"{type(error).__name__}: {str(error)[:300]!r}", _where(error))
    used = time.process_time() - began
    if problem is None and used > CPU_SECONDS:
        problem = (f"took {used:.1f} s", "slow in C")
    report.inputs += 1
    report.cpu_seconds += used
    report.slowest_seconds = max(report.slowest_seconds, used)
    report.outcomes[outcome] += 1
    if problem is not None:
        report.fail(Failure(*problem, ordinal=ordinal, data=data))


def _wrong_error(error: Exception) -> tuple[str, str] | None:
    """What is wrong with an error that may be raised: it is one line that can be printed."""
    for cause in _causes(error):
        if isinstance(cause, MemoryError):
            return f"more than {MEMORY_BYTES >> 20} MiB", _where(cause)
    text = str(error)
    if not text.strip() or len(text.splitlines()) != 1:
        return f"not one line: {text[:300]!r}", f"lines {_where(error)}"
    if len(text) > MESSAGE_LENGTH_MAX:
        return f"a line of {len(text)} characters: {text[:300]!r}", f"long {_where(error)}"
    if not text.isprintable():
        return f"not printable: {text[:300]!r}", f"unprintable {_where(error)}"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _where(error: BaseException) -> str:
    """The kind of error and the last places in the product."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{f.filename.rsplit('/', 1)[-1]}:{f.name}" for f in frames if _is_ours(f.filename)]
    return f"{type(error).__name__} in {' > '.join(own[-2:]) or 'the target'}"


def _is_ours(path: str) -> bool:
    return any(part in path for part in _PRODUCT) and "site-packages" not in path


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.waitstatus_to_exitcode(status)}"
