"""Options that several change formats share; each format's own model extends one of these."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from tableformat.cdc.encodings import Encoding
from tableformat.errors import InvalidInputError
from tableformat.spec.options import PAIRS, Names, Options

KEY_ONLY, WHOLE_ROW = "key", "row"
KEY_ONLY_REASON = f"the delete holds its key only, not the row (deletes={WHOLE_ROW})"
SCHEMA_EVOLUTION = "schema-evolution"


class SchemaEvolution(StrEnum):
    """What a sink may change about the table."""

    STRICT = "strict"
    ADD_COLUMNS = "add-columns"
    FULL = "full"


class FormatOptions(Options):
    """Of every format."""

    schema_evolution: SchemaEvolution = Field(
        SchemaEvolution.STRICT,
        description="columns that the table does not have; strict: the batch fails; add-columns: "
        "they are added; full: added, and types are widened (int to long, float to double, decimal "
        "digits), and required columns become optional where the events' schema allows null. A "
        "renamed column is a new one",
    )

    @property
    def evolution(self) -> SchemaEvolution:
        """The choice of the option."""
        return self.schema_evolution


class KeyedOptions(FormatOptions):
    """Of formats whose changes replace and remove rows."""

    sequence: Names = Field(
        (),
        description="fields that order the changes of a row, e.g. source.lsn; default: arrival "
        "order. An integer unless marked: source.file:text",
    )
    deletes: Literal["key", "row"] = Field(
        "key",
        description="what deletes hold: the key only, or the whole old row (Debezium: replica "
        "identity FULL), which lets IMMUTABLE columns confine a delete to one partition",
    )


class JsonOptions(KeyedOptions):
    """Of formats that are JSON."""

    encodings: Annotated[dict[str, Encoding], PAIRS] = Field({})
    unknown_columns: Literal["fail", "ignore"] = Field(
        "fail",
        description="columns that the table does not have; fail: see `schema-evolution`",
    )

    @property
    def evolution(self) -> SchemaEvolution:
        """See `FormatOptions`.

        Raises:
            InvalidInputError: Unknown columns are to be ignored as well.
        """
        if self.unknown_columns == "ignore" and self.schema_evolution != SchemaEvolution.STRICT:
            raise InvalidInputError(
                "unknown columns can be ignored or added, not both",
                action=f"leave out unknown-columns, or set {SCHEMA_EVOLUTION}=strict",
            )
        return self.schema_evolution
