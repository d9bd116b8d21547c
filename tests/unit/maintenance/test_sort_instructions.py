"""Which processors NumPy does without AVX-512 on (`maintenance.cli.sort_instructions`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from maintenance.cli.sort_instructions import CHOICES, choose_sort_instructions

ZEN_4 = {"vendor_id": "AuthenticAMD", "cpu family": "25", "flags": "fpu avx2 avx512f avx512bw"}
VARIABLE = CHOICES[0]


def _described(folder: Path, **changed: str) -> Path:
    told = ZEN_4 | {name.replace("_family", " family"): value for name, value in changed.items()}
    text = "".join(f"{name}\t: {value}\n" for name, value in told.items())
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\n{text}\nprocessor\t: 1\nvendor_id\t: other\n")
    return path


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOICES:
        monkeypatch.setenv(name, "")  # restored at the end, whatever is set meanwhile
        monkeypatch.delenv(name)


def test_zen_4_sorts_without_avx_512(tmp_path: Path) -> None:
    choose_sort_instructions(_described(tmp_path))
    assert os.environ[VARIABLE] in {"X86_V4", "AVX512F"}


@pytest.mark.parametrize(
    "changed",
    [{"vendor_id": "GenuineIntel"}, {"cpu_family": "26"}, {"flags": "fpu avx2"}],
    ids=["another vendor", "another family", "no AVX-512"],
)
def test_others_are_left_alone(tmp_path: Path, changed: dict[str, str]) -> None:
    choose_sort_instructions(_described(tmp_path, **changed))
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("name", CHOICES)
def test_what_the_user_has_chosen_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "AVX2")
    choose_sort_instructions(_described(tmp_path))
    assert {each: os.environ.get(each) for each in CHOICES} == dict.fromkeys(CHOICES) | {
        name: "AVX2"
    }


def test_without_a_description_nothing_is_chosen(tmp_path: Path) -> None:
    choose_sort_instructions(tmp_path / "none")
    (tmp_path / "empty").write_bytes(b"\xff\n\n")
    choose_sort_instructions(tmp_path / "empty")
    assert VARIABLE not in os.environ


def test_numpy_knows_what_is_left_out(tmp_path: Path) -> None:
    """By its warning for others; on a processor without the instructions, too."""
    choose_sort_instructions(_described(tmp_path))
    code = "import warnings; warnings.simplefilter('error'); import numpy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_chooses_before_numpy_is_there() -> None:
    code = (
        "import sys; import maintenance.cli.start as start\n"
        "assert 'numpy' not in sys.modules\n"
        "seen = []\n"
        "start.choose_sort_instructions = lambda: seen.append('numpy' in sys.modules)\n"
        "sys.argv = ['icefold', '--help']\n"
        "try:\n    start.main()\n"
        "except SystemExit:\n    pass\n"
        "assert seen == [False], seen\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
