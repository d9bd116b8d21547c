"""docs/guarantees.md has every id that is cited anywhere, and names tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.goals import GOALS
from tests.support.guarantees import PAGE, ROOT, files_named, ids_in, sections

FOLDERS = (
    "benchmarks",
    "docs",
    "lock",
    "maintenance",
    "resolver",
    "scripts",
    "tableformat",
    "tests",
)
SUFFIXES = {".py", ".md", ".toml", ""}
CITED = re.compile(r"\b[IRPG]\d{1,2}\b")
TYPE_NAMES = {"I32", "I64"}  # of Thrift; I16 is an id, too
DOCUMENT = re.compile(r"[\w./-]*\w\.md\b")
MADE = ("reference/", "index.md")  # pages of the site that are no files, see scripts/site_hooks.py
BUGS = {
    heading: text
    for heading, text in sections().items()
    if re.match(r"[A-G]\. ", heading) or heading == "Cases of peers"
}


def texts() -> Iterator[tuple[Path, str]]:
    yield from ((path, path.read_text()) for path in [*ROOT.glob("*.md"), *ROOT.glob("*.toml")])
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file() and "corpus" not in path.parts:
                yield path, path.read_text(errors="replace")


def test_every_id_that_is_cited_is_on_the_page():
    known = set(ids_in(PAGE.read_text())) | TYPE_NAMES
    unknown = {
        f"{path.relative_to(ROOT)}: {found}"
        for path, text in texts()
        for found in set(CITED.findall(text)) - known
    }
    assert not unknown


def test_id_is_given_once():
    ids = ids_in(PAGE.read_text())
    assert len(ids) == len(set(ids))


def test_tests_named_exist():
    named = files_named(PAGE.read_text())
    assert len(named) > 40
    assert not [path for path in named if not path.exists()]


@pytest.mark.parametrize("section", BUGS)
def test_test_of_every_bug_is_where_the_page_says(section):
    text = "\n".join(path.read_text() for path in files_named(BUGS[section]))
    for found in ids_in(BUGS[section]):
        assert f"\ndef test_{found.lower()}_" in text, found


def test_goals_are_those_that_are_counted():
    assert ids_in(sections()["Goals"]) == list(GOALS)


def test_documents_that_are_cited_are_in_the_repository():
    there = {path.name for path in ROOT.glob("*.md")}
    there |= {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")}
    missing = {
        f"{path.relative_to(ROOT)}: {found}"
        for path, text in texts()
        for found in DOCUMENT.findall(text)
        if Path(found).name not in there and not found.startswith(MADE)
    }
    assert not missing
