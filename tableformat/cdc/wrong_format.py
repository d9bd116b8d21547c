"""Say what events are that a format cannot read at all, rather than what each of them lacks.

Asked only when a batch has no change at all, so it costs nothing, and a stray event among good ones
stays a bad record; `check_foreign` once where anything with the names of the key would be a row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from tableformat.errors import InvalidInputError

LOOKED_AT_MAX = 16
ENVELOPE_OPS = frozenset("curdtm")
ROW_KINDS = frozenset(("+I", "-U", "+U", "-D"))
MARKS = ("__op", "__deleted")

DEBEZIUM, FLATTENED, CHANGELOG = "debezium", "flattened", "changelog"
# What the events are, and how to read them.
NAMES = {
    DEBEZIUM: ("envelopes of Debezium (before, after, op)", "debezium-json without layout"),
    FLATTENED: (
        "flattened rows (ExtractNewRecordState)",
        "debezium-json with layout=flattened",
    ),
    CHANGELOG: ("changelog rows (data, op=+I)", "changelog-json"),
}
# Events of other tools, by names that theirs have; the first that fits.
FOREIGN = {
    "CloudEvents": ("specversion", "id", "source"),
    "of Canal": ("isDdl", "database", "table", "type", "data"),
    "of Maxwell": ("database", "table", "type", "ts", "data"),
    "of GoldenGate": ("table", "op_type", "op_ts", "pos"),
    "of AWS DMS": ("data", "metadata"),
}
_NO_TEXTS = ("data", "metadata")  # in theirs; columns of these names mostly are


def check_foreign(event: str, columns: Collection[str]) -> None:
    """Refuse rows that surely are events of something else, whose names may be a row's.

    Args:
        event: The first one, without Connect's envelope.
        columns: Those of the table.

    Raises:
        InvalidInputError: It is; the message says of what.
    """
    try:
        value = json.loads(event)
    except (ValueError, RecursionError):
        return
    _refuse_foreign(value, columns)


def _refuse_foreign(value: Any, columns: Collection[str]) -> None:
    if not isinstance(value, dict) or any(isinstance(value.get(each), str) for each in _NO_TEXTS):
        return
    for what, names in FOREIGN.items():
        if set(names) <= value.keys() and not set(names) <= {*columns}:
            raise InvalidInputError(
                f"the events are {what}, which this format does not read",
                action="send Debezium's own (value.converter=org.apache.kafka.connect.json."
                "JsonConverter), or give icefold a format for them (examples/change-format)",
            )


def check_format(
    events: Iterable[bytes | str | None], *, read_as: str, key: Collection[str]
) -> None:
    """Refuse a batch whose first events are surely of another format.

    Args:
        events: Events that could not be read, with or without Connect's envelope.
        read_as: What they were read as: `DEBEZIUM`, `FLATTENED` or `CHANGELOG`.
        key: Key columns of the table.

    Raises:
        InvalidInputError: They are of another format; the message says which and how to read it.
    """
    for number, event in enumerate(events):
        if number >= LOOKED_AT_MAX:
            return
        raw = event.encode() if isinstance(event, str) else event
        if not raw:
            continue
        if raw[:1] == b"\0":
            raise InvalidInputError(
                "the events are not JSON but binary, as a schema registry's converters write them "
                "(Avro, Protobuf)",
                action="name the registry with --schema-registry, or set "
                "value.converter=org.apache.kafka.connect.json.JsonConverter",
            )
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, str) and value.lstrip().startswith("{"):
            raise InvalidInputError(
                "the events are JSON inside a JSON text: they were converted twice",
                action="set value.converter=org.apache.kafka.connect.storage.StringConverter where "
                "the value is JSON text already",
            )
        if isinstance(value, dict) and value.keys() <= {"schema", "payload"}:
            value = value.get("payload")
        if read_as != CHANGELOG:  # which reads some of them, told the field of the kind
            _refuse_foreign(value, key)
        found = _format_of(value, key)
        if found is not None and found != read_as:
            is_, use = NAMES[found]
            raise InvalidInputError(
                f"the events are {is_}, and were read as {NAMES[read_as][0]}",
                action=f"use the format {use}",
            )


def _format_of(value: Any, key: Collection[str]) -> str | None:
    if not isinstance(value, dict):
        return None
    op = value.get("op")
    if op in ("c", "u", "r") and isinstance(value.get("after"), str):
        raise InvalidInputError(
            "the events are documents as text, as Debezium's connector of MongoDB writes them",
            action="flatten them with its ExtractNewDocumentState, and use layout=flattened",
        )
    if op is not None and not isinstance(op, str):
        return None
    if value.get("status") in ("BEGIN", "END") and "data_collections" in value:
        return None  # where a transaction begins or ends; its `id` is no key
    if op in ENVELOPE_OPS and ("before" in value or "after" in value):
        return DEBEZIUM
    if op in ROW_KINDS and isinstance(value.get("data"), dict):
        return CHANGELOG
    has_key = bool(key) and all(name in value for name in key)
    return FLATTENED if op is None and (has_key or any(m in value for m in MARKS)) else None
