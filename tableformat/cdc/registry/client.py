"""A schema registry, asked for the schemas of messages. Needs the extra `registry`.

Schemas never change under their id, so each is asked for once per process; answers that there is
none are not kept. What is wrong with a request is told in one line, without its credentials.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tableformat.cdc.registry import avro_schema, json_schema
from tableformat.errors import InvalidInputError, StoreUnavailableError, UnsupportedError

TIMEOUT_S = 10
RETRIES = 1  # whoever asks tries again, too
NO_SUCH_SCHEMA = (40403,)
PROBED_ID = 2**31 - 1  # of no schema
_REFUSED = (401, 403)
_WHOLE_NUMBERS = ("max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity")

Read = Callable[[io.BytesIO], Any]


class WireFormat(StrEnum):
    """How messages of a schema are written, as registries name it."""

    AVRO = "AVRO"
    JSON = "JSON"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema: how its messages are read, and what Kafka Connect would call it.

    `read`: one message of Avro, as Python values; None: its bytes are JSON.
    """

    connect: Mapping[str, Any]
    read: Read | None


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Which registry, and how to get in. `options` are those of Confluent's client, and secret."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if urlsplit(self.url).username is not None:
            raise InvalidInputError(
                "the registry's URL must hold no credentials",
                action="give them as the option basic.auth.user.info",
            )

    @property
    def shown(self) -> str:
        """The URL, for people."""
        return urlunsplit(urlsplit(self.url)._replace(query="", fragment=""))


class SchemaRegistry:
    """The schemas of one registry; threads may share it.

    Raises:
        UnsupportedError: The extra is not installed.
        InvalidInputError: The client refuses a setting.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        try:
            import fastavro
            from confluent_kafka import schema_registry
        except ImportError:
            raise UnsupportedError(
                "reading a schema registry needs its client",
                action="pip install 'icefold[registry]'",
            ) from None
        self.settings = settings
        self._avro, self._error_class = fastavro, schema_registry.SchemaRegistryError
        self._known: dict[int, RegisteredSchema] = {}
        self._lock = threading.Lock()
        given: dict[str, Any] = {"timeout": TIMEOUT_S, "max.retries": RETRIES}
        try:
            for name, text in settings.options.items():
                is_whole = name in _WHOLE_NUMBERS
                given[name] = int(text) if is_whole else float(text) if name == "timeout" else text
            self._client = schema_registry.SchemaRegistryClient({**given, "url": settings.url})
        except (ValueError, TypeError, OSError) as error:
            raise InvalidInputError(
                f"the schema registry's client refuses a setting: {error}", registry=settings.shown
            ) from None

    def check(self) -> None:
        """Ask for something, to know that it answers and lets us in.

        Raises:
            InvalidInputError: It refuses us, or is no registry.
            StoreUnavailableError: It does not answer.
        """
        try:
            self._ask(partial(self._client.get_schema, PROBED_ID))
        except _RefusedError as error:
            raise InvalidInputError(
                f"the schema registry refuses: {error}",
                action="check its URL and the option basic.auth.user.info",
                registry=self.settings.shown,
            ) from None

    def missing(self, numbers: Iterable[int]) -> set[int]:
        """Ids among these that are not known yet."""
        return {number for number in numbers if number not in self._known}

    def schema(self, number: int) -> RegisteredSchema | str:
        """The schema of an id, or why there is none.

        Raises:
            StoreUnavailableError: It cannot be asked now.
            UnsupportedError: Messages of this schema are not read.
        """
        with self._lock:
            known = self._known.get(number)
            if known is not None:
                return known
            try:
                found = self._ask(partial(self._client.get_schema, number))
                if found is None:
                    return (
                        f"the schema registry has no schema {number}; the id must be in the four "
                        "bytes behind a zero byte, not in eight and not in headers"
                    )
                read = self._understood(number, found)
            except _RefusedError as error:
                raise StoreUnavailableError(
                    f"the schema registry refuses: {error}", registry=self.settings.shown
                ) from None
            if isinstance(read, RegisteredSchema):
                self._known[number] = read
            return read

    def _understood(self, number: int, found: Any) -> RegisteredSchema | str:
        kind = found.schema_type or WireFormat.AVRO
        if kind not in set(WireFormat):
            raise UnsupportedError(
                f"messages of a schema registry are read as Avro and JSON Schema, not as {kind}",
                action="use the AvroConverter or the JsonSchemaConverter",
                schema=number,
            )
        try:
            given = json.loads(found.schema_str)
            if kind == WireFormat.JSON:
                return RegisteredSchema(json_schema.connect_schema(given), None)
            texts = [*self._referred(found.references or ()), found.schema_str]
            valid = (avro_schema.without_invalid_decimals(json.loads(text)) for text in texts)
            connect = avro_schema.connect_schema(self._parsed(valid))
            plain = (avro_schema.without_logical_types(json.loads(text)) for text in texts)
            wire = self._parsed(plain)[-1]
        except self._unreadable as error:
            return f"schema {number} of the registry cannot be read: {error}"
        read = self._avro.schemaless_reader
        return RegisteredSchema(connect, lambda source: read(source, wire))

    @property
    def _unreadable(self) -> tuple[type[Exception], ...]:
        """What a schema that is none can raise."""
        named = (self._avro.schema.SchemaParseException, self._avro.schema.UnknownType)
        return (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, *named)

    def _parsed(self, schemas: Iterable[Any]) -> list[Any]:
        """Schemas with whole names; each may name what those before it define."""
        named: dict[str, Any] = {}
        return [self._avro.parse_schema(each, named_schemas=named) for each in schemas]

    def _referred(self, references: Iterable[Any]) -> list[str]:
        """The schemas that one refers to, each after those that it refers to itself."""
        texts: list[str] = []
        for each in references:
            found = self._ask(partial(self._client.get_version, each.subject, each.version))
            if found is None:
                raise KeyError(f"{each.subject} {each.version}")
            inner = found.schema
            texts += [*self._referred(inner.references or ()), inner.schema_str]
        return list(dict.fromkeys(texts))

    def _ask(self, question: Callable[[], Any]) -> Any:
        """An answer; None: the registry says that there is no such schema."""
        try:
            return question()
        except self._error_class as error:
            if error.error_code in NO_SUCH_SCHEMA:
                return None
            status = error.http_status_code
            if status in _REFUSED or status == 404:
                raise _RefusedError(f"HTTP {status}") from None
            reason = f"HTTP {status}"
        except Exception as error:  # noqa: BLE001 - of whichever HTTP library the client has
            reason = str(error) or type(error).__name__
        raise StoreUnavailableError(
            f"the schema registry does not answer: {reason}",
            action="check the address, and that it runs",
            registry=self.settings.shown,
        )


class _RefusedError(Exception):
    """The registry does not want us, or is none."""
