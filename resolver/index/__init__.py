"""The primary-key index: which rows of the target have a key."""

from resolver.index.base import (
    Entries,
    IndexBinding,
    IndexChanges,
    IndexedFile,
    Matches,
    Prepared,
    PrimaryKeyIndex,
)
from resolver.index.build import BuildOptions, BuildProgress, SourceFile, build_index
from resolver.index.local import LocalIndex
from resolver.index.open import OpenedIndex, Refusal, open_index

__all__ = [
    "BuildOptions",
    "BuildProgress",
    "Entries",
    "IndexBinding",
    "IndexChanges",
    "IndexedFile",
    "LocalIndex",
    "Matches",
    "OpenedIndex",
    "Prepared",
    "PrimaryKeyIndex",
    "Refusal",
    "SourceFile",
    "build_index",
    "open_index",
]
