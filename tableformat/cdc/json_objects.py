"""JSON objects, one per event, to Arrow columns: as fast as Arrow's reader, wrong rows one by one.

Arrow's reader parses a block of lines or fails as a whole, and some inputs crash it. So:

1. screen: whatever is not plainly one JSON object on one line is looked at singly (not UTF-8, not
   an object, several objects, line breaks, deep nesting) and is repaired or rejected;
2. read a block of lines with the declared types. If that fails, look at a few objects to find out
   which of its declared alternatives a field uses (a timestamp may be a number or a text), and
   read again;
3. if it still fails, halve the block. What is left is a bad row with Arrow's reason.

Fields that are not declared are found by letting Arrow infer them; only their names are used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tableformat.cdc.split_on_failure import read_in_halves

Path = tuple[str, ...]
Rows = npt.NDArray[np.int64]

BLOCK_BYTES_MAX = 32 * 1024 * 1024  # lines read at once: memory is a small multiple of it
READER_BLOCK_BYTES = 4 * 1024 * 1024  # what one thread of Arrow's reader parses at once
SNIFFED_OBJECTS_MAX = 64
# Arrow's inferred types nest as deep as the data; 20,000 levels overflow its stack. A value shorter
# than SHALLOW_BYTES cannot reach a dangerous depth.
DEPTH_MAX = 64
SHALLOW_BYTES = 2000
NEXT_VALUE = r"\}\s*[^\s,\]}]"  # after `}` only `,`, `]` and `}` can follow inside one object
# Numbers among which Connect wrote a text for what JSON has no number for. Inside of a text every
# quote is escaped, so this is found in lists only.
_NOT_FINITE = r'"(-?Infinity|NaN)"'
MIXED_LIST = re.compile(rf"\[\s*(?:(?:-?[0-9][0-9.eE+-]*|null|{_NOT_FINITE})\s*[,\]]\s*)+")
_OTHER_TYPE = re.compile(r"Column\((/.*)\) changed from (\w+) to (\w+)")
TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class JsonLayout:
    """What the objects look like.

    Attributes:
        schema: Declared fields with their first wire types. Structs may be nested.
        alternatives: For the path of a field, the other wire types it may have.
        closed: Paths of structs (`()` is the object itself) whose undeclared fields are reported;
            `element` leads into a list.
        pass_null: Do not report fields that are null wherever they occur: nothing is lost.
    """

    schema: pa.Schema
    alternatives: Mapping[Path, tuple[pa.DataType, ...]] = field(default_factory=dict)
    closed: tuple[Path, ...] = ()
    pass_null: bool = False

    def with_types(self, types: Mapping[Path, pa.DataType]) -> pa.Schema:
        """The schema with other wire types at some paths."""
        return pa.schema([_retype(f, (f.name,), types) for f in self.schema])


@dataclass(slots=True)
class JsonObjects:
    """Parsed objects.

    Attributes:
        pieces: (row numbers, columns) of the readable ones. Pieces differ in wire types only.
        bad: Row number to reason.
        undeclared: Names of undeclared fields of the closed structs, with the first row seen.
    """

    pieces: list[tuple[Rows, pa.Table]] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    undeclared: dict[Path, int] = field(default_factory=dict)


def parse_json_objects(texts: pa.Array, layout: JsonLayout) -> JsonObjects:
    """Parse one JSON object per row.

    Args:
        texts: string or binary, shape (n,), without nulls.
        layout: The declared fields.

    Returns:
        Every row is either in exactly one piece or bad. A declared field that an object lacks is
        null.
    """
    result = JsonObjects()
    lines, rows = _screen(texts, result.bad)
    reader = _Reader(layout=layout, result=result)
    for start, stop in _blocks(lines):
        reader.read(lines.slice(start, stop - start), rows[start:stop])
    return result


def utf8_rows(values: pa.Array, bad: dict[int, str]) -> pa.StringArray:
    """The values as text; those that are not UTF-8 become null and are put into `bad`."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                texts.append(None)
                bad[row] = f"not UTF-8: {error.reason} at byte {error.start}"
        return pa.array(texts, pa.string())


