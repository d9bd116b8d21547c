"""Ctrl-C while a JVM starts.

PySpark's launcher, when interrupted, removes the folder in which the JVM is about to say how it is
reached. The JVM's main thread then dies of that before it watches for the end of Python, and the
JVM stays for ever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """SIGINT that arrives inside is delivered at the exit, to whatever handler is there then.

    Other threads than the main one, and a process that ignores SIGINT or handles it outside Python,
    are left as they are.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    arrived = threading.Event()

    def defer(_signal: int, _frame: FrameType | None) -> None:
        arrived.set()

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is defer:  # Spark sets its own, which cancels jobs
            signal.signal(signal.SIGINT, before)
        if arrived.is_set():
            signal.raise_signal(signal.SIGINT)
