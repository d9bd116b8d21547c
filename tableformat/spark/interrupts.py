"""Ctrl-C or SIGTERM while a JVM starts.

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

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP that arrive inside come at the exit, to whoever handles them then.

    Other threads than the main one, and a process that ignores a signal or handles it outside
    Python, are left as they are.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if threading.current_thread() is not threading.main_thread():
        before.clear()
    arrived: list[int] = []

    def defer(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    deferred = {number: handler for number, handler in before.items() if callable(handler)}
    for number in deferred:
        signal.signal(number, defer)
    try:
        yield
    finally:
        for number, handler in deferred.items():
            if signal.getsignal(number) is defer:  # Spark sets its own, which cancels jobs
                signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])
