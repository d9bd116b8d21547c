"""Where the `icefold` script begins: the command line is imported here, and not before.

That takes a second or more, in which Ctrl-C would print a traceback, and PyIceberg reads its
configuration in it: a file that cannot be read would be told by a traceback, too.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from maintenance.cli.sort_instructions import choose_sort_instructions

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
OPEN_FILES = 10_240  # macOS gives no process more
_READ_BY_IMPORT = "manifest-cache-size"  # PyIceberg's setting


def main() -> None:
    """Entry point of the `icefold` script."""
    with _signals_end_it(), _nothing_collected():
        choose_sort_instructions()
        allow_open_files()
        _check_folder()
        _check_configuration()
        from maintenance.cli.main import main as command_line
    command_line()


def allow_open_files() -> None:
    """As many open files as this process may have.

    Each index has ten, and a cut all indexes of its tables; shells and systemd allow 1,024 to begin
    with, and macOS 256, though programs may take more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # the system has a lower limit, which it does not say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """What an import makes stays: to look for garbage in it takes a sixth of the import's time.

    It would cost a process that stays another 0.1 s at each full collection.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """Nothing is open yet; an exception in the middle of an import could become any other one."""
    standard = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in _WORDS}
    theirs = {number: each for number, each in before.items() if each in standard}
    for number in theirs:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in theirs.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    _say(_WORDS[signal.Signals(number)])
    os._exit(128 + number)


def _check_folder() -> None:
    """PyIceberg looks for its configuration in the current folder, too."""
    try:
        os.getcwd()  # noqa: PTH109
    except OSError as error:
        _say(f"the current folder cannot be read: {error.strerror}; go to another one")
        sys.exit(1)


def _check_configuration() -> None:
    """What the import of PyIceberg reads, in a line if it cannot be read."""
    from pyiceberg.utils.config import Config

    try:
        Config().get_int(_READ_BY_IMPORT)
    except Exception as error:  # noqa: BLE001 - the YAML reader's own classes
        # Its text is left out: it may quote a secret from the file.
        _say(
            f"invalid-input: PyIceberg's configuration cannot be read: {type(error).__name__}; see "
            f".pyiceberg.yaml (in PYICEBERG_HOME, the home folder or here; {_READ_BY_IMPORT} is a "
            "number) and variables PYICEBERG_..."
        )
        sys.exit(1)


def _say(text: str) -> None:
    with suppress(OSError, AttributeError):  # it is full, or closed
        sys.stderr.write(f"icefold: {text}\n")
        sys.stderr.flush()
