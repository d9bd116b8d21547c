"""Options of the format `debezium-json`, and what they say about encodings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tableformat.cdc.encodings import Encoding, EncodingDefaults
from tableformat.cdc.format_options import JsonOptions
from tableformat.cdc.rowkind import ChangelogMode, RowKind
from tableformat.spec.options import PAIRS

MODE = ChangelogMode.of([RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE])
TimeUnit = Literal["s", "ms", "us", "ns"]
FLATTENED, APPLY = "flattened", "apply"


class DebeziumOptions(JsonOptions):
    """See the module's text."""

    owner = "format 'debezium-json'"
    layout: Literal["envelope", "flattened"] = Field(
        "envelope",
        description="flattened: rows of ExtractNewRecordState, with `__op` or `__deleted`",
    )
    timestamp_unit: TimeUnit | None = Field(
        None,
        description="unit of integer timestamps where events carry no schema; no default, because "
        "`time.precision.mode=adaptive` writes ms up to `timestamp(3)` and us above: then name the "
        "columns in `encodings`",
    )
    time_unit: TimeUnit | None = Field(
        None,
        description="unit of integer times of day where events carry no schema; no default",
    )
    decimals: Literal["precise", "text", "double"] | None = Field(
        None,
        description="`decimal.handling.mode` (text: string) where events carry no schema; no "
        "default. precise: with the scale of the table's column, so it must be the source's",
    )
    binaries: Literal["base64", "hex"] | None = Field(
        None,
        description="`binary.handling.mode` (base64: also bytes and base64-url-safe) where the "
        "events' schema does not say bytes; no default",
    )
    encodings: Annotated[dict[str, Encoding], PAIRS] = Field(
        {},
        description="encoding of single columns (`column.field` in a struct; a list's is that of "
        "its items); wins over the options above and over the events' schema",
    )
    unavailable_value: str = Field(
        "__debezium_unavailable_value",
        description="`unavailable.value.placeholder`, also with `hex:`: stands for a large value "
        "that did not change, in all its forms (text, base64, numbers of an array, ...)",
    )
    on_unavailable_value: Literal["fail", "keep", "null"] = Field(
        "fail",
        description="when `before` does not have the value either; fail: a bad record; keep: the "
        "row keeps the value that it has, `resolve` fills it in; null: it is lost",
    )
    on_truncate: Literal["fail", "apply", "ignore"] = Field(
        "fail",
        description="fail: a truncate event is a bad record; apply: all rows from before it go, "
        "which needs a topic of one partition; ignore: skipped and counted, rows stay",
    )
    on_unknown_op: Literal["fail", "ignore"] = Field(
        "fail",
        description="fail: an event with another `op` than c, u, r, d, t, m is a bad record; "
        "ignore: it is skipped and counted",
    )
    on_wider_key: Literal["fail", "ignore"] = Field(
        "fail",
        description="when message keys have more columns than the table's primary key; fail: so "
        "does the batch; ignore: the primary key is unique at the source, too. A `key` in a file "
        "of tables says so",
    )
    new_columns: Literal["declared", "json"] = Field(
        "declared",
        description="types of columns that `schema-evolution` adds; declared: as the events' "
        "schema says, and without one only booleans; json: as values look (long, double, string, "
        "...)",
    )

    @property
    def keeps_unavailable(self) -> bool:
        """Whether rows keep values that an event does not have."""
        return self.on_unavailable_value == "keep"

    @property
    def defaults(self) -> EncodingDefaults:
        """Encodings of columns that neither an option nor the events' schema speaks of."""

        def given(name: str | None) -> Encoding | None:
            return None if name is None else Encoding(name)

        return EncodingDefaults(
            timestamps=given(self.timestamp_unit),
            times=given(self.time_unit),
            decimals=given(self.decimals),
            binaries=given(self.binaries),
            has_options=True,
        )
