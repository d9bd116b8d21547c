"""deploy/ and the run book: against the code, and with linters of their own."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from click import Command, Context
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from maintenance.cli.main import cli
from tableformat.errors import ErrorKind
from tests.support.observed_metrics import observed_registries

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
RUN_BOOK = (ROOT / "docs" / "operating" / "runbook.md").read_text()
PAGE = (ROOT / "docs" / "operating" / "deploying.md").read_text()
SCHEDULER_PAGE = (ROOT / "docs" / "maintenance-scheduler.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
JOBS = {"icefold-maintain", "icefold-ingest"}
KUBERNETES = [
    document
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]
OF_PROMETHEUS = {"up", "job", "instance", "le"}


def dashboard_queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Labels by the names that a scrape finds."""
    found: dict[str, set[str]] = {"up": set()}
    for registry in observed_registries(tmp_path_factory.mktemp("metrics")).values():
        for family in registry.collect():
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def named_in(query: str) -> tuple[set[str], set[str]]:
    """Metrics and labels of a query."""
    groups = re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", query)
    matchers = re.findall(r"\{([^}]*)\}", query)
    labels = {name.strip() for group in groups for name in group.split(",")}
    labels |= {name for text in matchers for name in re.findall(r"(\w+)\s*[=!]", text)}
    return set(re.findall(r"\b(?:icefold_\w+|up)\b", query)), labels


@pytest.mark.parametrize("query", [*dashboard_queries(), *(rule["expr"] for rule in RULES)])
def test_query_names_metrics_and_labels_that_exist(
    query: str, samples: dict[str, set[str]]
) -> None:
    metrics, labels = named_in(query)
    assert metrics
    assert metrics <= samples.keys()
    known = set().union(*(samples[name] for name in metrics))
    assert labels <= known | OF_PROMETHEUS
    assert set(re.findall(r'job="([^"]+)"', query)) <= JOBS


def test_labels_in_texts_of_alerts_and_legends_exist(samples: dict[str, set[str]]) -> None:
    for rule in RULES:
        told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        metrics, _ = named_in(rule["expr"])
        assert told <= set().union(*(samples[name] for name in metrics)) | OF_PROMETHEUS
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            told = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            metrics, _ = named_in(target["expr"])
            assert told <= set().union(*(samples[name] for name in metrics))


def test_panels_do_not_overlap_and_alerts_they_name_exist() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
    named = set(re.findall(r"Icefold\w+", json.dumps(DASHBOARD)))
    assert named
    assert named <= {rule["alert"] for rule in RULES}


def test_every_alert_has_its_section_and_points_at_it() -> None:
    headings = re.findall(r"^## (Icefold\w+)$", RUN_BOOK, re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES]
    for rule in RULES:
        wanted = f"docs/operating/runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook"] == wanted
        assert rule["labels"]["severity"] in {"page", "ticket"}


def test_alerts_of_the_scheduler_page_are_those_of_the_file() -> None:
    listed = SCHEDULER_PAGE.partition("| says | alert |")[2]
    wanted = set(re.findall(r"`(.*?)`", listed))
    assert len(wanted) > 6
    assert wanted <= {part for rule in RULES for part in rule["expr"].split(" or ")}


def commands(text: str) -> Iterator[list[str]]:
    """The icefold commands in what a shell gets."""
    for line in text.splitlines():
        for part in re.split(r";|&&|\|\|?", line.split(" #")[0]):
            words = shlex.split(part)
            if words[:1] == ["icefold"]:
                yield words[1:]


def understood(words: list[str]) -> None:
    command: Command = cli
    context = Context(cli)
    while hasattr(command, "commands"):
        name, found, words = command.resolve_command(context, words)
        assert found is not None, words
        command, context = found, Context(found, info_name=name, parent=context)
    command.make_context(command.name, list(words), parent=context.parent)


def test_run_book_says_what_each_kind_of_error_asks_for() -> None:
    table = RUN_BOOK.partition("| error | do |")[2].partition("\n\n")[0]
    words = [
        word
        for row in table.splitlines()[2:]
        for word in re.findall("`([a-z-]+)`", row.split("|")[1])
    ]
    assert sorted(words) == sorted(["lock", *ErrorKind])


def test_commands_of_the_run_book_are_understood() -> None:
    blocks = re.findall(r"^ *```sh\n(.*?)```", RUN_BOOK, re.DOTALL | re.MULTILINE)
    found = [words for block in blocks for words in commands(block)]
    assert len(found) > 15
    for words in found:
        understood([*words, "--yes"] if words[:2] == ["lock", "break"] else words)


def test_commands_that_are_started_are_understood() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    understood(list(compose["services"]["maintain"]["command"]))
    for document in KUBERNETES:
        spec = document["spec"]
        spec = spec.get("jobTemplate", {}).get("spec", spec).get("template", {}).get("spec")
        for container in spec["containers"] if spec else ():
            if "args" in container:
                understood(list(container["args"]))
            else:
                [words] = commands(container["command"][-1])
                understood(words)
    for file in (DEPLOY / "systemd").glob("*.service"):
        [line] = re.findall(r"^ExecStart=/opt/icefold/bin/(.*)$", file.read_text(), re.MULTILINE)
        [words] = commands(line)
        understood(words)


def test_files_that_are_copied_and_mounted_exist() -> None:
    sent = (DEPLOY / "Dockerfile.dockerignore").read_text()
    for kept in re.findall(r"^!(\S+)$", sent, re.MULTILINE):
        assert (ROOT / kept).exists(), kept
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source == "data" or (DEPLOY / source).exists(), volume
    for path in re.findall(r"`(deploy/[^`]*)`", PAGE):
        assert (ROOT / path).exists(), path


def test_images_have_the_version_of_the_package() -> None:
    named = re.findall(r"icefold:([\d.]+)", json.dumps(KUBERNETES) + PAGE)
    assert named
    assert set(named) == {PROJECT["version"]}


def test_lock_holds_what_the_package_needs_with_hashes() -> None:
    text = (DEPLOY / "requirements.lock").read_text()
    locked: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=[a-z0-9])", text.replace("\\\n", " ")):
        if match := re.match(r"([a-z0-9][\w.-]*)==(\S+)", entry):
            locked.setdefault(canonicalize_name(match[1]), []).append(match[2])
            assert "--hash=sha256:" in entry, entry
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["postgres"]
    for requirement in map(Requirement, wanted):
        versions = locked[canonicalize_name(requirement.name)]  # by version of Python
        assert all(map(requirement.specifier.contains, versions)), (
            f"{requirement}: run scripts/lock"
        )


# -- their own tools -------------------------------------------------------------------------------


def run(*words: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def tool(name: str) -> str:
    """A program beside this Python or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine")
    return found


@pytest.mark.slow
def test_dockerfile_pleases_its_linter() -> None:
    run(tool("hadolint"), DEPLOY / "Dockerfile")


@pytest.mark.slow
def test_kubernetes_manifests_fit_their_schemas() -> None:
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    run(tool("kubernetes-validate"), "--strict", *files)


@pytest.mark.slow
def test_units_please_systemd(tmp_path: Path) -> None:
    verify = tool("systemd-analyze")
    for unit in sorted((DEPLOY / "systemd").iterdir()):
        text = unit.read_text().replace("/opt/icefold/bin/icefold", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    for unit in sorted(tmp_path.iterdir()):
        assert run(verify, "verify", unit) == "", unit.name
