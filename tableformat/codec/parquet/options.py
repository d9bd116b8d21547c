"""The Parquet writer's settings, from Iceberg table properties (`write.*`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec.properties import property_int

_CODECS = {
    "zstd": "ZSTD",
    "gzip": "GZIP",
    "snappy": "SNAPPY",
    "lz4": "LZ4",
    "brotli": "BROTLI",
    "uncompressed": "NONE",
    "none": "NONE",
}
_CODECS_WITH_LEVEL = {"zstd", "gzip", "brotli"}
_ROW_GROUP_ROWS_MAX = 64 << 20  # Arrow cuts larger ones
_BLOOM_PREFIX = "parquet.bloom-filter-enabled.column."


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetOptions:
    """How files are cut and encoded. Names and defaults are Iceberg's.

    `row_group_size_bytes` counts encoded bytes, `row_group_rows_max` bounds the memory of a writer.
    """

    target_file_size_bytes: int
    row_group_size_bytes: int
    row_group_rows_max: int
    page_size_bytes: int
    page_rows_max: int
    dictionary_size_bytes: int
    codec: str
    compression_level: int | None
    bloom_filter_columns: tuple[str, ...] = ()

    def writer_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `pyarrow.parquet.ParquetWriter`, but for Bloom filters.

        Decimals up to 18 digits become integers and no Arrow schema is stored: both as the spec's
        Parquet appendix and the other writers have it.
        """
        return {
            "version": "2.6",
            "compression": _CODECS[self.codec],
            "compression_level": self.compression_level,
            "data_page_size": self.page_size_bytes,
            "max_rows_per_page": self.page_rows_max,
            "dictionary_pagesize_limit": self.dictionary_size_bytes,
            "write_page_checksum": True,
            "write_page_index": True,
            "store_decimal_as_integer": True,
            "store_schema": False,
        }


def parquet_options(properties: Mapping[str, str], *, for_deletes: bool = False) -> ParquetOptions:
    """Read the options from table properties.

    Args:
        properties: Table properties, Iceberg's names.
        for_deletes: `write.delete.*` overrides `write.*`, and the target size is smaller.

    Raises:
        InvalidInputError: A value is no number, out of range, or no known codec.
        UnsupportedError: Another file format than Parquet is asked for.
    """
    prefixes = ("write.delete.", "write.") if for_deletes else ("write.",)

    def text(name: str, default: str) -> tuple[str, str]:
        full = next((p + name for p in prefixes if p + name in properties), prefixes[0] + name)
        return properties.get(full, default), full

    def number(name: str, default: int) -> int:
        return property_int(properties, text(name, "")[1], default, minimum=1)

    file_format, name = text("format.default", "parquet")
    if file_format.lower() != "parquet":
        raise UnsupportedError(
            f"cannot write {file_format} files", action=f"set {name} to parquet", property=name
        )
    codec, codec_name = text("parquet.compression-codec", "zstd")
    codec = codec.lower()
    if codec not in _CODECS:
        raise InvalidInputError(
            f"unknown Parquet codec {codec!r}", property=codec_name, known=",".join(_CODECS)
        )
    level, level_name = text("parquet.compression-level", "")
    target_name = "target-file-size-bytes"
    # write.delete.target-file-size-bytes does not fall back to the one for data files.
    target = (
        property_int(properties, f"write.delete.{target_name}", 64 << 20, minimum=1)
        if for_deletes
        else number(target_name, 512 << 20)
    )
    return ParquetOptions(
        target_file_size_bytes=target,
        row_group_size_bytes=number("parquet.row-group-size-bytes", 128 << 20),
        row_group_rows_max=min(number("parquet.row-group-limit", 1 << 20), _ROW_GROUP_ROWS_MAX),
        page_size_bytes=number("parquet.page-size-bytes", 1 << 20),
        page_rows_max=number("parquet.page-row-limit", 20_000),
        dictionary_size_bytes=number("parquet.dict-size-bytes", 2 << 20),
        codec=codec,
        compression_level=_level(level, level_name, codec),
        bloom_filter_columns=_bloom_columns(properties),
    )


def _bloom_columns(properties: Mapping[str, str]) -> tuple[str, ...]:
    prefix = "write." + _BLOOM_PREFIX
    return tuple(
        name.removeprefix(prefix)
        for name, value in sorted(properties.items())
        if name.startswith(prefix) and value.lower() == "true"
    )


def _level(value: str, name: str, codec: str) -> int | None:
    if not value or value.lower() == "null":
        return None
    try:
        level = int(value)
    except ValueError:
        raise InvalidInputError("property must be a number", property=name, value=value) from None
    if codec not in _CODECS_WITH_LEVEL:
        return None
    low = pa.Codec.minimum_compression_level(codec)
    high = pa.Codec.maximum_compression_level(codec)
    if not low <= level <= high:
        raise InvalidInputError(f"{codec} has levels {low} to {high}", property=name, value=value)
    return level
