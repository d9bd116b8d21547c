from __future__ import annotations

from pathlib import Path

import pytest

from lock import LockUnavailableError
from lock.codec import RECORD_SIZE_MAX_BYTES
from lock.local_files import LocalConditionalStore
from lock.register import SwapOutcome


def test_half_written_object_is_never_seen(tmp_path: Path) -> None:
    """A crash leaves the file that was being written aside; the object stays what it was."""
    store = LocalConditionalStore(tmp_path)
    store.put_if_absent("k.json", b"old")
    (tmp_path / "k.json.new").write_bytes(b"ne")
    found = store.get("k.json")
    assert found is not None
    assert found[0] == b"old"
    assert store.put_if_match("k.json", b"newer", found[1]) is SwapOutcome.DONE
    assert not (tmp_path / "k.json.new").exists()


def test_giant_object_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "k.json").write_bytes(b"x" * (RECORD_SIZE_MAX_BYTES + 100))
    found = LocalConditionalStore(tmp_path).get("k.json")
    assert found is not None
    assert len(found[0]) == RECORD_SIZE_MAX_BYTES + 1


def test_folder_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalConditionalStore(tmp_path / "file" / "folder")
    with pytest.raises(LockUnavailableError, match="NotADirectoryError"):
        store.put_if_absent("k.json", b"x")
    with pytest.raises(LockUnavailableError, match="NotADirectoryError"):
        store.get("k.json")


def test_deleting_what_is_gone_is_no_error(tmp_path: Path) -> None:
    LocalConditionalStore(tmp_path).delete("k.json")
