"""`changelog-json`: JSON rows with a row kind, as Flink's format of this name writes them.

Default `{"data": {<row>}, "op": "+I"}`; with `layout=flat` the row's columns stand beside the kind.
Retractions need the key only: -U and -D.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from pyiceberg.schema import Schema

from tableformat.cdc.encodings import Encoding, EncodingDefaults
from tableformat.cdc.events import VALUE, ChangeCollector, EventBatch, ParsedEvents
from tableformat.cdc.events import change_schema as change_schema_of
from tableformat.cdc.format_options import JsonOptions, SchemaEvolution
from tableformat.cdc.json_objects import (
    JsonLayout,
    JsonObjects,
    Path,
    parse_json_objects,
    utf8_rows,
)
from tableformat.cdc.row_codec import RowCodec, struct_columns, user_hints
from tableformat.cdc.rowkind import ALL_KINDS, KIND_NAMES, adding
from tableformat.cdc.schema_changes import (
    json_columns,
    long_columns,
    new_columns,
)
from tableformat.cdc.sequence import SequenceFields, check_sequenced
from tableformat.cdc.wrong_format import CHANGELOG, check_format
from tableformat.errors import InvalidInputError
from tableformat.spec.options import PAIRS

MODE = ALL_KINDS
# As Flink's JSON format writes them; its times and timestamps are texts.
DEFAULTS = EncodingDefaults(decimals=Encoding.TEXT, binaries=Encoding.BASE64)


class ChangelogJsonOptions(JsonOptions):
    """See the module's text."""

    owner = "format 'changelog-json'"
    layout: Literal["nested", "flat"] = Field(
        "nested",
        description="nested: the row is an object in the field `data`; flat: beside the kind",
    )
    kind_field: str = Field("op", description="the field with +I, -U, +U or -D")
    encodings: Annotated[dict[str, Encoding], PAIRS] = Field(
        {},
        description="encoding of single columns (`column.field` in a struct); default: text, "
        "base64; integer timestamps and times need one",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogJsonFormat:
    """The format for one table; see the module's text."""

    codec: RowCodec
    sequence: SequenceFields
    order: tuple[pa.Field, ...]
    change_schema: pa.Schema
    layout: JsonLayout
    kind_field: str
    is_flat: bool
    schema: Schema
    evolution: SchemaEvolution

    @classmethod
    def build(cls, schema: Schema, values: ChangelogJsonOptions) -> Self:
        """The format for a table of this schema; see `FormatChoice.build`."""
        hints = user_hints(schema, values.encodings)
        codec = RowCodec.of(schema, hints, DEFAULTS)
        sequence = SequenceFields.of(values.sequence)
        kind_field, is_flat = values.kind_field, values.layout == "flat"
        path = () if is_flat else ("data",)
        fields = {c.name: c.type for c in codec.struct()} if is_flat else {"data": codec.struct()}
        if kind_field in fields:
            raise InvalidInputError("the kind field has the name of a column", field=kind_field)
        fields[kind_field] = pa.string()
        alternatives = codec.alternatives(path)
        sequence.add_to(fields, alternatives)
        return cls(
            codec=codec,
            sequence=sequence,
            order=tuple(sequence.order),
            change_schema=change_schema_of(schema, sequence.order),
            layout=JsonLayout(
                schema=pa.schema(list(fields.items())),
                alternatives=alternatives,
                closed=codec.structs(path) if values.unknown_columns == "fail" else (),
                pass_null=values.evolution is not SchemaEvolution.STRICT,
            ),
            kind_field=kind_field,
            is_flat=is_flat,
            schema=schema,
            evolution=values.evolution,
        )

    def parse(self, events: EventBatch) -> ParsedEvents:
        """Change rows of a batch of events.

        Raises:
            InvalidInputError: There is no column `value`, or an event has a column that the table
                does not have and may not get.
        """
        collector = ChangeCollector(batch=events, schema=self.change_schema)
        values = events.required(VALUE)
        texts = utf8_rows(values, collector.bad)
        collector.skip("tombstone", np.flatnonzero(values.is_null()))
        present = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        parsed = parse_json_objects(texts.take(pa.array(present)), self.layout)
        self._note_columns(texts.take(pa.array(present)), parsed, collector)
        for row, reason in parsed.bad.items():
            collector.bad.setdefault(int(present[row]), reason)
        for rows, table in parsed.pieces:
            self._changes(table, present[rows], collector)
        if collector.bad and self.evolution is SchemaEvolution.FULL:
            rows = pa.array(sorted(collector.bad), pa.int64())
            collector.schema_changes.merge(
                long_columns(texts.take(rows), self._row_path, self.schema)
            )
        result = collector.finish()
        if not (result.changes.num_rows or result.schema_changes):
            self._check_format(values[row].as_py() for row in sorted(collector.bad))
        return result

    def _check_format(self, events: Iterable[bytes | str | None]) -> None:
        check_format(events, read_as=CHANGELOG, key=self.codec.key)

    def _note_columns(
        self, texts: pa.StringArray, parsed: JsonObjects, collector: ChangeCollector
    ) -> None:
        """Refuse columns that the table does not have, or ask for them."""
        if {("before",), ("after",)} & parsed.undeclared.keys():
            self._check_format(texts.slice(0, 1).to_pylist())
        names = new_columns(parsed.undeclared, self._row_path, self.evolution)
        if names:
            schema_changes = json_columns(texts, self._row_path, names, self.schema, self.evolution)
            collector.schema_changes.merge(schema_changes)

    @property
    def _row_path(self) -> Path:
        return () if self.is_flat else ("data",)

    def _changes(
        self,
        table: pa.Table,
        rows: np.ndarray[tuple[int], np.dtype[np.int64]],
        out: ChangeCollector,
    ) -> None:
        kinds = kinds_of(table.column(self.kind_field).combine_chunks())
        adds = adding(kinds)
        for row in rows[kinds.is_null().to_numpy(zero_copy_only=False)].tolist():
            out.bad.setdefault(row, f"no row kind in the field '{self.kind_field}'")
        names = list(self.codec.decoders)
        if self.is_flat:
            wires = {name: table.column(name).combine_chunks() for name in names}
        else:
            wires = struct_columns(table.column("data").combine_chunks(), names, None)
        sequence = self.sequence.columns(table)
        check_sequenced(sequence, rows, out.bad)
        for mask, needed in ((adds, self.codec.required), (~adds, frozenset(self.codec.key))):
            if not mask.any():
                continue
            picked = pa.array(mask)
            columns = {name: array.filter(picked) for name, array in wires.items()}
            decoded = self.codec.decode(
                columns, rows=rows[mask], bad=out.bad, check_required=needed
            )
            decoded |= {name: array.filter(picked) for name, array in sequence.items()}
            out.add(decoded, kinds.filter(picked), rows[mask])


def kinds_of(texts: pa.Array) -> pa.Array:
    """Row kinds (int8) of their names in any letter case; null for anything else."""
    names, kinds = list(KIND_NAMES), [kind.value for kind in KIND_NAMES.values()]
    lowered = pc.utf8_lower(pc.utf8_trim_whitespace(texts.cast(pa.string())))
    return pa.array(kinds, pa.int8()).take(pc.index_in(lowered, pa.array(names)))