def _screen(texts: pa.Array, bad: dict[int, str]) -> tuple[pa.StringArray, Rows]:
    """Lines that hold exactly one JSON object, if they hold JSON at all, and their row numbers."""
    lines = utf8_rows(texts, bad)
    framed = _is_framed(lines)
    if not pc.all(framed, min_count=0).as_py():
        lines = pc.utf8_trim_whitespace(lines)
        framed = pc.fill_null(_is_framed(lines), False)
        for row in np.flatnonzero(~_mask(framed)).tolist():
            bad.setdefault(row, "not a JSON object")
    doubtful = _mask(pc.fill_null(_is_doubtful(lines), False)) & _mask(framed)
    if doubtful.any():
        repaired = lines.to_pylist()
        for row in np.flatnonzero(doubtful).tolist():
            reason = _why_not_one_object(repaired[row])
            if reason is not None:
                bad[row] = reason
            # Between tokens a line break is white space; inside a text JSON does not allow it.
            repaired[row] = repaired[row].replace("\n", " ").replace("\r", " ")
        lines = pa.array(repaired, pa.string())
    rows = np.arange(len(lines), dtype=np.int64)
    if bad:
        rows = np.delete(rows, sorted(bad))
        lines = lines.take(pa.array(rows))
    return lines, rows


def _is_framed(lines: pa.StringArray) -> pa.BooleanArray:
    return pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))


def _is_doubtful(lines: pa.StringArray) -> pa.BooleanArray:
    doubtful = pc.match_substring_regex(lines, NEXT_VALUE)
    for line_break in ("\n", "\r"):  # two literal searches are faster than one character class
        doubtful = pc.or_(doubtful, pc.match_substring_regex(lines, line_break))
    long = pc.greater(pc.binary_length(lines), SHALLOW_BYTES)
    if pc.any(long, min_count=0).as_py():
        openers = pc.add(pc.count_substring(lines, "{"), pc.count_substring(lines, "["))
        doubtful = pc.or_(doubtful, pc.and_(long, pc.greater(openers, DEPTH_MAX)))
    return doubtful


def _why_not_one_object(text: str) -> str | None:
    depth = 0
    for token in TOKENS.finditer(text):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        if depth > DEPTH_MAX:
            return f"nested deeper than {DEPTH_MAX} levels"
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    return None if isinstance(value, dict) else "not a JSON object"


