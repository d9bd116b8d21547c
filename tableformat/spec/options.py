"""Options as pydantic models: one declaration drives checks, messages, `--help` and documentation.

Whoever takes options (a format, the sink, a read) has one model. Options of several owners may be
given in one set; what is left over belongs to nobody and is an error.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from annotated_types import Ge
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from tableformat.errors import InvalidInputError
from tableformat.spec.unicode import is_unicode

GivenOptions = Mapping[str, str | int | bool]


def _json_of(text: str, begin: str) -> Any:
    """What a text says in JSON; None: it is none, or begins with something else."""
    try:
        return json.loads(text) if text.startswith(begin) else None
    except (ValueError, RecursionError):
        return None


def _items(text: str) -> tuple[str, ...]:
    given = _json_of(text, "[")
    listed = text.split(",") if given is None else map(str, given)
    items = tuple(item.strip() for item in listed)
    if not all(items) or len(set(items)) < len(items):
        raise ValueError("empty, or given twice")
    return items


def _pairs(text: str) -> dict[str, str]:
    given = _json_of(text, "{")
    if given is None:
        cut = [item.partition("=") for item in text.split(",")]
    else:
        cut = [(name, "=", str(value)) for name, value in given.items()]
    pairs = {name.strip(): value.strip() for name, _, value in cut}
    if len(pairs) < len(cut) or not all(pairs) or not all(pairs.values()):
        raise ValueError("not name=value, or a name given twice")
    return pairs


Names = Annotated[tuple[str, ...], BeforeValidator(_items)]
"""`a,b,c`, or a JSON list: its items may hold commas."""
PAIRS = BeforeValidator(_pairs)
"""Makes a `dict` of `a=x,b=y`, or of a JSON object: its names may hold commas."""


class OptionError(InvalidInputError):
    """An option is unknown, missing or has a wrong value; `option` is its name."""

    option: str = ""

    def of(self, option: str) -> Self:
        """The same with the option's name."""
        self.option = option
        return self


class Options(BaseModel):
    """Base of all models of options. The option of the field `kind_field` is `kind-field`."""

    model_config = ConfigDict(
        frozen=True, alias_generator=lambda name: name.rstrip("_").replace("_", "-")
    )
    owner: ClassVar[str]
    """Reads as in "unknown option of <owner>"."""

    @classmethod
    def parse(cls, given: GivenOptions, *beside: type[Options]) -> Self:
        """The options of this owner among those `given`, with defaults filled in.

        Args:
            given: Texts, or values that are told as text.
            beside: Other owners whose options may be given with them.

        Raises:
            OptionError: An option is nobody's (the message lists the known ones and the
                nearest), a required one is missing, or a value is wrong. Nothing has happened then.
            InvalidInputError: Two owners declare the same (a format of another package).
        """
        owners: tuple[type[Options], ...] = (cls, *beside)
        known = [name for owner in owners for name in owner.names()]
        twice = next((name for name in known if known.count(name) > 1), None)
        if twice is not None:
            by = " and ".join(one.owner for one in owners)
            raise InvalidInputError(f"option '{twice}' is declared twice", by=by)
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise OptionError(
                    f"unknown option '{name}' of {' and '.join(one.owner for one in owners)}",
                    action=f"did you mean '{near[0]}'?" if near else None,
                    known=known or "none",
                ).of(name)
        own = dict(cls._options())
        texts = {name: _text(given[name], own[name]) for name in own if name in given}
        try:
            wrong = [name for name, text in texts.items() if not is_unicode(text)]
            if not wrong:
                return cls.model_validate(texts)
        except ValidationError as error:
            wrong = [str(error.errors()[0]["loc"][0])]
        name = wrong[0]
        if name not in texts:
            raise OptionError(f"missing option '{name}' of {cls.owner}", known=list(own)).of(name)
        raise OptionError(
            f"wrong value of option '{name}' of {cls.owner}",
            action=f"give {values_text(own[name])}",
            value=repr(texts[name]),
        ).of(name)

    @classmethod
    def names(cls) -> list[str]:
        """Names in declaration order."""
        return [name for name, _ in cls._options()]

    @classmethod
    def described(cls) -> Iterator[tuple[str, str, str, str]]:
        """Each option's name, values, default ("" without one) and meaning, for people."""
        for name, field in cls._options():
            default = "required" if field.is_required() else field.default
            if default is None or default == () or default == {}:
                default = ""
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            yield name, values_text(field), shown, field.description or ""

    @classmethod
    def _options(cls) -> list[tuple[str, FieldInfo]]:
        return [(str(field.alias), field) for field in cls.model_fields.values()]


def values_text(field: FieldInfo) -> str:
    """What may be given, for people."""
    kind = _kind(field.annotation)
    if choices := _choices(kind):
        return " | ".join(choices)
    if get_origin(kind) is tuple:
        return "name,name,..."
    if get_origin(kind) is dict:
        return f"name={'|'.join(_choices(get_args(kind)[1])) or 'value'},..."
    if kind is int:
        least = [each.ge for each in field.metadata if isinstance(each, Ge)]
        return f"integer >= {least[0]}" if least else "integer"
    return "true|false" if kind is bool else "text"


def _text(given: str | int | bool, field: FieldInfo) -> str:
    text = str(given).strip()
    return text.lower() if _choices(_kind(field.annotation)) else text


def _kind(annotation: Any) -> Any:
    """The type without `| None`."""
    others = [each for each in get_args(annotation) if each is not NoneType]
    return others[0] if NoneType in get_args(annotation) else annotation


def _choices(kind: Any) -> Sequence[str]:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return [each.value for each in kind]
    return get_args(kind) if get_origin(kind) is Literal else ()
