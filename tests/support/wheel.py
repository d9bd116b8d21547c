"""icefold as its users get it: a wheel, in a virtual environment without the checkout."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tableformat", "resolver", "maintenance", "lock")


@functools.cache
def wheel() -> Path:
    """Built from a copy: a build in the checkout would leave its own folders there."""
    source = Path(tempfile.mkdtemp(prefix="icefold-wheel-"))
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    target = source / "dist"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    subprocess.run([*command, "-o", target, source], check=True, capture_output=True)
    return next(target.glob("*.whl"))


def install_wheel(environment: Path) -> Path:
    """A fresh virtual environment with the wheel; gives its folder of programs.

    Dependencies are this environment's; icefold is the wheel's, and the checkout is not in sight.
    """
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    programs = environment / "bin"
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel()], check=True, capture_output=True)
    [site] = (environment / "lib").glob("python*/site-packages")
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return programs