def _blocks(lines: pa.StringArray) -> Iterator[tuple[int, int]]:
    if not len(lines):
        return
    ends = np.cumsum(pc.binary_length(lines).to_numpy(zero_copy_only=False), dtype=np.int64)
    start = 0
    while start < len(lines):
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + BLOCK_BYTES_MAX, side="right"))
        stop = max(stop, start + 1)
        yield start, stop
        start = stop


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Reads blocks; remembers the wire types that the last block had."""

    layout: JsonLayout
    result: JsonObjects
    types: dict[Path, pa.DataType] = field(default_factory=dict)

    def read(self, lines: pa.StringArray, rows: Rows) -> None:
        """Read some lines; halves them until only the unreadable ones are left."""

        def chunk(start: int, stop: int) -> pa.Table:
            return self._read_chunk(lines.slice(start, stop - start), rows[start:stop])

        for start, stop, found in read_in_halves(len(lines), chunk, (pa.ArrowInvalid,)):
            if isinstance(found, Exception):
                self._read_repaired(lines[start].as_py(), rows[start:stop], found)
            else:
                self.result.pieces.append((rows[start:stop], found))

    def _read_repaired(self, line: str, rows: Rows, error: Exception) -> None:
        """A line that could not be read: once more, if its lists mix numbers and `"NaN"`."""
        repaired = MIXED_LIST.sub(_with_numbers_only, line)
        if repaired != line:
            try:
                self.result.pieces.append((rows, self._read_chunk(pa.array([repaired]), rows)))
            except pa.ArrowInvalid as again:
                error = again
            else:
                return
        self.result.bad[int(rows[0])] = _reason(error)

    def _read_chunk(self, lines: pa.StringArray, rows: Rows) -> pa.Table:
        infer = bool(self.layout.closed)
        try:
            return self._known(lines, int(rows[0]), infer=infer)
        except pa.ArrowInvalid:
            types = self.types | _types_used(_sniffed(lines), self.layout)
            if types == self.types and not infer:
                raise
        if types != self.types:
            self.types = types
            try:
                return self._known(lines, int(rows[0]), infer=infer)
            except pa.ArrowInvalid:
                if not infer:
                    raise
        # An undeclared field of changing type cannot be inferred: look for such fields singly.
        table = self._parse(lines, infer=False)
        for row, text in zip(rows.tolist(), lines.to_pylist(), strict=True):
            self._note_undeclared(_load_json(text), row)
        return table

    def _parse(self, lines: pa.StringArray, *, infer: bool) -> pa.Table:
        joined = pc.binary_join_element_wise(lines, "\n", "")
        schema = self.layout.with_types(self.types)
        table = _read_json(joined, schema, "infer" if infer else "ignore")
        if table.num_rows != len(lines):
            raise pa.ArrowInvalid("not exactly one JSON object")
        numbers = _decimals_as_doubles(pa.struct(list(schema)))
        if numbers is not None:  # a decimal takes a text's digits, which may be base64
            _read_json(joined, pa.schema(list(numbers)), "ignore")
        return table

    def _known(self, lines: pa.StringArray, row: int, *, infer: bool) -> pa.Table:
        """Declared fields only, after noting the names of others in the closed structs.

        Of an undeclared list that begins with null Arrow makes an array that is too short. Nothing
        reads one beside the declared columns; inside of one it would be copied, so it is left out.
        """
        table = self._parse(lines, infer=infer)
        for path in self.layout.closed:
            declared = _names_at(self.layout.schema, path)
            found = _names_at(table.schema, path, pass_null=self.layout.pass_null)
            for name in found - declared:
                self.result.undeclared.setdefault((*path, name), row)
        known = self.layout.schema.names
        if any(_has_more(table.schema.field(name).type, self._type_of(name)) for name in known):
            table = self._parse(lines, infer=False)
        return table.select(self.layout.schema.names)

    def _type_of(self, name: str) -> pa.DataType:
        return self.layout.schema.field(name).type

    def _note_undeclared(self, value: Any, row: int) -> None:
        for path in self.layout.closed:
            declared = _names_at(self.layout.schema, path)
            for struct in _structs_at(value, path):
                for name in struct.keys() - declared:
                    if struct[name] is None and self.layout.pass_null:
                        continue
                    self.result.undeclared.setdefault((*path, name), row)


def _read_json(joined: pa.StringArray, schema: pa.Schema, unexpected: str) -> pa.Table:
    longest = pc.max(pc.binary_length(joined)).as_py()
    return pj.read_json(
        pa.BufferReader(_text_buffer(joined)),
        read_options=pj.ReadOptions(
            use_threads=False, block_size=max(READER_BLOCK_BYTES, 2 * longest)
        ),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def _decimals_as_doubles(kind: pa.DataType) -> pa.DataType | None:
    """The type with doubles, which take numbers only, for its decimals and without all else."""
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_list(kind):
        items = _decimals_as_doubles(kind.value_type)
        return None if items is None else pa.list_(items)
    if not pa.types.is_struct(kind):
        return None
    fields = [(each.name, _decimals_as_doubles(each.type)) for each in kind]
    kept = [(name, inner) for name, inner in fields if inner is not None]
    return pa.struct(kept) if kept else None


def _with_numbers_only(found: re.Match[str]) -> str:
    """A list whose `"NaN"` stand among numbers, without their quotes: so Arrow reads them."""
    text = found[0]
    return re.sub(_NOT_FINITE, r"\1", text) if re.search(r"[\[,]\s*-?[0-9]", text) else text


def _text_buffer(joined: pa.StringArray) -> pa.Buffer:
    """The lines' bytes, one after the other: the array's own data buffer."""
    _, offsets, data = joined.buffers()
    first, last = np.frombuffer(offsets, np.int32)[[joined.offset, joined.offset + len(joined)]]
    return data.slice(int(first), int(last - first))


def _load_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:  # Arrow takes more levels than Python
        raise pa.ArrowInvalid("nested too deeply") from error


def _sniffed(lines: pa.StringArray) -> list[Any]:
    objects = []
    for text in lines.slice(0, SNIFFED_OBJECTS_MAX).to_pylist():
        try:
            objects.append(_load_json(text))
        except ValueError:
            continue  # the block is halved until this line stands alone, and is then reported
    return objects


def _types_used(objects: Sequence[Any], layout: JsonLayout) -> dict[Path, pa.DataType]:
    """For every field with alternatives: the first wire type that takes a value seen here."""
    found: dict[Path, pa.DataType] = {}
    for path, alternatives in layout.alternatives.items():
        for value in (_value_at(item, path) for item in objects):
            fitting = [kind for kind in alternatives if _takes(kind, value)]
            if value is not None and fitting:
                found[path] = fitting[0]
                break
    return found


def _value_at(value: Any, path: Path) -> Any:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _takes(kind: pa.DataType, value: Any) -> bool:
    """Whether Arrow's reader accepts a JSON value for a wire type."""
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(kind))
    if isinstance(value, int):
        return bool(pa.types.is_integer(kind) or _takes_fractions(kind))
    if isinstance(value, float):
        return _takes_fractions(kind)
    if isinstance(value, str):
        return bool(pa.types.is_string(kind))
    if isinstance(value, dict):
        return bool(pa.types.is_struct(kind))
    if not (isinstance(value, list) and pa.types.is_list(kind)):
        return False
    return all(_takes(kind.value_type, item) for item in value if item is not None)


