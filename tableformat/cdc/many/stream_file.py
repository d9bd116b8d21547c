r"""The file of a stream into many tables: routes, and options of its tables.

```yaml
exclude: ["pg.public.tmp_*"]
routes:
  - {topics: '^pg\.public\.orders_\d+$', table: orders}
defaults: {schema-evolution: add-columns}
tables:
  orders:
    partition-by: [day(created_at)]
    properties: {write.target-file-size-bytes: 134217728}
```

An error names the file and the line.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from tableformat.cdc.many.routing import Route, TopicPattern
from tableformat.cdc.many.table_options import MakingOptions, TableOptions
from tableformat.errors import InvalidInputError, NotFoundError, TableError
from tableformat.spec.options import OptionError

EXCLUDE, ROUTES, DEFAULTS, TABLES = "exclude", "routes", "defaults", "tables"
PARTS = (EXCLUDE, ROUTES, DEFAULTS, TABLES)
_TRANSFORMS = str(MakingOptions.model_fields["partition_by"].alias)  # commas in them are their own
_JSON_OPTIONS = tuple(
    str(each.alias) for each in MakingOptions.model_fields.values() if each.default == {}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFile:
    """What the file says; see the module's text."""

    exclude: tuple[TopicPattern, ...] = ()
    routes: tuple[Route, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[tuple[str, Mapping[str, str]], ...] = ()


def read_stream_file(path: Path, beside: Mapping[str, str] | None = None) -> StreamFile:
    """Read and check the file.

    Args:
        path: The file.
        beside: Options of every table that were given elsewhere; none may be among the defaults.

    Raises:
        NotFoundError: There is no such file.
        InvalidInputError: It is no YAML, or something in it is unknown, missing or wrong; names
            the line.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError("there is no such file", file=path) from error
    except OSError as error:
        raise InvalidInputError(f"cannot read the file: {error.strerror}", file=path) from error
    return parse_stream_bytes(data, str(path), beside)


def parse_stream_bytes(
    data: bytes, name: str, beside: Mapping[str, str] | None = None
) -> StreamFile:
    """The same from the file's bytes; `name` is what errors call it."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"0x{data[error.start]:02x}"
        raise InvalidInputError(f"{name}:{line}: not UTF-8: byte {byte}") from error
    return parse_stream_file(text, name, beside)


def parse_stream_file(text: str, name: str, beside: Mapping[str, str] | None = None) -> StreamFile:
    """The same from its text; `name` is what errors call it."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise InvalidInputError(f"{name}:{line}: not YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        why = f"character U+{ord(text[error.position]):04X} may not be in it"
        raise InvalidInputError(f"{name}:{line}: not YAML: {why}") from error
    except RecursionError as error:
        raise InvalidInputError(f"{name}:1: not YAML: nested too deeply") from error
    except ValueError as error:  # PyYAML's scanner lets it pass: an escape of no character
        line = _line_of_escape(text)
        raise InvalidInputError(f"{name}:{line}: not YAML: \\U of no character") from error
    return StreamFile() if root is None else _Reader(name).file(root, beside or {})


@dataclass(frozen=True, slots=True)
class _Reader:
    """Walks the nodes, which know their lines."""

    name: str

    def file(self, root: yaml.Node, beside: Mapping[str, str]) -> StreamFile:
        parts: dict[str, yaml.Node] = {}
        for key, word, node in self.pairs(root, "the file"):
            if word not in PARTS:
                near = difflib.get_close_matches(word, PARTS, n=1)
                action = f"did you mean '{near[0]}'?" if near else f"write {', '.join(PARTS)}"
                self.fail(key, f"unknown part '{word}'", action)
            parts[word] = node
        defaults = self.options(parts[DEFAULTS]) if DEFAULTS in parts else {}
        for option in beside:
            if option in defaults:
                self.fail(defaults[option][0], f"option '{option}' is given on the command line")
        common = dict(beside) | _texts(defaults)
        if DEFAULTS in parts:
            self.check(parts[DEFAULTS], defaults, common)
        tables = []
        for _, pattern, node in self.pairs(parts.get(TABLES), "'tables'"):
            options = self.options(node)
            self.check(node, options, common | _texts(options))
            tables.append((pattern, _texts(options)))
        return StreamFile(
            exclude=tuple(self.patterns(parts.get(EXCLUDE))),
            routes=tuple(self.routes(parts.get(ROUTES))),
            defaults=_texts(defaults),
            tables=tuple(tables),
        )

    def patterns(self, node: yaml.Node | None) -> Iterator[TopicPattern]:
        for item in self.items(node, "'exclude'"):
            text = self.scalar(item)
            try:
                yield TopicPattern.of(text)
            except InvalidInputError as error:
                self.refuse(item, error)

    def routes(self, node: yaml.Node | None) -> Iterator[Route]:
        for item in self.items(node, "'routes'"):
            words = {word: value for _, word, value in self.pairs(item, "a route")}
            if set(words) != {"topics", "table"}:
                self.fail(item, "a route has 'topics' and 'table'")
            try:
                yield Route.of(self.scalar(words["topics"]), self.scalar(words["table"]))
            except InvalidInputError as error:
                self.refuse(item, error)

    def options(self, node: yaml.Node) -> dict[str, tuple[yaml.Node, str]]:
        """Options by name, with the node and the value as text."""
        return {
            word: (key, self.value(word, value))
            for key, word, value in self.pairs(node, "the options of a table")
        }

    def check(
        self,
        node: yaml.Node,
        options: Mapping[str, tuple[yaml.Node, str]],
        given: Mapping[str, str],
    ) -> None:
        try:
            TableOptions.of(given)
        except OptionError as error:
            at = options.get(error.option)
            self.refuse(node if at is None else at[0], error)
        except InvalidInputError as error:
            self.refuse(node, error)

    def value(self, option: str, node: yaml.Node) -> str:
        """A scalar as it is, a list joined by commas, a mapping as the option wants it."""
        match node:
            case yaml.SequenceNode():
                items = [self.scalar(item) for item in node.value]
                holds_commas = option != _TRANSFORMS and "," in "".join(items)
                return json.dumps(items) if holds_commas else ",".join(items)
            case yaml.MappingNode():
                pairs = {word: self.single(word, item) for _, word, item in self.pairs(node, "it")}
                if option in _JSON_OPTIONS or "," in "".join(pairs):
                    return json.dumps(pairs)
                return ",".join(f"{word}={text}" for word, text in pairs.items())
        return self.scalar(node)

    def pairs(
        self, node: yaml.Node | None, what: str
    ) -> Iterator[tuple[yaml.Node, str, yaml.Node]]:
        if node is None or _is_null(node):
            return
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, f"{what} is not a mapping")
        seen: set[str] = set()
        for key, value in node.value:
            word = self.scalar(key)
            if word in seen:
                self.fail(key, f"'{word}' is given twice")
            seen.add(word)
            yield key, word, value

    def items(self, node: yaml.Node | None, what: str) -> list[yaml.Node]:
        if node is None or _is_null(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.fail(node, f"{what} is not a list")
        items: list[yaml.Node] = node.value
        return items

    def single(self, word: str, node: yaml.Node) -> str:
        if _is_null(node) and word.endswith(")") and "(" not in word:
            action = "put it in quotes: {price: 'decimal(10,2)'}"
            self.fail(node, "a comma within {...} ends a value", action)
        return self.scalar(node)

    def scalar(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or _is_null(node):
            self.fail(node, "a single value belongs here")
        return str(node.value)

    def fail(self, node: yaml.Node, why: str, action: str | None = None) -> NoReturn:
        self.refuse(node, InvalidInputError(why, action=action))

    def refuse(self, node: yaml.Node, error: TableError) -> NoReturn:
        line = node.start_mark.line + 1
        raise InvalidInputError(
            f"{self.name}:{line}: {error.message}", action=error.action, **error.context
        ) from error


def _line_of_escape(text: str) -> int:
    """Where an escape of more than Unicode has begins, the first one in the text."""
    found = re.search(r"\\U(?!000|0010)[0-9A-Fa-f]{8}", text)
    return text.count("\n", 0, found.start() if found else 0) + 1


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _texts(options: Mapping[str, tuple[Any, str]]) -> dict[str, str]:
    return {name: text for name, (_, text) in options.items()}
