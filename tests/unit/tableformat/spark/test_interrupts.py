from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tableformat.spark.interrupts import interrupts_deferred

INTERRUPTED_WHILE_THE_JVM_STARTS = """
import os, signal, threading
import pyspark.java_gateway as launcher
from tableformat.spark.session import local_session

start = launcher.Popen

def start_and_interrupt(*arguments, **options):
    started = start(*arguments, **options)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    return started

launcher.Popen = start_and_interrupt
try:
    local_session("test", cores=1)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture(autouse=True)
def pythons_own_handler() -> Iterator[None]:
    """Other tests' Spark sessions set theirs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupt_comes_at_the_end_of_the_block() -> None:
    steps = []

    def go_on() -> None:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            steps.append("went on")

    with pytest.raises(KeyboardInterrupt):
        go_on()
    assert steps == ["went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handler_that_was_set_inside_stays_and_hears_of_it() -> None:
    heard: list[int] = []

    def handler(number: int, _: object) -> None:
        heard.append(number)

    with interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGINT, handler)
    assert signal.getsignal(signal.SIGINT) is handler
    assert heard == [signal.SIGINT]


def test_sigterm_waits_as_well_where_python_handles_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGTERM)
            assert heard == []
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_change_no_handler() -> None:
    found: list[object] = []

    def enter() -> None:
        with interrupts_deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


def test_ignored_interrupt_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_interrupt_while_the_jvm_starts_leaves_none_behind() -> None:
    mark = f"ICEFOLD_TEST={uuid.uuid4()}"
    name, value = mark.split("=")
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_THE_JVM_STARTS],
        env={**os.environ, name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=300,
        check=True,
    )
    assert ended.stdout == "interrupted\n"
    end = time.monotonic() + 30
    while left := _processes_with(mark):
        assert time.monotonic() < end, left
        time.sleep(0.1)


def _processes_with(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:  # ended, or somebody else's
            continue
    return found
