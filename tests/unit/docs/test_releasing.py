"""docs/releasing.md: what it calls stable is there, and the version stands in one place."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from maintenance.cli.main import cli

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "releasing.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("tableformat", "resolver", "maintenance", "lock")
SOURCES = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_listed(name: str) -> None:
    assert f"`{name}`" in PAGE
    module = importlib.import_module(name)
    assert all(hasattr(module, each) for each in module.__all__)


def test_version_stands_in_one_place() -> None:
    version = PROJECT["version"]
    assert not [file for file in SOURCES if version in file.read_text()]
    assert set(re.findall(r"icefold[ :]([\d.]+\d)|-a v([\d.]+\d)", PAGE)) <= {
        (version, ""), ("", version),
    }  # fmt: skip
    assert CliRunner().invoke(cli, ["--version"]).output.split()[-1] == version


def test_nothing_is_deprecated_as_the_page_says() -> None:
    warn = [file for file in SOURCES if "DeprecationWarning" in file.read_text()]
    assert ("Nothing is deprecated now" in PAGE) == (not warn)


def test_entry_points_scripts_and_files_exist() -> None:
    code = "".join(file.read_text() for file in SOURCES)
    for group in re.findall(r"`(icefold\.(?:change_formats|catalogs|lookup))`", PAGE):
        assert f'"{group}"' in code
    for path in re.findall(r"`((?:scripts|tests|deploy|tableformat)/[\w./-]+)", PAGE):
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