def _takes_fractions(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _retype(field_: pa.Field, path: Path, types: Mapping[Path, pa.DataType]) -> pa.Field:
    kind = types.get(path)
    if kind is not None:
        return field_.with_type(kind)
    if pa.types.is_struct(field_.type):
        children = [_retype(child, (*path, child.name), types) for child in field_.type]
        return field_.with_type(pa.struct(children))
    return field_


def _names_at(schema: pa.Schema, path: Path, *, pass_null: bool = False) -> set[str]:
    kind: pa.DataType = pa.struct(list(schema))
    for name in path:
        kind = kind.value_type if pa.types.is_list(kind) else kind.field(name).type
        if not (pa.types.is_struct(kind) or pa.types.is_list(kind)):
            return set()  # null in all rows, so that nothing was inferred
    return {child.name for child in kind if not (pass_null and pa.types.is_null(child.type))}


def _has_more(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether there is an inferred field inside that is not always null."""
    if pa.types.is_list(found) and pa.types.is_list(declared):
        return _has_more(found.value_type, declared.value_type)
    if not (pa.types.is_struct(found) and pa.types.is_struct(declared)):
        return False
    names = {field.name for field in declared}
    return any(
        _has_more(field.type, declared.field(field.name).type)
        if field.name in names
        else not pa.types.is_null(field.type)
        for field in found
    )


def _structs_at(value: Any, path: Path) -> Iterator[dict[str, Any]]:
    if isinstance(value, list) and path:
        for item in value:
            yield from _structs_at(item, path[1:])
    elif isinstance(value, dict):
        if path:
            yield from _structs_at(value.get(path[0]), path[1:])
        else:
            yield value


def _mask(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = array.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def _reason(error: Exception) -> str:
    text = str(error).split("\n", 1)[0]
    if other := _OTHER_TYPE.search(text):
        path, wanted, found = other.groups()
        article = "an" if wanted[0] in "ao" else "a"
        return (
            f"'{path}' is a JSON {found} where {article} {wanted} is expected: "
            "has its type changed in the source?"
        )
    return re.sub(r" in row \d+$", "", text).removeprefix("JSON parse error: ")
