"""Pages for contributors: links lead somewhere, paths and fail points are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINKING = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]
)
DESIGN = sorted((ROOT / "docs" / "design").glob("[0-9]*.md"))
NAMING_PATHS = [
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")),
    *(ROOT / "docs" / name for name in ("architecture.md", "iceberg-v3.md", "api.md")),
    *DESIGN,
]
HEADINGS = ["Context", "Decision", "Alternatives", "Consequences"]
LINK = re.compile(r"\]\(([^()\s]+)\)")
PATH = re.compile(r"`((?:docs|lock|maintenance|resolver|scripts|tableformat|tests)/[^`\s<]*)`")
PRODUCT = ("lock", "maintenance", "resolver", "tableformat")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text()):
        target, _, anchor = link.partition("#")
        if ":" in target:
            continue
        other = (page.parent / target).resolve() if target else page
        assert other.exists(), link
        assert not anchor or anchor in anchors(other), link


@pytest.mark.parametrize("page", NAMING_PATHS, ids=name_of)
def test_paths_that_are_named_exist(page):
    for path in PATH.findall(page.read_text()):
        folder = next((part for part in Path(path).parts if "*" in part), None)
        assert list(ROOT.glob(path)) if folder else (ROOT / path).exists(), path


@pytest.mark.parametrize("note", DESIGN, ids=name_of)
def test_design_note_has_its_number_its_parts_and_its_line(note):
    text = note.read_text()
    number = note.name[:4]
    title = re.match(rf"# {number} (.+)\n", text)
    assert title
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    line = f"| [{number}]({note.name}) | {title[1]} |"
    assert line in (note.parent / "README.md").read_text()


def test_design_notes_are_numbered_without_gaps():
    assert [note.name[:4] for note in DESIGN] == [f"{n:04}" for n in range(1, len(DESIGN) + 1)]


def test_design_notes_that_are_cited_exist():
    numbers = {note.name[:4] for note in DESIGN}
    cited = {
        number
        for package in PRODUCT
        for path in (ROOT / package).rglob("*.py")
        for number in re.findall(r"docs/design/(\d{4})", path.read_text())
    }
    assert cited
    assert cited <= numbers


def test_crash_table_names_the_fail_points_of_the_code():
    text = (ROOT / "docs" / "architecture.md").read_text()
    code = "".join(path.read_text() for name in PRODUCT for path in (ROOT / name).rglob("*.py"))
    known = set(re.findall(r"\"((?:catalog|commit|index|lock|resolve)\.[\w.]+)\"", code))
    table = text.partition("## A resolve cycle")[2].partition("\n## ")[0]
    named = set(re.findall(r"`((?:catalog|commit|index|lock|resolve)\.[\w.]+)`", table))
    assert named <= known
    assert {point for point in known if re.match(r"resolve\.(before|after)_", point)} <= named


def test_every_folder_of_the_product_is_in_the_map():
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = {
        f"{path.parent.relative_to(ROOT)}/"
        for name in PRODUCT
        for path in (ROOT / name).rglob("__init__.py")
    }
    whole = {"tableformat/", "maintenance/"}  # their own modules have a line: `tableformat/*.py`
    missing = {folder for folder in folders - whole if f"| `{folder}` |" not in text}
    assert not missing
