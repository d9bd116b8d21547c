"""What of a filter's text is read here, before PyIceberg's grammar reads the rest.

| text                    | becomes                                                               |
|-------------------------|-----------------------------------------------------------------------|
| `1e3`, `-2.5E-1`        | `1000`, `-0.25`: the grammar knows no exponents                       |
| `in (7, 2.5, 1e3)`      | the number of the list; `with_lists` puts the list into the predicate |
| NULL not after IS       | refused: no comparison with NULL is true                              |

The grammar takes 0.3 ms for each literal of a list and none of two kinds. A list is of texts, of
numbers, or of TRUE and FALSE; any other stays for the grammar to refuse.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pyiceberg.expressions import And, BooleanExpression, Not, Or, SetPredicate
from pyiceberg.expressions.literals import (
    BooleanLiteral,
    DecimalLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
)

from tableformat.errors import InvalidInputError

EXPONENT_MAX = 400  # a double ends at 308
_TEXT = r"'(?:[^'\n\r\\]|''|\\(?:[^x]|x[0-9a-fA-F]+))*'"  # as the grammar has it
_PLAIN = r"(?:\d+\.?\d*|\.\d+)"
_EXPONENT = r"[eE][+-]?\d+"
_NUMBER = rf"[+-]?{_PLAIN}(?:{_EXPONENT})?"
_KINDS = (_TEXT, _NUMBER, r"(?i:true|false)")
_LIST = "|".join(rf"{one}(?:\s*,\s*{one})*+" for one in _KINDS)
_PART = re.compile(
    rf"""
    (?P<quoted>{_TEXT}|"[^"\r\n]*")
    | (?<![\w$.])(?P<opener>(?i:in)\s*\(\s*)(?P<list>{_LIST})(?=\s*\))
    | (?<![\w$.])(?P<number>[+-]?{_PLAIN}{_EXPONENT})(?![\w$.])
    | (?P<is>(?<![\w$.])(?i:is)\s+(?:(?i:not)\s+)?(?i:null)\b)
    | (?P<null>(?<![\w$.])(?i:null)(?![\w$.]))
    """,
    re.VERBOSE,
)
_LITERAL = re.compile("|".join(f"({one})" for one in _KINDS))


@dataclass(slots=True)
class FilterText:
    """A filter that the grammar reads, and what was taken out of it.

    Attributes:
        text: For the grammar.
        lists: What its lists stand for, by the first of their two numbers.
    """

    text: str = ""
    lists: list[list[Literal[Any]]] = field(default_factory=list)
    _starts: list[tuple[int, int]] = field(default_factory=list)

    def position(self, at: int) -> int:
        """Where in the text as given a position of `text` is; both from 0."""
        start, given = self._starts[bisect_right(self._starts, (at, len(self.text))) - 1]
        return given + at - start

    def _add(self, text: str, given: int) -> None:
        self._starts.append((len(self.text), given))
        self.text += text


def read_filter_text(given: str) -> FilterText:
    """Take out of a filter what the grammar does not know, or reads slowly.

    Raises:
        InvalidInputError: A number of an exponent that no column has, or a NULL that is compared.
    """
    read = FilterText()
    end = 0
    for part in _PART.finditer(given):
        if part["null"]:
            raise InvalidInputError(
                f"cannot read the filter: NULL at character {part.start() + 1} is compared, and no "
                "comparison with NULL is true",
                action="leave it out, or write: COLUMN IS NULL",
            )
        if part["list"]:
            replaced = f"{part['opener']}{len(read.lists)}, -1"
            read.lists.append(_literals(part["list"]))
        elif part["number"]:
            replaced = format(_decimal(part["number"]), "f")
        else:
            continue
        read._add(given[end : part.start()], end)
        read._add(replaced, part.start())
        end = part.end()
    read._add(given[end:], end)
    return read


def with_lists(
    expression: BooleanExpression, lists: Sequence[list[Literal[Any]]]
) -> BooleanExpression:
    """What the grammar read, with the lists that its predicates number."""
    match expression:
        case And() | Or():
            make: Callable[..., BooleanExpression] = type(expression)
            return make(with_lists(expression.left, lists), with_lists(expression.right, lists))
        case Not():
            return Not(with_lists(expression.child, lists))
        case SetPredicate():
            make = type(expression)
            number = max(literal.value for literal in expression.literals)
            return make(expression.term, lists[number])
    return expression


def _literals(text: str) -> list[Literal[Any]]:
    read: list[Literal[Any]] = []
    for quoted, number, flag in _LITERAL.findall(text):
        if number:
            read.append(_number(number))
        elif flag:
            read.append(BooleanLiteral(flag.lower() == "true"))
        else:
            read.append(StringLiteral(quoted[1:-1].replace("''", "'")))
    return read


def _number(text: str) -> Literal[Any]:
    try:
        return LongLiteral(int(text))
    except ValueError:
        return DecimalLiteral(_decimal(text))


def _decimal(text: str) -> Decimal:
    number = Decimal(text)
    if abs(number.adjusted()) > EXPONENT_MAX:
        raise InvalidInputError(
            f"cannot read the filter: no column holds numbers such as {text[:40]}"
        )
    return number
