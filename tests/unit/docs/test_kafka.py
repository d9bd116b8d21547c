"""docs/kafka.md names options and functions that exist, and the jars that are looked for."""

import re
from pathlib import Path

from maintenance.cli.ingest import ingest
from maintenance.cli.ingest_stream import KAFKA_BATCH_EVENTS
from tableformat.spark.kafka_source import CONNECTOR_CLASSES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "kafka.md").read_text()


def test_options_named_are_those_of_the_command():
    known = {name for param in ingest.params for name in param.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named <= known
    assert {name for name in known if "kafka" in name or "connector" in name} <= named
    assert f"{KAFKA_BATCH_EVENTS:,}" in PAGE


def test_jars_named_are_those_looked_for():
    assert all(f"`{jar}`" in PAGE for jar in CONNECTOR_CLASSES.values())


def test_python_names_can_be_imported():
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(snippet, "docs/kafka.md", "exec"), {})
