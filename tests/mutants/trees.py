"""Copies of the checkout in which a bug can be planted, and tests run on them.

A copy is a folder of its own, so that every process a test starts sees the bug too, and the
checkout is never touched. Compiled files are checked by the hash of their source: a planted bug of
the same length, written within the same second, is compiled all the same.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.mutants.catalogue import PACKAGES, ROOT, Mutant

TIMEOUT_S = 180.0  # some bugs never end; tests of a mutant take seconds
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
_SKIPPED = re.compile(r"\b\d+ (?:skipped|deselected)\b")
_ALL_PASSED, _SOME_FAILED = 0, 1


class Verdict(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"  # its tests could not be run: nothing is known about it


@dataclass(frozen=True, slots=True)
class TestRun:
    """One run of pytest. `detail`: the first test that failed, or why there was no answer."""

    verdict: Verdict
    detail: str
    seconds: float


class Tree:
    """A copy of the checkout."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def of_checkout(path: Path) -> Tree:
        """Copy the code as it is, uncommitted changes included, and compile the packages."""
        for name in (*PACKAGES, "tests", "benchmarks"):  # tests import from both
            shutil.copytree(ROOT / name, path / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", path)
        for name in PACKAGES:
            compileall.compile_dir(
                path / name, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH
            )
        return Tree(path)

    def copy(self, path: Path) -> Tree:
        """Another one like it."""
        shutil.copytree(self.path, path)
        return Tree(path)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """With the bug inside the block."""
        path = self.path / mutant.file
        source = path.read_text()
        path.write_text(mutant.mutate(source))
        try:
            yield
        finally:
            path.write_text(source)

    def check_is_used(self) -> None:
        """Refuse to go on when a process in the tree imports the product from elsewhere.

        Raises:
            RuntimeError: Every mutant would survive.
        """
        code = "import " + ", ".join(PACKAGES)
        code += "; print(" + ", ".join(f"{name}.__file__" for name in PACKAGES) + ")"
        done = self._run([sys.executable, "-c", code])
        if done.stdout.count(f"{self.path}{os.sep}") != len(PACKAGES):
            raise RuntimeError(f"the copy is not what is imported: {done.stdout}{done.stderr}")

    def test(self, tests: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> TestRun:
        """Run tests until the first failure."""
        started = time.perf_counter()
        options = ["-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        try:
            done = self._run([sys.executable, "-m", "pytest", *options, *tests], timeout_s)
        except subprocess.TimeoutExpired:
            return TestRun(Verdict.KILLED, "time limit", time.perf_counter() - started)
        verdict, detail = _judge(done)
        return TestRun(verdict, detail, time.perf_counter() - started)

    def _run(
        self, command: Sequence[str], timeout_s: float = TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.path), "COLUMNS": "400"}
        for name in [each for each in environment if each.startswith("PYTEST_")]:
            del environment[name]  # of the pytest that runs this, xdist's too
        with subprocess.Popen(
            command,
            cwd=self.path,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as child:
            try:
                out, errors = child.communicate(timeout=timeout_s)
            except BaseException:
                os.killpg(child.pid, 9)  # with whatever the tests have started
                raise
        return subprocess.CompletedProcess(command, child.returncode, out, errors)


def _judge(done: subprocess.CompletedProcess[str]) -> tuple[Verdict, str]:
    code, lines = done.returncode, done.stdout.strip().splitlines()
    failed = _FAILED.search(done.stdout)
    if code < 0:
        return Verdict.KILLED, f"the process died of signal {-code}"
    if code == _SOME_FAILED and failed is not None:
        return Verdict.KILLED, failed.group(1)
    last = lines[-1] if lines else "no output"
    if code == _ALL_PASSED and not _SKIPPED.search(last):
        return Verdict.SURVIVED, ""
    return Verdict.BROKEN, f"pytest ended with {code}: {last} {done.stderr.strip()[-200:]}".strip()
