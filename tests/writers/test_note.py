"""A writer of statements that is killed while it notes how far it got goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.writers.spark_writer import note


def test_a_kill_within_a_note_leaves_the_one_before(tmp_path, monkeypatch) -> None:
    at = tmp_path / "done"
    note(at, 7)

    def killed(path: Path, text: str) -> None:
        path.open("w").close()
        raise KeyboardInterrupt(text)

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        note(at, 8)
    assert at.read_text() == "7"
    monkeypatch.undo()
    note(at, 8)
    assert at.read_text() == "8"
