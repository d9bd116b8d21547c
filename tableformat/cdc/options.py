"""Typed options declared once: the table drives validation, documentation and `--help`.

Whoever takes options (a format, the sink) has one `OptionTable`. A set of given options is read
against several tables at once, so that what is left over belongs to nobody and is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tableformat.errors import InvalidInputError
from tableformat.spec.unicode import is_unicode

OptionValue = str | int | bool | tuple[str, ...] | Mapping[str, str] | None
GivenOptions = Mapping[str, str | int | bool]
TRUE_TEXTS = frozenset({"true", "yes", "on", "1"})
FALSE_TEXTS = frozenset({"false", "no", "off", "0"})


class OptionKind(StrEnum):
    """What the text of an option must be."""

    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "true|false"
    CHOICE = "choice"
    LIST = "list"  # a,b,c
    MAP = "map"  # a=x,b=y


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        minimum: Smallest value of an `INTEGER`.
        choices: Values of a `CHOICE`, and the allowed values in a `MAP` (any, if empty).
    """

    name: str
    help: str
    kind: OptionKind = OptionKind.TEXT
    default: OptionValue = None
    required: bool = False
    choices: tuple[str, ...] = ()
    minimum: int | None = None

    def parse(self, given: str | int | bool, *, owner: str) -> OptionValue:
        """The typed value of what the user gave.

        Raises:
            InvalidInputError: It is not of this kind; the message says what is.
        """
        text = str(given).strip()
        if not is_unicode(text):
            raise self._wrong(text, owner)
        match self.kind:
            case OptionKind.TEXT:
                return text
            case OptionKind.INTEGER:
                return self._integer(text, owner)
            case OptionKind.BOOLEAN:
                if text.lower() in TRUE_TEXTS | FALSE_TEXTS:
                    return text.lower() in TRUE_TEXTS
            case OptionKind.CHOICE:
                if text.lower() in self.choices:
                    return text.lower()
            case OptionKind.LIST:
                items = tuple(item.strip() for item in text.split(","))
                if all(items) and len(set(items)) == len(items):
                    return items
            case OptionKind.MAP:
                return self._map(text, owner)
        raise self._wrong(text, owner)

    @property
    def values_text(self) -> str:
        """What may be given, for people."""
        match self.kind:
            case OptionKind.CHOICE:
                return " | ".join(self.choices)
            case OptionKind.LIST:
                return "name,name,..."
            case OptionKind.MAP:
                return f"name={'|'.join(self.choices) or 'value'},..."
            case OptionKind.INTEGER if self.minimum is not None:
                return f"integer >= {self.minimum}"
        return self.kind.value

    @property
    def default_text(self) -> str:
        """The default as the user would write it; empty without one."""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return "" if self.default is None else str(self.default)

    def _integer(self, text: str, owner: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise self._wrong(text, owner) from None
        if self.minimum is not None and value < self.minimum:
            raise self._wrong(text, owner)
        return value

    def _map(self, text: str, owner: str) -> Mapping[str, str]:
        result: dict[str, str] = {}
        for item in text.split(","):
            name, equals, value = (part.strip() for part in item.partition("="))
            if not (name and equals and value) or name in result:
                raise self._wrong(text, owner)
            if self.choices and value not in self.choices:
                raise self._wrong(text, owner)
            result[name] = value
        return result

    def _wrong(self, text: str, owner: str) -> InvalidInputError:
        return InvalidInputError(
            f"wrong value of option '{self.name}' of {owner}",
            action=f"give {self.values_text}",
            value=repr(text),
        )


@dataclass(frozen=True, slots=True)
class OptionValues:
    """Checked options of one owner, with defaults filled in."""

    values: Mapping[str, OptionValue]

    def text(self, name: str) -> str:
        """A text or a choice that is given or has a default."""
        value = self.values[name]
        assert isinstance(value, str), name
        return value

    def optional_text(self, name: str) -> str | None:
        """A text, or None if it was not given and has no default."""
        value = self.values[name]
        assert value is None or isinstance(value, str), name
        return value

    def integer(self, name: str) -> int:
        """An integer that is given or has a default."""
        value = self.values[name]
        assert isinstance(value, int), name
        return value

    def optional_integer(self, name: str) -> int | None:
        """An integer, or None if it was not given and has no default."""
        value = self.values[name]
        assert value is None or isinstance(value, int), name
        return value

    def flag(self, name: str) -> bool:
        """A boolean."""
        value = self.values[name]
        assert isinstance(value, bool), name
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list; empty if it was not given."""
        value = self.values[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()

    def mapping(self, name: str) -> Mapping[str, str]:
        """A map; empty if it was not given."""
        value = self.values[name]
        assert value is None or isinstance(value, Mapping), name
        return value or {}


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options of one owner. `owner` reads as in "unknown option of <owner>"."""

    owner: str
    options: tuple[Option, ...]

    @property
    def known_names(self) -> list[str]:
        """Names in declaration order."""
        return [option.name for option in self.options]

    def parse(self, given: GivenOptions) -> OptionValues:
        """Check `given`, which must hold options of this table only; see `parse_options`."""
        return parse_options([self], given)[0]

    def markdown(self) -> str:
        """A table for the documentation."""
        lines = ["| option | values | default | meaning |", "|---|---|---|---|"]
        for option in self.options:
            default = "**required**" if option.required else _code(option.default_text)
            values = _code(option.values_text.replace("|", "\\|"))
            lines.append(f"| `{option.name}` | {values} | {default} | {option.help} |")
        return "\n".join(lines)

    def help_lines(self) -> list[tuple[str, str]]:
        """(option and values, meaning) for `--help`."""
        lines = []
        for option in self.options:
            note = "required" if option.required else option.default_text
            suffix = f" [{note}]" if note else ""
            lines.append((f"{option.name}={option.values_text}", f"{option.help}{suffix}"))
        return lines


def parse_options(tables: Sequence[OptionTable], given: GivenOptions) -> list[OptionValues]:
    """Read `given` against all `tables`; every option must belong to exactly one.

    Raises:
        InvalidInputError: An option is unknown (the message lists the known ones and the nearest),
            a required one is missing, or a value is wrong. Nothing has happened then.
    """
    known = [name for table in tables for name in table.known_names]
    owners = " and ".join(table.owner for table in tables)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InvalidInputError(
                f"unknown option '{name}' of {owners}",
                action=f"did you mean '{near[0]}'?" if near else None,
                known=known or "none",
            )
    return [_read(table, given) for table in tables]


def _read(table: OptionTable, given: GivenOptions) -> OptionValues:
    missing = [o.name for o in table.options if o.required and o.name not in given]
    if missing:
        raise InvalidInputError(
            f"missing option '{missing[0]}' of {table.owner}", known=table.known_names
        )
    values: dict[str, OptionValue] = {}
    for option in table.options:
        if option.name in given:
            values[option.name] = option.parse(given[option.name], owner=table.owner)
        else:
            values[option.name] = option.default
    return OptionValues(values)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
