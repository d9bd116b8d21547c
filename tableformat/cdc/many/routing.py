"""Which topic goes to which table. Pure: names in, names out.

A pattern is a glob over the whole name (`pg.public.*`), or a regular expression if it begins with
`^`. The first route whose pattern fits names the table; without one a topic goes to the table named
by its last part. Two topics meet in one table only where a route says so.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate

from tableformat.errors import InvalidInputError
from tableformat.table_definition import parse_table_name

INTERNAL = "__"  # Kafka's own topics, Debezium's heartbeats
TRANSACTIONS = ".transaction"  # `<topic.prefix>.transaction`: Debezium's BEGIN and END events
SHOWN_CHARS_MAX = 200  # of a pattern, in an error
PLACEHOLDER = re.compile(r"\{(\w+)\}")
# A part of `a,b,...`: no topic's name has a comma, so one in brackets is the pattern's: \d{1,3}.
_LISTED = re.compile(r"(?:\\.|\[(?:\\.|[^\]\\])*\]|\{[^{}]*\}|\([^()]*\)|[^,])+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A pattern as it was given, and as a regular expression."""

    text: str
    regex: re.Pattern[str]

    @classmethod
    def of(cls, text: str) -> TopicPattern:
        """Read a pattern.

        Raises:
            InvalidInputError: It is empty, or no regular expression.
        """
        if not text.strip():
            raise InvalidInputError("an empty topic pattern")
        try:
            with warnings.catch_warnings():
                # `[[` may mean something else in some Python to come; it means a `[` here.
                warnings.simplefilter("ignore", FutureWarning)
                return cls(text, re.compile(text if text.startswith("^") else translate(text)))
        except (re.error, OverflowError, RecursionError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            shown = repr(text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}...")
            raise InvalidInputError(f"not a regular expression: {why}", pattern=shown) from error

    @classmethod
    def listed(cls, text: str) -> tuple[TopicPattern, ...]:
        """Read patterns with commas between them; empty ones are left out.

        Raises:
            InvalidInputError: See `of`.
        """
        parts = (part.strip() for part in _LISTED.findall(text))
        return tuple(cls.of(part) for part in parts if part)

    def match(self, topic: str) -> re.Match[str] | None:
        """The match of a whole name."""
        return self.regex.fullmatch(topic)


@dataclass(frozen=True, slots=True)
class Route:
    """Topics of a pattern go to the table of a template.

    In the template `{topic}` is the topic's last part, `{schema}` the one before it, `{1}` and
    `{name}` what the pattern's groups matched.
    """

    pattern: TopicPattern
    table: str

    @classmethod
    def of(cls, pattern: str, table: str) -> Route:
        """Read a route.

        Raises:
            InvalidInputError: See `TopicPattern.of`; or the template names a group that the pattern
                does not have.
        """
        route = cls(TopicPattern.of(pattern), table)
        groups = route.pattern.regex
        known = {"topic", "schema", *groups.groupindex, *map(str, range(1, groups.groups + 1))}
        for name in PLACEHOLDER.findall(table):
            if name not in known:
                raise InvalidInputError(
                    f"the route's pattern has no group '{name}'",
                    pattern=repr(pattern),
                    table=repr(table),
                    known=sorted(known),
                )
        return route

    def table_of(self, topic: str) -> str | None:
        """The table of a topic, as the template has it; None: the pattern does not fit."""
        match = self.pattern.match(topic)
        return None if match is None else _filled(self.table, topic, match)


@dataclass(frozen=True, slots=True)
class Routed:
    """Where topics go.

    Attributes:
        tables: Topics of each table, sorted.
        refused: Topics that go nowhere, with the reason.
    """

    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def table_of(self) -> dict[str, str]:
        """The table of each topic."""
        return {topic: table for table, topics in self.tables.items() for topic in topics}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The rules of one stream.

    Attributes:
        namespace: Of tables whose template has none.
        include: Patterns of the topics that are read.
        exclude: Patterns of topics that are not.
        routes: Tried in order.
    """

    namespace: str
    include: Sequence[TopicPattern]
    exclude: Sequence[TopicPattern] = ()
    routes: Sequence[Route] = ()

    def takes(self, topic: str) -> bool:
        """Whether a topic of this name is read."""
        if topic.startswith(INTERNAL) or any(one.match(topic) for one in self.exclude):
            return False
        return any(one.match(topic) for one in self.include)

    def route(self, topics: Iterable[str]) -> Routed:
        """The tables of those of `topics` that are read.

        A topic whose table cannot be told is refused: its name makes no table name, or it meets
        another topic in one table and no route says so.
        """
        every = sorted(topics)
        taken = [topic for topic in every if self.takes(topic)]
        taken = [topic for topic in taken if not is_transaction_topic(topic, taken)]
        found: dict[str, list[tuple[str, bool]]] = {}
        refused: dict[str, str] = {}
        for topic in taken:
            name, is_routed = self._table(topic)
            try:
                parse_table_name(name)
            except InvalidInputError:
                refused[topic] = f"'{name}' is no table name; give the topic a route"
                continue
            found.setdefault(name, []).append((topic, is_routed))
        tables: dict[str, tuple[str, ...]] = {}
        for name, members in found.items():
            meet = [topic for topic, is_routed in members if not is_routed]
            if len(members) > 1 and meet:
                others = ", ".join(topic for topic, _ in members)
                reason = f"several topics would go to one table ({others}); give them routes"
                refused |= dict.fromkeys(meet, reason)
                members = [each for each in members if each[1]]
            if members:
                tables[name] = tuple(topic for topic, _ in members)
        return Routed(tables, refused)

    def _table(self, topic: str) -> tuple[str, bool]:
        routed = (route.table_of(topic) for route in self.routes)
        name = next((name for name in routed if name is not None), None)
        plain = topic.rpartition(".")[2] if name is None else name
        return plain if "." in plain else f"{self.namespace}.{plain}", name is not None


def is_transaction_topic(topic: str, topics: Iterable[str]) -> bool:
    """Whether a topic holds Debezium's BEGIN and END events, beside the topics of its tables.

    A table may be called `transaction`, too. Then the topics beside it have one part more than what
    stands before its name, never two.
    """
    prefix = topic.removesuffix(TRANSACTIONS)
    return prefix != topic and any(
        other.startswith(f"{prefix}.") and other.count(".") > prefix.count(".") + 1
        for other in topics
    )


def _filled(template: str, topic: str, match: re.Match[str]) -> str:
    parts = topic.split(".")

    def value(place: re.Match[str]) -> str:
        name = place[1]
        if name == "topic":
            return parts[-1]
        if name == "schema":
            return parts[-2] if len(parts) > 1 else ""
        return match[int(name) if name.isdecimal() else name] or ""

    return PLACEHOLDER.sub(value, template)
