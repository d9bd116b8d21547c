"""`icefold` as a person types it: any words end in an answer, or in one line and an exit code.

One word per line. Words that lead out of the folder of the run or to the network, and commands that
wait for others or start a JVM, are not run: they are no parsers.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from click.testing import CliRunner

from maintenance.cli.main import cli
from tableformat.errors import UnsupportedError
from tableformat.spark import session
from tests.fuzz.mutate_bytes import cut, flip_bit, set_bytes, splice
from tests.fuzz.mutate_text import TEXT_MUTATORS
from tests.fuzz.target import Accepted, Target

_OUTSIDE = re.compile(r"^/|[=,:]/|\.\.|://|^~")
_WAITING = ("maintain", "--topic", "--spark", "--metrics-port", "--executors")
_EVENTS = '{"op":"c","after":{"id":1,"status":"new","price":"AQ=="}}\n'
_PREPARED = (
    ("table", "create", "shop.orders", "--column", "id:long!", "--column", "status:string",
     "--column", "price:decimal(10, 2)", "--primary-key", "id"),
    ("ingest", "shop.orders", "events.jsonl", "-o", "decimals=precise"),
    ("resolve", "shop.orders"),
    ("ingest", "shop.orders", "events.jsonl", "-o", "decimals=precise"),
)  # fmt: skip
_fresh: dict[Path, tuple[int, int]] = {}


@lru_cache
def _folders() -> tuple[Path, Path]:
    """Where the commands run, and a copy of how it is before each."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-cli-"))
    work = root / "work"
    work.mkdir()
    (work / "events.jsonl").write_text(_EVENTS)
    os.chdir(work)
    for words in _PREPARED:
        result = CliRunner().invoke(cli, ["--warehouse", str(work / "warehouse"), *words])
        assert result.exit_code == 0, result.stderr
    shutil.copytree(work, root / "copy")
    return work, root / "copy"


def _renewed() -> Path:
    """Where the commands run, as it was before all of them."""
    work, copy = _folders()
    if _files(work) != _fresh:  # most words change nothing, and a copy costs more than they do
        os.chdir(copy)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(copy, work)
        os.chdir(work)
        _fresh.clear()
        _fresh.update(_files(work))
    return work


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """When each was changed, and its size."""
    states = ((path, path.lstat()) for path in folder.rglob("*"))
    return {path: (state.st_mtime_ns, state.st_size) for path, state in states}


def _setup() -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedError("no Spark here")

    session.local_session = refuse  # type: ignore[assignment]
    _folders()


def _words(data: bytes) -> list[str]:
    """As a process gets them: no NUL, bytes that are not UTF-8 as lone surrogates."""
    text = data.replace(b"\x00", b"").decode("utf-8", "surrogateescape")
    return text.split("\n")


def _parse(data: bytes) -> None:
    words = _words(data)
    if any(_OUTSIDE.search(word) or word.startswith(_WAITING) for word in words):
        return
    work = _renewed()
    result = CliRunner().invoke(cli, ["--warehouse", str(work / "warehouse"), *words])
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        raise error
    if result.exit_code == 1:
        _check_last_line(result.stderr)


def _check_last_line(text: str) -> None:
    lines = text.rstrip("\n").split("\n")
    if not re.match(r"icefold: |Aborted!|DAMAGED: ", lines[-1]):
        raise Accepted(f"exit code 1, but the last line is {lines[-1]!r}")
    if len(lines[-1].splitlines()) != 1 or not lines[-1].isprintable():
        raise Accepted(f"the error is not one line that can be printed: {lines[-1]!r}")


COMMAND_LINE = Target(
    name="command_line",
    parse=_parse,
    mutators=(*TEXT_MUTATORS, *TEXT_MUTATORS, splice, splice, cut, flip_bit, set_bytes),
    errors=(),
    setup=_setup,
    inputs=200,
)
