"""`maxwell-json`: what Maxwell's daemon writes for each changed row of MySQL.

`{"database": "shop", "table": "orders", "type": "update", "data": {row}, "old": {...}}`

`type` is `insert`, `update` or `delete`, or `bootstrap-insert` for rows of an initial load; `data`
is the row afterwards, of a delete the row as it was. Events of other types (DDL, start and end of a
load) are counted as skipped, and so are tables that the option `tables` leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from pyiceberg.schema import Schema

from tableformat.cdc.encodings import Encoding, EncodingDefaults
from tableformat.cdc.events import VALUE, ChangeCollector, EventBatch, ParsedEvents, change_schema
from tableformat.cdc.formats import FormatFactory
from tableformat.cdc.json_objects import JsonLayout, parse_json_objects, utf8_rows
from tableformat.cdc.row_codec import RowCodec, struct_columns, user_hints
from tableformat.cdc.rowkind import UPSERT, RowKind
from tableformat.spec.options import PAIRS, Names, Options

TYPES = {
    "insert": RowKind.INSERT,
    "bootstrap-insert": RowKind.UPDATE_AFTER,  # its row may have been changed meanwhile
    "update": RowKind.UPDATE_AFTER,
    "delete": RowKind.DELETE,
}
DEFAULTS = EncodingDefaults(decimals=Encoding.TEXT, binaries=Encoding.BASE64)


class MaxwellOptions(Options):
    """Each field is an option of `icefold ingest`, `tables` of type `a,b,c`."""

    owner = "format 'maxwell-json'"
    tables: Names = Field((), description="only changes of these; default: all")
    encodings: Annotated[dict[str, Encoding], PAIRS] = Field(
        {}, description="how single columns are written"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxwellFormat:
    """The format for one table: plain values, as it is built where events are parsed."""

    codec: RowCodec
    layout: JsonLayout
    tables: tuple[str, ...]
    change_schema: pa.Schema
    order: tuple[pa.Field, ...] = ()  # the order of arrival is the order of changes

    @classmethod
    def build(cls, schema: Schema, values: MaxwellOptions) -> Self:
        """The format for a table of this schema."""
        codec = RowCodec.of(schema, user_hints(schema, values.encodings), DEFAULTS)
        fields = {"type": pa.string(), "table": pa.string(), "data": codec.struct()}
        return cls(
            codec=codec,
            layout=JsonLayout(
                schema=pa.schema(list(fields.items())),
                alternatives=codec.alternatives(("data",)),
                closed=codec.structs(("data",)),
            ),
            tables=values.tables,
            change_schema=change_schema(schema, ()),
        )

    def parse(self, events: EventBatch) -> ParsedEvents:
        """Change rows; every event is a change, bad, or skipped."""
        collector = ChangeCollector(batch=events, schema=self.change_schema)
        values = events.required(VALUE)
        collector.skip("tombstone", np.flatnonzero(values.is_null()))
        texts = utf8_rows(values, collector.bad)
        present = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        parsed = parse_json_objects(texts.take(pa.array(present)), self.layout)
        for row, reason in parsed.bad.items():
            collector.bad.setdefault(int(present[row]), reason)
        for rows, table in parsed.pieces:
            self._changes(table, present[rows], collector)
        return collector.finish()

    def _changes(self, events: pa.Table, rows: np.ndarray, out: ChangeCollector) -> None:
        kinds = pa.array([kind.value for kind in TYPES.values()], pa.int8()).take(
            pc.index_in(events.column("type").combine_chunks(), pa.array(list(TYPES)))
        )
        wanted = kinds.is_valid()
        if self.tables:
            of_these = pc.is_in(events.column("table").combine_chunks(), pa.array(self.tables))
            wanted = pc.and_(wanted, of_these)
        out.skip("other event", rows[~wanted.to_numpy(zero_copy_only=False)])
        row = struct_columns(
            events.column("data").combine_chunks(), list(self.codec.decoders), None
        )
        deletes = pc.equal(kinds, RowKind.DELETE.value)
        for mask, needed in (
            (pc.and_(wanted, pc.invert(deletes)), self.codec.required),
            (pc.and_(wanted, deletes), frozenset(self.codec.key)),
        ):
            mask = pc.fill_null(mask, False)
            picked = rows[mask.to_numpy(zero_copy_only=False)]
            columns = {name: array.filter(mask) for name, array in row.items()}
            decoded = self.codec.decode(columns, rows=picked, bad=out.bad, check_required=needed)
            out.add(decoded, kinds.filter(mask), picked)


FACTORY = FormatFactory(
    identifier="maxwell-json",
    help="JSON of Maxwell's daemon (MySQL)",
    mode=UPSERT,
    options=MaxwellOptions,
    is_typed=False,
    build=MaxwellFormat.build,
)
