"""examples/postgres is docs/postgresql.md in containers: what can be told of it without Docker."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml  # type: ignore[import-untyped]
from click import Command, Context

from maintenance.cli.main import cli
from tests.support.debezium import DEBEZIUM
from tests.support.kafka import BROKER, CONNECTORS

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "postgres"
PAGE = (ROOT / "docs" / "postgresql.md").read_text()
KAFKA_PAGE = (ROOT / "docs" / "kafka.md").read_text()
COMPOSE = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
CONNECTOR = json.loads((EXAMPLE / "connector.json").read_text())


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def statements(text: str) -> set[str]:
    return {" ".join(each.split()) for each in text.split(";") if each.strip()}


def icefold_words(service: str) -> list[list[str]]:
    """The icefold commands of a service, as the shell splits them."""
    command = SERVICES[service]["command"]
    words = shlex.split(command) if isinstance(command, str) else shlex.split(command[-1])
    starts = [at for at, word in enumerate(words) if word == "icefold"]
    ends = [*starts[1:], len(words)]
    return [words[start + 1 : end] for start, end in zip(starts, ends, strict=True)]


def test_images_have_the_versions_of_the_tests() -> None:
    images = {name: service.get("image") for name, service in SERVICES.items()}
    [version] = re.findall(r"Tested with PostgreSQL (\d+)", PAGE)
    assert images["postgres"] == f"postgres:{version}"
    assert images["kafka"] == f"apache/kafka:{BROKER}"
    assert images["connect"] == f"quay.io/debezium/connect:{DEBEZIUM}"
    assert BROKER in PAGE
    assert DEBEZIUM in PAGE


def test_source_is_that_of_the_page() -> None:
    assert statements((EXAMPLE / "init.sql").read_text()) == statements(blocks("sql")[0])


def test_connector_is_that_of_the_page() -> None:
    [text] = blocks("properties")
    wanted = dict(line.split("=", 1) for line in text.splitlines()) | {
        "database.hostname": "postgres"
    }
    wanted.pop("name")  # in the address that it is put to
    json_converter = "org.apache.kafka.connect.json.JsonConverter"
    assert wanted | {"key.converter": json_converter} == CONNECTOR
    database = SERVICES["postgres"]["environment"]
    assert CONNECTOR["database.dbname"] == database["POSTGRES_DB"]


def test_connector_jars_are_those_of_the_pinned_pyspark() -> None:
    pinned = re.search(r'"pyspark>=[\d.]+,<(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned is not None
    minor = f"{pinned[1]}.{int(pinned[2]) - 1}"
    [page] = blocks("xml", KAFKA_PAGE)
    for text in (page, (EXAMPLE / "pom.xml").read_text()):
        versions = [e.text for e in ET.fromstring(text).iter() if e.tag.endswith("version")]
        assert versions == ["1", CONNECTORS[minor]]
    row = rf"\| {re.escape(minor)}\.\d+ \(`icefold\[spark\]`\) \| {CONNECTORS[minor]} \|"
    assert re.search(row, KAFKA_PAGE)


@pytest.mark.parametrize("service", ["table", "ingest", "maintain"])
def test_commands_are_understood(service: str) -> None:
    for words in icefold_words(service):
        command: Command = cli
        context = Context(cli)
        while hasattr(command, "commands"):
            name, found, words = command.resolve_command(context, words)
            command, context = found, Context(found, info_name=name, parent=context)
        words = words[: next((i for i, w in enumerate(words) if w in (">/dev/null", "||")), None)]
        command.make_context(command.name, list(words), parent=context.parent)


def test_table_is_that_of_the_page() -> None:
    made = [words for words in icefold_words("table") if words[:2] == ["table", "create"]]
    [page] = re.findall(r"icefold (table create.*?)\nicefold", PAGE, re.DOTALL)
    assert made == [shlex.split(page.replace("\\\n", " "))]


def test_files_services_and_volumes_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            known = (
                (EXAMPLE / source).exists()
                if source.startswith(".")
                else source in COMPOSE["volumes"]
            )
            assert known, volume
        assert set(service.get("depends_on", ())) <= SERVICES.keys()
    build = SERVICES["table"]["build"]
    assert (EXAMPLE / build["context"]).resolve() == ROOT
    dockerfile = (ROOT / build["dockerfile"]).read_text()
    sent = (ROOT / f"{build['dockerfile']}.dockerignore").read_text()
    for kept in re.findall(r"^!(\S+)$", sent, re.MULTILINE):
        assert (ROOT / kept).exists(), kept
    for copied in re.findall(r"^COPY (\S+) ", dockerfile, re.MULTILINE):
        if not copied.startswith("--"):
            assert (ROOT / copied).exists(), copied
