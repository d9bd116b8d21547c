"""Mutations of texts and of JSON: tokens, nesting, odd characters, wrong types, keys twice."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz.mutate_bytes import SIZE_MAX
from tests.fuzz.target import Mutator

_TOKEN = re.compile(rb"[A-Za-z_]+|[0-9.]+|\s+|[^\sA-Za-z0-9_]")
_ODD = (
    b"", b"\x00", b"\n", b"\r", b"\x1b[31m", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xe2\x80\xa8",
    b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80", "é".encode(), "²".encode(), "\uff11".encode(), b"'", b'"',
    b"`", b"\\", b"\\u0000", b"\\ud800", b"--", b"/*", b"%", b"$(x)", b"${x}", b"{", b"[", b"(",
    b"x" * 5000,
)  # fmt: skip
_NUMBERS = (
    b"0", b"-0", b"-1", b"1e400", b"1e-400", b"NaN", b"-Infinity", b"2147483648", b"0x10", b"1.5",
    b"9223372036854775808", b"-9223372036854775809", b"1" * 5000, b"1e999999999", b"0.1", b"01",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 1e308, "", "x",
    "0", "-1", "\u2028", "\x00", "a\nb", "é" * 50, "x" * 3000, [], {}, [[]], [None], {"": None},
    "\ud800", "²", "--1", "1e999999999",
)  # fmt: skip
_DEPTHS = (3, 12, 25, 70, 250, 500, 995, 3000, 30_000)


def replace_token(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """One token becomes another: of the corpus, odd, or a number at a limit."""
    tokens = _TOKEN.findall(data)
    if not tokens:
        return rng.choice(_ODD)
    others = _TOKEN.findall(rng.choice(corpus)) or [b""]
    tokens[rng.randrange(len(tokens))] = rng.choice(
        (rng.choice(others), rng.choice(_ODD), rng.choice(_NUMBERS))
    )
    return b"".join(tokens)


def insert_tokens(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Some tokens in a row of another text."""
    tokens, others = _TOKEN.findall(data), _TOKEN.findall(rng.choice(corpus))
    at, start = rng.randrange(len(tokens) + 1), rng.randrange(len(others) + 1)
    return b"".join((*tokens[:at], *others[start : start + rng.randrange(12)], *tokens[at:]))


def drop_tokens(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    tokens = _TOKEN.findall(data)
    at = rng.randrange(len(tokens) + 1)
    return b"".join((*tokens[:at], *tokens[at + rng.randrange(1, 6) :]))


def nest_text(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Brackets, operators or the whole text again and again."""
    depth = rng.choice(_DEPTHS)
    opener, closer = rng.choice(
        (
            (b"(", b")"),
            (b"[", b"]"),
            (b"not (", b")"),
            (b"not ", b""),
            (b"-", b""),
            (b'{"a":', b"}"),
        )
    )
    at = rng.randrange(len(data) + 1)
    stop = rng.choice((at, len(data), rng.randrange(at, len(data) + 1)))
    depth = min(depth, SIZE_MAX // (len(opener) + len(closer)))
    return data[:at] + opener * depth + data[at:stop] + closer * depth + data[stop:]


def mutate_json(change: Callable[[random.Random, Any], Any] | None = None) -> Mutator:
    """A mutation of one value somewhere in a JSON text; texts that are none get a token replaced.

    Args:
        change: Instead of the general ones.
    """

    def mutate(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
        try:
            tree = json.loads(data)
            return dump_json(rng, (change or change_somewhere)(rng, tree))
        except (ValueError, RecursionError):  # no JSON, or so deep that Python's own has to give up
            return replace_token(rng, data, corpus)

    return mutate


def dump_json(rng: random.Random, tree: Any) -> bytes:
    """As UTF-8 where that can be; at times with one key twice, or with a constant JSON lacks."""
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.5, separators=(",", ":"))
    if rng.random() < 0.05:
        text = text.replace("{", '{"format-version":3,"type":"x",', 1)
    if rng.random() < 0.05:
        text = text.replace("null", rng.choice(("NaN", "-Infinity", "1e999", "nul")), 1)
    return text.encode("utf-8", "surrogatepass")


def change_somewhere(rng: random.Random, tree: Any) -> Any:
    """The tree with one value at any depth changed."""
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        key = rng.choice(list(tree))
        return {**tree, key: change_somewhere(rng, tree[key])}
    if isinstance(tree, list) and tree and rng.random() < 0.85:
        at = rng.randrange(len(tree))
        return [*tree[:at], change_somewhere(rng, tree[at]), *tree[at + 1 :]]
    return _change(rng, tree)


def _change(rng: random.Random, value: Any) -> Any:
    kind = rng.randrange(8)
    if isinstance(value, dict) and value and kind < 4:
        return _change_members(rng, value)
    if isinstance(value, list) and value and kind < 4:
        at = rng.randrange(len(value))
        times = min(rng.choice((0, 2, 50, 500)), SIZE_MAX // (len(json.dumps(value[at])) + 1))
        return [*value[:at], *([value[at]] * times), *value[at + 1 :]]
    if type(value) is int and abs(value) < 2**70 and kind < 4:
        return rng.choice((value + 1, value - 1, -value, value * 2**32, str(value), value / 2**10))
    if kind == 4:
        depth = rng.choice(_DEPTHS[:5])  # deeper ones come from `nest_text`: dumping has a limit
        for _ in range(depth):
            value = [value] if rng.random() < 0.5 else {"type": value}
        return value
    return rng.choice(_VALUES)


def _change_members(rng: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    key = rng.choice(list(value))
    others = {name: each for name, each in value.items() if name != key}
    kind = rng.randrange(3)
    if kind == 0:
        return others
    if kind == 1:
        return {**others, rng.choice(("", "x", key.upper(), "\u2028", "é")): value[key]}
    return {**value, key: value[rng.choice(list(value))]}


TEXT_MUTATORS = (replace_token, replace_token, insert_tokens, drop_tokens, nest_text)
JSON_MUTATORS = (mutate_json(), mutate_json(), mutate_json(), replace_token, nest_text)
