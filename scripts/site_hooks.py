"""What the site has beyond docs/: pages of other folders, the reference, links between them.

Called by MkDocs (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference_pages import reference_pages

ROOT = Path(__file__).resolve().parents[1]
BESIDE_DOCS = ("*.md", "tests/README.md", "tests/*/README.md", "examples/**/README.md")
START = "README.md"  # the site's first page
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s:#]+)((?:#[^()\s]*)?)\)")
CODE = re.compile(r"(```.*?```|~~~.*?~~~)", re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs/."""
    for path in _paths_beside_docs():
        source = str(ROOT / path)
        files.append(File.generated(config, _site_path(path), abs_src_path=source))
    for path, text in reference_pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Links of the repository become links of the site; tables say `a|b` as they mean it."""
    parts = CODE.split(markdown)
    parts[::2] = [_readable(part, page.file.src_uri) for part in parts[::2]]
    return "".join(parts)


def _readable(text: str, page: str) -> str:
    text = LINK.sub(lambda match: _link(match, page), text)
    # GitHub wants the bar in a cell's code escaped, Python-Markdown shows the backslash.
    return re.sub(r"`[^`\n]*\\\|[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), text)


def _link(match: re.Match[str], page: str) -> str:
    image, text, target, anchor = match.groups()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_repository_path(page)), target))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    if (ROOT / path).exists() and not path.startswith("docs/") and path not in _paths_beside_docs():
        return text  # a file that is no page
    link = posixpath.relpath(_site_path(path), posixpath.dirname(page))
    return f"{image}[{text}]({link}{anchor})"


def _paths_beside_docs() -> Iterator[str]:
    for pattern in BESIDE_DOCS:
        yield from (path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(pattern)))


def _site_path(path: str) -> str:
    if path == START:
        return "index.md"
    inside = path.removeprefix("docs/")
    return inside if inside != path else f"project/{path}"


def _repository_path(page: str) -> str:
    if page == "index.md":
        return START
    outside = page.removeprefix("project/")
    return outside if outside != page else f"docs/{page}"
