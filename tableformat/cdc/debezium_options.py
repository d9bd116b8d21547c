"""Options of the format `debezium-json`, and what they say about encodings."""

from __future__ import annotations

from tableformat.cdc.deletes import DELETES_OPTION
from tableformat.cdc.encodings import Encoding, EncodingDefaults
from tableformat.cdc.options import Option, OptionKind, OptionTable, OptionValues
from tableformat.cdc.rowkind import ChangelogMode, RowKind
from tableformat.cdc.schema_wishes import SCHEMA_EVOLUTION_OPTION
from tableformat.cdc.sequence import SEQUENCE_OPTION

MODE = ChangelogMode.of([RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE])
TIME_UNITS = ("s", "ms", "us", "ns")
ENVELOPE, FLATTENED = "envelope", "flattened"
ON_TRUNCATE, APPLY = "on-truncate", "apply"

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
            help="unit of integer timestamps where events carry no schema; no default, because "
            "`time.precision.mode=adaptive` writes ms up to `timestamp(3)` and us above: then name "
            "the columns in `encodings`",
        ),
        Option(
            name="time-unit",
            kind=OptionKind.CHOICE,
            choices=TIME_UNITS,
            help="unit of integer times of day where events carry no schema; no default",
        ),
        Option(
            name="decimals",
            kind=OptionKind.CHOICE,
            choices=("precise", "text", "double"),
            help="`decimal.handling.mode` (text: string) where events carry no schema; no default. "
            "precise: with the scale of the table's column, so it must be the source's",
        ),
        Option(
            name="binaries",
            kind=OptionKind.CHOICE,
            choices=("base64", "hex"),
            help="`binary.handling.mode` (base64: also bytes) where the events' schema does not "
            "say bytes; no default",
        ),
        Option(
            name="encodings",
            kind=OptionKind.MAP,
            choices=tuple(encoding.value for encoding in Encoding),
            help="encoding of single columns (`column.field` in a struct; a list's is that of its "
            "items); wins over the options above and over the events' schema",
        ),
        Option(
            name="unavailable-value",
            default="__debezium_unavailable_value",
            help="`unavailable.value.placeholder`, also with `hex:`: stands for a large value that "
            "did not change, in all its forms (text, base64, numbers of an array, ...)",
        ),
        Option(
            name="on-unavailable-value",
            kind=OptionKind.CHOICE,
            choices=("fail", "null"),
            default="fail",
            help="when `before` does not have the value either; fail: a bad record",
        ),
        Option(
            name=ON_TRUNCATE,
            kind=OptionKind.CHOICE,
            choices=("fail", "apply", "ignore"),
            default="fail",
            help="fail: a truncate event is a bad record; apply: all rows from before it go, which "
            "needs a topic of one partition; ignore: skipped and counted, rows stay",
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
        Option(
            name="new-columns",
            kind=OptionKind.CHOICE,
            choices=("declared", "json"),
            default="declared",
            help="types of columns that `schema-evolution` adds; declared: as the events' schema "
            "says, and without one only booleans; json: as values look (long, double, string, ...)",
        ),
        SCHEMA_EVOLUTION_OPTION,
    ),
)


def encoding_defaults(values: OptionValues) -> EncodingDefaults:
    """Encodings of columns that neither an option nor the events' schema speaks of."""

    def given(name: str) -> Encoding | None:
        text = values.optional_text(name)
        return None if text is None else Encoding(text)

    return EncodingDefaults(
        timestamps=given("timestamp-unit"),
        times=given("time-unit"),
        decimals=given("decimals"),
        binaries=given("binaries"),
        has_options=True,
    )
