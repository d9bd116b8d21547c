"""Canonical key bytes: equal values have equal bytes, different values different bytes."""

from resolver.keys.encode import NULL_KEY, encode_batch, encode_keys, key_columns
from resolver.keys.encoded import (
    EncodedKeys,
    KeyNumbers,
    concat_keys,
    factorize,
    sorted_distinct,
    take_rows,
    varying_columns,
)
from resolver.keys.schema import ENCODING_VERSION, KeyField, KeySchema

__all__ = [
    "ENCODING_VERSION",
    "NULL_KEY",
    "EncodedKeys",
    "KeyField",
    "KeyNumbers",
    "KeySchema",
    "concat_keys",
    "encode_batch",
    "encode_keys",
    "factorize",
    "key_columns",
    "sorted_distinct",
    "take_rows",
    "varying_columns",
]
