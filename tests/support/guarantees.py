"""What docs/guarantees.md lists: ids, and the tests named with them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
_ROW = re.compile(r"^\| ([IRPG]\d{1,2}) \|", re.MULTILINE)
_TEST = re.compile(r"`([\w/]+\.py)`")


def sections(page: Path = PAGE) -> dict[str, str]:
    """A page's sections by their headings."""
    parts = re.split(r"^##+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def ids_in(text: str) -> list[str]:
    """Ids that have a row in a table, in their order."""
    return _ROW.findall(text)


def files_named(text: str) -> set[Path]:
    """Test files that are named, by their path below `tests`."""
    return {ROOT / "tests" / name for name in _TEST.findall(text) if "test_" in name}
