"""The oldest releases that pyproject.toml allows are enough for every module, and the command."""

import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.packaging.test_wheel import IMPORT_ALL, module_names
from tests.support.wheel import ROOT, wheel


@pytest.mark.long
@pytest.mark.xdist_group("wheel")
def test_oldest_releases_import_every_module_and_start_the_command(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    floors = {}
    for text in [*project["dependencies"], *(each for one in extras.values() for each in one)]:
        wanted = Requirement(text)
        [floor] = (each.version for each in wanted.specifier if each.operator == ">=")
        floors[wanted.name] = max(floors.get(wanted.name, floor), floor, key=_numbers)
    constraints = tmp_path / "floors.txt"
    constraints.write_text("".join(f"{name}=={floor}\n" for name, floor in floors.items()))
    programs = tmp_path / "venv" / "bin"
    subprocess.run(["python3", "-m", "venv", tmp_path / "venv"], check=True)
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, "-c", constraints, f"{wheel()}[{','.join(extras)}]"], check=True)
    for command, text in (
        ([programs / "python", "-P", "-c", IMPORT_ALL], " ".join(module_names())),
        ([programs / "icefold", "--help"], ""),
    ):
        done = subprocess.run(command, input=text, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def _numbers(version):
    return tuple(map(int, version.split(".")))
