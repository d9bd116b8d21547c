"""Options of the format `debezium-json`, and what they say about encodings."""

from __future__ import annotations

from tableformat.cdc.deletes import DELETES_OPTION
from tableformat.cdc.encodings import Encoding, EncodingDefaults, Hint
from tableformat.cdc.options import Option, OptionKind, OptionTable, OptionValues
from tableformat.cdc.rowkind import ChangelogMode, RowKind
from tableformat.cdc.schema_wishes import SCHEMA_EVOLUTION_OPTION
from tableformat.cdc.sequence import SEQUENCE_OPTION

MODE = ChangelogMode.of([RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE])
TIME_UNITS = ("s", "ms", "us", "ns")
ENVELOPE, FLATTENED = "envelope", "flattened"

OPTIONS = OptionTable(
    "format 'debezium-json'",
    (
        Option(
            name="layout",
            kind=OptionKind.CHOICE,
            choices=(ENVELOPE, FLATTENED),
            default=ENVELOPE,
            help="flattened: rows of ExtractNewRecordState, with `__op` or `__deleted`",
        ),
        SEQUENCE_OPTION,
        DELETES_OPTION,
        Option(
            name="timestamp-unit",
            kind=OptionKind.CHOICE,
            choices=TIME_UNITS,
            default="us",
            help="unit of integer timestamps without a Connect schema",
        ),
        Option(
            name="time-unit",
            kind=OptionKind.CHOICE,
            choices=TIME_UNITS,
            default="us",
            help="unit of integer times of day without a Connect schema",
        ),
        Option(
            name="decimals",
            kind=OptionKind.CHOICE,
            choices=("precise", "text", "double"),
            default="precise",
            help="`decimal.handling.mode` (text: string) without a Connect schema",
        ),
        Option(
            name="binaries",
            kind=OptionKind.CHOICE,
            choices=("base64", "hex"),
            default="base64",
            help="`binary.handling.mode` (base64: also bytes)",
        ),
        Option(
            name="encodings",
            kind=OptionKind.MAP,
            choices=tuple(encoding.value for encoding in Encoding),
            help="encoding of single columns; wins over the units and over a Connect schema",
        ),
        Option(
            name="unavailable-value",
            default="__debezium_unavailable_value",
            help="`unavailable.value.placeholder`: stands for a large value that did not change",
        ),
        Option(
            name="on-unavailable-value",
            kind=OptionKind.CHOICE,
            choices=("fail", "null"),
            default="fail",
            help="when `before` does not have the value either; fail: a bad record",
        ),
        Option(
            name="on-truncate",
            kind=OptionKind.CHOICE,
            choices=("fail", "ignore"),
            default="fail",
            help="fail: a truncate event is a bad record; ignore: skipped and counted, rows stay",
        ),
        Option(
            name="on-unknown-op",
            kind=OptionKind.CHOICE,
            choices=("fail", "ignore"),
            default="fail",
            help="fail: an event with another `op` than c, u, r, d, t, m is a bad record; "
            "ignore: it is skipped and counted",
        ),
        Option(
            name="unknown-columns",
            kind=OptionKind.CHOICE,
            choices=("fail", "ignore"),
            default="fail",
            help="columns that the table does not have; fail: see `schema-evolution`",
        ),
        SCHEMA_EVOLUTION_OPTION,
    ),
)


def encoding_defaults(values: OptionValues) -> EncodingDefaults:
    """Encodings of columns that neither an option nor a Connect schema speaks of."""
    return EncodingDefaults(
        timestamps=Encoding(values.text("timestamp-unit")),
        times=Encoding(values.text("time-unit")),
        decimals=Encoding(values.text("decimals")),
        binaries=Encoding(values.text("binaries")),
    )


def column_hints(values: OptionValues) -> dict[str, Hint]:
    """Encodings of single columns that the user gave."""
    return {name: Hint(Encoding(text)) for name, text in values.mapping("encodings").items()}
