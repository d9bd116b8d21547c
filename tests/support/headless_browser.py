"""Chromium without a window: what a page is once a real browser has laid it out."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str:
    """The browser's path; skips the test where there is none."""
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.skip("no Chromium on this machine (apt install chromium)")


class HeadlessBrowser:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = [
            find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-background-networking", f"--user-data-dir={folder / 'profile'}",
            "--enable-logging=stderr", "--v=0",
        ]  # fmt: skip

    def dom(self, page: Path) -> str:
        """The page's document after loading."""
        return self._run("--dump-dom", page.as_uri()).stdout

    def log(self, page: Path) -> list[str]:
        """What the page wrote to the console: errors and refused resources."""
        errors = self._run("--dump-dom", page.as_uri()).stderr
        return [line for line in errors.splitlines() if "CONSOLE" in line]

    def screenshot(self, page: Path, *, width: int = 1280, height: int = 1600, dark: bool = False):
        """PNG file of the page."""
        target = self.folder / "shot.png"
        target.unlink(missing_ok=True)
        options = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
        self._run(
            *options, f"--window-size={width},{height}", f"--screenshot={target}", page.as_uri()
        )
        return target

    def print_pages(self, page: Path) -> int:
        """How many sheets it takes in print."""
        target = self.folder / "print.pdf"
        self._run("--no-pdf-header-footer", f"--print-to-pdf={target}", page.as_uri())
        return target.read_bytes().count(b"/Type /Page\n")

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *words], capture_output=True, text=True, timeout=90, check=True
        )


def png_size(path: Path) -> tuple[int, int]:
    """Width and height that a PNG file says."""
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height
