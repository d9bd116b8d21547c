"""What the `icefold` script says when it cannot begin, or is interrupted before it has."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import maintenance

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow  # each starts processes
BEGIN = "from maintenance.cli.start import main; main()"
STUCK = f"""
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "tableformat":
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
{BEGIN}
"""


def begun(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if "PYICEBERG" not in name}
    clean |= {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", BEGIN, "--version"], cwd=folder, env=clean | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text", ["catalog: [of", "- a list", "manifest-cache-size: many"], ids=["yaml", "list", "word"]
)
def test_configuration_of_pyiceberg_that_cannot_be_read_is_one_line(tmp_path: Path, text) -> None:
    assert begun(tmp_path).returncode == 0
    (tmp_path / ".pyiceberg.yaml").write_text(text)
    check_refused(begun(tmp_path), "PyIceberg's configuration cannot be read")


def test_variable_of_pyiceberg_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    done = begun(tmp_path, PYICEBERG_MANIFEST_CACHE_SIZE="many")
    check_refused(done, "PyIceberg's configuration cannot be read")


def test_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os; os.rmdir({str(gone)!r}); {BEGIN}"
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"], cwd=gone, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    check_refused(done, "the current folder cannot be read: No such file or directory")


def check_refused(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 1
    assert done.stderr.startswith("icefold: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_interrupted_import_is_one_line(number: signal.Signals, word: str) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the child obeys it, too
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert told == f"icefold: {word}\n"


def test_what_is_imported_late_is_all_that_is_offered() -> None:
    public = importlib.import_module("maintenance.public")
    for name in public.__all__:
        assert getattr(maintenance, name) is getattr(public, name)
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = maintenance.nothing
