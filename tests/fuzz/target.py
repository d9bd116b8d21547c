"""What is fuzzed: a parser, how its inputs are made, and what may come out of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tableformat.errors import CorruptDataError, UnsupportedError

CORPUS = Path(__file__).parent / "corpus"

INPUT_BYTES_MAX = 1 << 20

Mutator = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


class Accepted(AssertionError):
    """A parser took what it must refuse, or gave a value that contradicts its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser.

    Attributes:
        name: Also the name of its folder in the corpus, unless it shares that of `corpus_of`.
        parse: Takes the input; checks what it can of the value, with `Accepted`.
        mutators: Each makes an input from one of the corpus (and the whole of it, to splice).
        errors: What the parser may raise.
        inputs: How many the normal test run tries; follows the cost of one.
        setup: Run once in the process that parses, before its memory is limited.
    """

    name: str
    parse: Callable[[bytes], object]
    mutators: Sequence[Mutator]
    errors: tuple[type[Exception], ...] = (CorruptDataError, UnsupportedError)
    inputs: int = 10_000
    setup: Callable[[], object] | None = None
    corpus_of: str | None = None

    def corpus(self) -> list[tuple[str, bytes]]:
        """Names and bytes of the committed inputs, in a fixed order."""
        paths = sorted((CORPUS / (self.corpus_of or self.name)).iterdir())
        return [(path.name, path.read_bytes()) for path in paths]

    def generate(self, corpus: Sequence[bytes], *, seed: int, ordinal: int) -> bytes:
        """Input `ordinal` of a run: the same on every machine."""
        rng = random.Random(f"{self.name}:{seed}:{ordinal}")
        data = rng.choice(corpus)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            changed = rng.choice(self.mutators)(rng, data, corpus)
            data = changed if len(changed) <= INPUT_BYTES_MAX else data
        return data
