"""The planted bugs: read from the TOML files beside this module, and put into a source text."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
PACKAGES = ("tableformat", "resolver", "maintenance", "lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One planted bug.

    Attributes:
        id: Unique; for `--only`.
        tie: What it breaks: ids of docs/guarantees.md, such as `R43` or `I10`.
        bug: One line for people.
        file: The source file, from the root of the checkout.
        old: Text that occurs in it exactly once.
        new: What it becomes.
        tests: pytest node ids that must notice; small, so that a mutant takes seconds.
        quick: Whether it is also run with the other tests.
    """

    id: str
    tie: str
    bug: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    quick: bool = False

    def mutate(self, source: str) -> str:
        """`source` with the bug in it.

        Raises:
            ValueError: The text to change is not there exactly once, or no Python comes out.
        """
        count = source.count(self.old)
        if count != 1:
            raise ValueError(
                f"mutant {self.id}: its old text occurs {count} times in {self.file}; "
                f"follow the code that moved, in {FOLDER.name}/*.toml"
            )
        if self.old == self.new:
            raise ValueError(f"mutant {self.id} changes nothing in {self.file}")
        mutated = source.replace(self.old, self.new)
        try:
            ast.parse(mutated)
        except SyntaxError as error:
            raise ValueError(f"mutant {self.id} makes no Python of {self.file}: {error}") from error
        return mutated


def load_mutants() -> list[Mutant]:
    """All mutants, by file and in the order they are written.

    Raises:
        TypeError: An entry lacks a field or has one too many.
        ValueError: An id is used twice.
    """
    mutants = list(_read_all())
    seen: set[str] = set()
    for mutant in mutants:
        if mutant.id in seen:
            raise ValueError(f"two mutants are called {mutant.id}")
        seen.add(mutant.id)
    return mutants


def _read_all() -> Iterator[Mutant]:
    for path in sorted(FOLDER.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            yield Mutant(**{**entry, "tests": tuple(entry["tests"])})
