"""`metadata.json`: table metadata to bytes and back, format versions 1 to 3 (spec: Table Metadata).

Nothing is lost on the way through: fields that PyIceberg does not know are kept, also inside
snapshots, refs, schemas, specs, sort orders and statistics, as long as those parts are unchanged.

The decoder trusts nothing. Limits and rules:

| input                                              | answer                         |
|----------------------------------------------------|--------------------------------|
| larger than `METADATA_BYTES_MAX`, also unzipped     | `CorruptDataError`             |
| gzip growing more than `GZIP_RATIO_MAX`-fold        | `CorruptDataError`             |
| nested deeper than `JSON_DEPTH_MAX`                 | `CorruptDataError`             |
| a key twice in one object, NaN, not JSON            | `CorruptDataError`             |
| a checksum (`metadata_checksum`) of other bytes     | `CorruptDataError`             |
| format version above 3, a type or default we cannot read | `UnsupportedError`        |
| anything the rules in `metadata_rules` refuse       | `CorruptDataError`             |

Every error names the file.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from pydantic import ValidationError as PydanticError
from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.typedef import IcebergBaseModel

from tableformat.errors import CorruptDataError, InvalidInputError, TableError, UnsupportedError
from tableformat.spec.column_defaults import check_held_defaults
from tableformat.spec.gzip_parts import gzip_parts
from tableformat.spec.json_texts import remember_text, text_of
from tableformat.spec.kept_text import KeptText, plain
from tableformat.spec.list_texts import ListTexts, texts_of
from tableformat.spec.metadata_checksum import CHECKSUM_KEY, check_checksum, with_checksum
from tableformat.spec.metadata_models import (
    METADATA_MODELS,
    AnyStatisticsFile,
    last_sequence_number,
    lists_of,
    next_row_id,
    remember_lists,
)
from tableformat.spec.metadata_rules import (
    check_metadata,
    check_raw_metadata,
    with_free_row_ids,
)
from tableformat.spec.snapshot_json import cut_known_snapshots, decode_snapshot
from tableformat.spec.unknown_types import unknown_type

FORMAT_VERSION_MAX = 3
PLAIN_SUFFIX = ".metadata.json"
GZIP_SUFFIX = ".gz.metadata.json"
COMPRESSION_CODEC = "write.metadata.compression-codec"
METADATA_BYTES_MAX = 128 << 20  # about 100,000 snapshots with full summaries
GZIP_RATIO_MAX = 64  # real metadata shrinks 10- to 25-fold
_GZIP_FREE_BYTES = 2 << 20  # small files may be as repetitive as they like
_GZIP_MAGIC = b"\x1f\x8b"
_schemas: WeakValueDictionary[bytes, Schema] = WeakValueDictionary()  # by their text
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_STATISTICS_KEYS = frozenset(field.alias for field in StatisticsFile.model_fields.values())
_KNOWN_BLOB_TYPES = frozenset(("apache-datasketches-theta-v1", "deletion-vector-v1"))
_UNSUPPORTED_TEXTS = ("Type not recognized", "Unsupported field type", "Cannot deserialize bytes")


def encode_metadata(metadata: TableMetadata) -> bytes:
    """Serialize table metadata as UTF-8 JSON, without white space, keys in Java's order.

    Raises:
        InvalidInputError: A text holds half a character.
    """
    return b"".join((*map(plain, _members(metadata)), b"}"))


def _members(metadata: TableMetadata) -> list[bytes | KeptText]:
    """The JSON up to the last brace, to be joined.

    Snapshots, schemas and the like are taken as immutable: their text is made once.

    Raises:
        InvalidInputError: A text holds half a character.

    Cost: O(bytes), a memory copy for all parts seen before.
    """
    version = metadata.format_version
    parts: list[bytes | KeptText] = []

    def put(key: str, *texts: bytes | KeptText) -> None:
        # Long texts are copied once, by the join at the end.
        parts.extend((b"," if parts else b"{", _dump(key), b":", *texts))

    def put_list(key: str, *texts: bytes | KeptText) -> None:
        put(key, b"[", *texts, b"]")

    put("format-version", b"%d" % version)
    put("table-uuid", _dump(str(metadata.table_uuid)))
    put("location", _dump(metadata.location))
    if version > 1:
        put("last-sequence-number", b"%d" % last_sequence_number(metadata))
    put("last-updated-ms", b"%d" % metadata.last_updated_ms)
    put("last-column-id", b"%d" % metadata.last_column_id)
    if version == 1:
        put("schema", text_of(metadata.schema()))
        put_list("partition-spec", b",".join(map(text_of, metadata.spec().fields)))
    put("current-schema-id", b"%d" % metadata.current_schema_id)
    put_list("schemas", b",".join(map(text_of, metadata.schemas)))
    put("default-spec-id", b"%d" % metadata.default_spec_id)
    put_list("partition-specs", b",".join(map(text_of, metadata.partition_specs)))
    put("last-partition-id", b"%d" % _last_partition_id(metadata))
    put("default-sort-order-id", b"%d" % metadata.default_sort_order_id)
    put_list("sort-orders", b",".join(map(text_of, metadata.sort_orders)))
    put("properties", _dump(metadata.properties))
    if metadata.current_snapshot_id is not None:
        put("current-snapshot-id", b"%d" % metadata.current_snapshot_id)
    if version > 2:
        put("next-row-id", b"%d" % next_row_id(metadata))
    refs = (b"%s:%s" % (_dump(name), text_of(ref)) for name, ref in metadata.refs.items())
    put("refs", b"{", b",".join(refs), b"}")
    lists = _long_lists(metadata)
    put_list("snapshots", *lists["snapshots"].joined())
    put_list("statistics", b",".join(map(text_of, metadata.statistics)))
    put_list("partition-statistics", b",".join(map(text_of, metadata.partition_statistics)))
    put_list("snapshot-log", *lists["snapshot_log"].joined())
    put_list("metadata-log", b",".join(map(text_of, metadata.metadata_log)))
    for key, value in (metadata.model_extra or {}).items():
        put(key, _dump(value))
    return parts


def metadata_suffix(metadata: TableMetadata) -> str:
    """How the name of a metadata file ends: readers tell a compressed one by it.

    Raises:
        InvalidInputError: `write.metadata.compression-codec` is neither none nor gzip.
    """
    codec = metadata.properties.get(COMPRESSION_CODEC, "none").lower()
    if codec not in ("none", "gzip"):
        raise InvalidInputError("no such codec", key=COMPRESSION_CODEC, value=repr(codec)[:80])
    return GZIP_SUFFIX if codec == "gzip" else PLAIN_SUFFIX


def encode_metadata_file(metadata: TableMetadata, *, location: str) -> bytes:
    """The bytes of a metadata file, with a checksum: gzip if its name says so."""
    parts, checksum = with_checksum(_members(metadata))
    if location.endswith(GZIP_SUFFIX):
        return gzip_parts(parts, checksum)
    return b"".join(map(plain, parts))


def decode_metadata(data: bytes, *, location: str) -> TableMetadata:
    """Parse and check table metadata, plain or gzip.

    Args:
        data: The whole file.
        location: Where it came from, for errors.

    Returns:
        One of the models of `metadata_models`; `snapshot_by_id` takes constant time.

    Raises:
        CorruptDataError: The bytes break the format or one of the limits above.
        UnsupportedError: A later format version, or a type that PyIceberg does not have.

    Cost: bounded memory, about twenty times the JSON's size. No I/O.
    """
    try:
        plain = _plain(data)
        known, raw = _parse(plain)
        if CHECKSUM_KEY in raw:
            check_checksum(plain)
    except TableError as error:
        raise error.with_context(location=location) from error.__cause__
    except RecursionError as error:
        raise _corrupt("nested too deeply", location) from error
    except ValueError as error:
        raise _explained(error, location) from error
    return metadata_from_json(raw, location=location, known=known)


def metadata_from_json(
    raw: dict[str, Any], *, location: str, known: Sequence[Snapshot] = ()
) -> TableMetadata:
    """As `decode_metadata`, from a value of `parse_json` (a REST server's answer).

    `known`: snapshots that come before those of `raw`.
    """
    try:
        version = _format_version(raw)
        check_raw_metadata(raw, version)
        metadata = with_free_row_ids(_build(raw, version, known))
        check_metadata(metadata)
    except TableError as error:
        raise error.with_context(location=location) from error.__cause__
    except RecursionError as error:
        raise _corrupt("nested too deeply", location) from error
    except (
        PydanticError, ValidationError, ValueError, TypeError, LookupError, ArithmeticError
    ) as error:  # fmt: skip
        raise _explained(error, location, raw) from error
    except AttributeError as error:  # models call methods on values of another type
        raise _corrupt("a value has the wrong type", location) from error
    return metadata


def _plain(data: bytes) -> bytes:
    if len(data) > METADATA_BYTES_MAX:
        raise CorruptDataError("table metadata is too large", size_bytes=len(data))
    if not data.startswith(_GZIP_MAGIC):
        return data
    limit = min(METADATA_BYTES_MAX, max(_GZIP_FREE_BYTES, GZIP_RATIO_MAX * len(data)))
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise CorruptDataError("table metadata is not valid gzip") from error
    if len(plain) > limit:
        raise CorruptDataError("table metadata grows too much when unzipped", limit_bytes=limit)
    if not inflater.eof or inflater.unused_data:
        raise CorruptDataError("table metadata is cut short or followed by other bytes")
    return plain


def _parse(data: bytes) -> tuple[list[Snapshot], dict[str, Any]]:
    """The snapshots that need no parsing, and the rest of a metadata file."""
    known, rest = cut_known_snapshots(data)
    if known:
        with suppress(ValueError):  # told below, with its place in the file
            raw = parse_json(rest)
            if raw.get("format-version") != 1:  # which says less of a snapshot than is known
                return known, raw
    return [], parse_json(data)


def parse_json(data: bytes) -> dict[str, Any]:
    """Parse one JSON object; a key that comes twice, NaN and other values are refused.

    Raises:
        CorruptDataError: Not an object, a key twice, not a number, half a character.
        ValueError: Not JSON, or not UTF-8.
        RecursionError: Nested too deeply for the parser.
    """
    text = data.decode("utf-8")  # UnicodeDecodeError is a ValueError
    raw = json.loads(
        text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
    )
    if not isinstance(raw, dict):
        raise CorruptDataError("table metadata is not a JSON object")
    if _SURROGATE.search(text):
        _check_unicode(raw)
    return raw


def _check_unicode(raw: dict[str, Any]) -> None:
    """JSON may escape a lone surrogate; UTF-8, in which it would be stored again, has none."""
    try:
        json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CorruptDataError("a text in JSON holds half a character") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise CorruptDataError("a JSON object has one key twice", key=repr(twice[:80]))
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise CorruptDataError("not a JSON number", value=text[:80])
    return value


def _no_constant(name: str) -> None:
    raise CorruptDataError("not a JSON number", value=name)


def _format_version(raw: Mapping[str, Any]) -> int:
    version = raw.get("format-version")
    if type(version) is not int or version < 1:
        raise CorruptDataError("table metadata has no usable format-version")
    if version > FORMAT_VERSION_MAX:
        raise UnsupportedError(
            "table has a later format version", action="use a newer icefold", format_version=version
        )
    return version


def _build(raw: dict[str, Any], version: int, known: Sequence[Snapshot]) -> TableMetadata:
    fields = dict(raw)
    fields.pop(CHECKSUM_KEY, None)  # it is about the bytes
    others = (decode_snapshot(one, version) for one in raw.get("snapshots") or ())
    fields["snapshots"] = [*known, *others]
    fields["statistics"] = [_statistics(one) for one in raw.get("statistics") or ()]
    if isinstance(raw.get("schemas"), list):
        fields["schemas"] = [_schema(one) for one in raw["schemas"]]
    specs = raw.get("partition-specs")
    if isinstance(specs, list):  # PyIceberg on a SQL catalog may have written one twice
        specs = fields["partition-specs"] = [*{_dump(one): one for one in specs}.values()]
    for key in ("refs", "snapshot-log", "metadata-log", "partition-statistics", "properties"):
        if fields.get(key) is None:
            fields.pop(key, None)
    metadata = METADATA_MODELS[version].model_validate(fields)
    _remember(metadata.partition_specs, specs)
    _remember(metadata.sort_orders, raw.get("sort-orders"))
    _remember(metadata.partition_statistics, raw.get("partition-statistics"))
    raw_refs = raw.get("refs") or {}
    _remember([metadata.refs[name] for name in raw_refs], [raw_refs[name] for name in raw_refs])
    return metadata


def _schema(raw: Any) -> Schema:
    """One of them, built once: each version of a table repeats all schemas that it ever had."""
    text = _dump(raw)
    schema = _schemas.get(text)
    if schema is None:
        schema = Schema.model_validate(raw)
        check_held_defaults(schema)
        _schemas[text] = schema
        remember_text(schema, text)
    return schema


def _statistics(raw: dict[str, Any]) -> StatisticsFile:
    blobs = raw.get("blob-metadata") or ()
    known = raw.keys() <= _STATISTICS_KEYS and all(
        blob.get("type") in _KNOWN_BLOB_TYPES for blob in blobs
    )
    model = StatisticsFile if known else AnyStatisticsFile
    return model.model_validate(raw)


def _remember(parts: Iterable[IcebergBaseModel], raws: Iterable[Any] | None) -> None:
    """Keep the file's own text of parts whose models drop what they do not know."""
    for part, raw in zip(parts, raws or (), strict=False):
        remember_text(part, _dump(raw))


def _last_partition_id(metadata: TableMetadata) -> int:
    if metadata.last_partition_id is not None:
        return metadata.last_partition_id
    used = (field.field_id for spec in metadata.partition_specs for field in spec.fields)
    return max(used, default=PARTITION_FIELD_ID_START - 1)


def _long_lists(metadata: TableMetadata) -> Mapping[str, ListTexts]:
    is_zipped = metadata.properties.get(COMPRESSION_CODEC, "").lower() == "gzip"
    snapshots: Sequence[Snapshot] = metadata.snapshots
    if metadata.format_version == 1:
        # It has no sequence numbers; PyIceberg's model fills them in.
        snapshots = [one.model_copy(update={"sequence_number": None}) for one in snapshots]
    known, nothing = lists_of(metadata), ListTexts()
    lists = {
        name: texts_of(parts, known.get(name, nothing), is_zipped=is_zipped)
        for name, parts in (("snapshots", snapshots), ("snapshot_log", metadata.snapshot_log))
    }
    remember_lists(metadata, lists)
    return lists


_encoder: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False
).encode


def _dump(value: Any) -> bytes:
    try:
        return _encoder(value).encode()
    except UnicodeEncodeError as error:  # bytes of a command line that were no UTF-8
        wrong = error.object[max(0, error.start - 20) : error.end + 20]
        raise InvalidInputError("a text cannot be stored as UTF-8", text=repr(wrong)) from error


def _explained(error: Exception, location: str, raw: Mapping[str, Any] | None = None) -> TableError:
    reason = _first_reason(error)
    if any(text in reason for text in _UNSUPPORTED_TEXTS):
        named = None if raw is None else unknown_type(raw)
        if named is not None:
            return named.with_context(location=location)
        return UnsupportedError(f"table metadata cannot be read: {reason}", location=location)
    return _corrupt(reason, location)


def _first_reason(error: Exception) -> str:
    if isinstance(error, PydanticError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}"[:300]
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.pos}"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return (str(error) or type(error).__name__)[:300]


def _corrupt(reason: str, location: str) -> CorruptDataError:
    return CorruptDataError(f"table metadata cannot be read: {reason}", location=location)
