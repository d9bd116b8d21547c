"""The wheel holds every module, and works outside the checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tableformat", "resolver", "maintenance", "lock")
IMPORT_ALL = """
import importlib, pathlib, sys
for name in sys.stdin.read().split():
    module = importlib.import_module(name)
    assert "site-packages" in module.__file__, module.__file__
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: a build in the checkout would leave its own folders there."""
    source = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "-o",
            str(target),
            str(source),
        ],
        check=True,
        capture_output=True,
    )
    return next(target.glob("*.whl"))


def module_names():
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_wheel_contains_every_module_and_marker(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.suffix == ".py" or file.name == "py.typed"
    }
    assert wanted <= inside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside)
    assert {name.split("/")[0] for name in inside if "dist-info" not in name} == set(PACKAGES)


def test_wheel_imports_every_module_in_a_clean_environment(wheel, tmp_path):
    # Dependencies are this environment's; icefold is the wheel's, and the checkout is not in sight.
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (Path(site) / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    result = subprocess.run(
        [python, "-P", "-c", IMPORT_ALL],
        input=" ".join(module_names()),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
