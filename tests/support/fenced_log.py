"""Something that cannot be undone, guarded by fence tokens: a file that refuses an older token."""

from __future__ import annotations

import fcntl
from pathlib import Path


class FencedLog:
    """Accepted steps, one line each: `token owner`. Shared between processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def step(self, token: int, owner: str) -> bool:
        """Append unless a newer token was seen."""
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            lines = file.read().splitlines()
            if lines and int(lines[-1].split()[0]) > token:
                return False
            file.write(f"{token} {owner}\n")
            file.flush()
            return True

    def steps(self) -> list[tuple[int, str]]:
        """What was accepted, in order."""
        if not self._path.exists():
            return []
        pairs = [line.split() for line in self._path.read_text().splitlines()]
        return [(int(token), owner) for token, owner in pairs]

    def check(self) -> None:
        """Tokens never fall, and each belongs to one owner."""
        steps = self.steps()
        tokens = [token for token, _ in steps]
        assert tokens == sorted(tokens)
        owners: dict[int, str] = {}
        for token, owner in steps:
            assert owners.setdefault(token, owner) == owner
