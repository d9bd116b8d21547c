"""The wheel holds every module, and works outside the checkout."""

import subprocess
import zipfile

import pytest

from tests.support.wheel import PACKAGES, ROOT, install_wheel, wheel

pytestmark = pytest.mark.xdist_group("wheel")
IMPORT_ALL = """
import importlib, pathlib, sys
for name in sys.stdin.read().split():
    module = importlib.import_module(name)
    assert "site-packages" in module.__file__, module.__file__
"""


def module_names():
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_wheel_contains_every_module_and_marker():
    inside = set(zipfile.ZipFile(wheel()).namelist())
    wanted = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.suffix == ".py" or file.name == "py.typed"
    }
    assert wanted <= inside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside)
    assert {name.split("/")[0] for name in inside if "dist-info" not in name} == set(PACKAGES)


def test_wheel_imports_every_module_in_a_clean_environment(tmp_path):
    result = subprocess.run(
        [install_wheel(tmp_path / "venv") / "python", "-P", "-c", IMPORT_ALL],
        input=" ".join(module_names()),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
