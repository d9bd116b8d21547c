"""Where an equality delete reaches (spec: Scan Planning; docs/design/0007)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyiceberg.partitioning import PartitionSpec

from resolver.match import GLOBAL_SCOPE, Int64s
from tableformat.spec.data_file import DataFile, PartitionKey, canonical_partition
from tableformat.spec.unpartitioned import is_unpartitioned, source_ids

NO_SCOPE = -1


@dataclass(slots=True)
class Scopes:
    """Numbers for the (spec, partition) pairs that deletes of one cycle are scoped to.

    `immutable_ids`: columns that never change for one key.
    """

    specs: Mapping[int, PartitionSpec]
    immutable_ids: frozenset[int] = frozenset()
    numbers: dict[PartitionKey, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    def of_delete(self, file: DataFile, *, one_spec: bool = False) -> int:
        """The scope of a delete file; a new number for a new partition.

        Args:
            file: The delete file.
            one_spec: When it was staged, all files had its spec. If the key decides the partition,
                every row of the key was in it, wherever a rewrite has moved the row since: the
                delete reaches all partitions of all specs. Keys that belong in another partition
                than the file's are no such deletes.
        """
        if is_unpartitioned(self.specs[file.spec_id]):
            return GLOBAL_SCOPE
        fixed = {*(file.equality_ids or ()), *self.immutable_ids}
        if one_spec and source_ids(self.specs[file.spec_id]) <= fixed:
            return GLOBAL_SCOPE
        return self.numbers.setdefault(file.partition_key, len(self.numbers))

    def of_rows(self, spec_id: int, partition: tuple[Any, ...]) -> int:
        """The scope that scoped deletes must have to reach rows of a data file."""
        if not self.numbers:
            return NO_SCOPE
        return self.numbers.get((spec_id, canonical_partition(partition)), NO_SCOPE)

    def of_files(self, files: Iterable[DataFile]) -> Int64s:
        """`of_rows` for several files, int64."""
        return np.array(
            [self.of_rows(file.spec_id, file.partition) for file in files], dtype=np.int64
        )
