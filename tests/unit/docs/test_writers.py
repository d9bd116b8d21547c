"""What docs/writers.md says was tried is tried by tests of these names."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "writers.md").read_text()


def test_tests_that_the_page_names_are_there_and_start_what_it_says():
    files = {name: (ROOT / name).read_text() for name in re.findall(r"`(tests/\S+\.py)`", PAGE)}
    assert len(files) == 12
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert any(f"def {name}(" in text for text in files.values()), name
    assert "MERGE INTO" in files["tests/interop/test_trino.py"]


def test_versions_are_those_that_the_tests_run():
    for support, said in (
        ("support/trino", "Trino {TRINO}"),
        ("support/java_iceberg", "{ICEBERG} on Spark {SPARK}"),
        ("writers/flink", "Flink {FLINK} with Iceberg {ICEBERG}"),
        ("writers/connect", "Kafka Connect sink {ICEBERG}"),
    ):
        text = (ROOT / "tests" / f"{support}.py").read_text()
        versions = dict(re.findall(r'^([A-Z]+) = "([\d.]+)"', text, re.M))
        assert said.format(**versions) in PAGE
