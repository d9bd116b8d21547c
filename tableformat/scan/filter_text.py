"""What of a filter's text is read here, before PyIceberg's grammar reads the rest.

| text                    | becomes                                                               |
|-------------------------|-----------------------------------------------------------------------|
| `1e3`, `-2.5E-1`        | `1000`, `-0.25`: the grammar knows no exponents                       |
| `in (7, 2.5, 1e3)`      | the number of the list; `with_lists` puts the list into the predicate |
| NULL not after IS       | refused: no comparison with NULL is true                              |

The grammar takes 0.3 ms for each literal of a list and none of two kinds. A list is of texts, of
numbers, or of TRUE and FALSE.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
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
_OPEN_TEXT = r"'(?:[^'\n\r\\]|''|\\(?:[^x]|x[0-9a-fA-F]+))*+"  # as the grammar has it
_TEXT = rf"{_OPEN_TEXT}'"
_PLAIN = r"(?:\d++(?:\.\d*+)?+|\.\d++)"
_EXPONENT = r"[eE][+-]?\d++"
_NUMBER = rf"[+-]?{_PLAIN}(?:{_EXPONENT})?"
_KINDS = (_TEXT, _NUMBER, r"(?i:true|false)")
_LIST = "|".join(rf"(?>{one})(?:\s*,\s*{one})*+" for one in _KINDS)
_PART = re.compile(
    rf"""
    (?P<quoted>{_OPEN_TEXT}'?|"[^"\r\n]*")
    | (?<![\w$.])(?P<opener>(?i:in)\s*\(\s*)(?P<list>{_LIST})(?P<closer>\s*\))?
    | (?<![\w$.])(?P<number>[+-]?{_PLAIN}{_EXPONENT})(?![\w$.])
    | (?P<is>(?<![\w$.])(?i:is)\s+(?:(?i:not)\s+)?(?i:null)\b)
    | (?P<null>(?<![\w$.])(?i:null)(?![\w$.]))
    """,
    re.VERBOSE,
)
_NEXT_NULL = re.compile(r"\s*,\s*(null)\b", re.IGNORECASE)
_LITERAL = re.compile("|".join(f"({one})" for one in _KINDS))


@dataclass(slots=True)
class FilterText:
    """A filter that the grammar reads, and what was taken out of it.

    Attributes:
        text: For the grammar.
        lists: What its lists stand for, by the first of their two numbers.
        starts: Where each piece of `text` begins, there and in the text as given.
    """

    text: str = ""
    lists: list[list[Literal[Any]]] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)

    def position(self, at: int) -> int:
        """Where in the text as given a position of `text` is; both from 0."""
        start, given = self.starts[bisect_right(self.starts, (at, len(self.text))) - 1]
        return given + at - start

    def add(self, text: str, given: int) -> None:
        """Put more at the end of `text`, which begins at `given` in the text as given."""
        self.starts.append((len(self.text), given))
        self.text += text


def read_filter_text(given: str) -> FilterText:
    """Take out of a filter what the grammar does not know, or reads slowly.

    Raises:
        InvalidInputError: A number of an exponent that no column has, a NULL that is compared, or
            a list of other values.
    """
    read = FilterText()
    end = 0
    for part in _PART.finditer(given):
        if part["null"]:
            raise _null_error(part.start())
        if part["list"]:
            if not part["closer"]:
                raise _list_error(given, part)
            replaced = f"{part['opener']}{len(read.lists)}, -1)"
            read.lists.append(_literals(part["list"]))
        elif part["number"]:
            replaced = format(_decimal(part["number"]), "f")
        else:
            continue
        read.add(given[end : part.start()], end)
        read.add(replaced, part.start())
        end = part.end()
    read.add(given[end:], end)
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


def _list_error(given: str, part: re.Match[str]) -> InvalidInputError:
    null = _NEXT_NULL.match(given, part.end())
    if null is not None:
        return _null_error(null.start(1))
    return InvalidInputError(
        f"cannot read the filter: its list at character {part.start() + 1} goes wrong at character "
        f"{part.end() + 1}",
        action="a list is of texts, of numbers, or of TRUE and FALSE: id in (1, 2)",
    )


def _null_error(at: int) -> InvalidInputError:
    return InvalidInputError(
        f"cannot read the filter: NULL at character {at + 1} is compared, and no comparison with "
        "NULL is true",
        action="leave it out, or write: COLUMN IS NULL",
    )


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
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent beyond what decimals have
        number = None
    if number is None or abs(number.adjusted()) > EXPONENT_MAX:
        raise InvalidInputError(
            f"cannot read the filter: no column holds numbers such as {text[:40]}"
        )
    return number
