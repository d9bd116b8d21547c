"""Random hand-made tables: a small key space, so that deletes hit, and NULLs everywhere."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from tests.support.scan_tables import HandMadeTable

KEYED = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "amount", IntegerType(), required=False),
)
SPECS = [
    PartitionSpec(spec_id=0),
    PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=1),
    PartitionSpec(PartitionField(1, 1001, BucketTransform(3), "id_bucket"), spec_id=2),
]


def rows(*values: tuple[int | None, str | None, int | None]) -> pa.Table:
    ids, regions, amounts = zip(*values, strict=True) if values else ((), (), ())
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "region": pa.array(regions, pa.string()),
            "amount": pa.array(amounts, pa.int32()),
        }
    )


def random_rows(rng: random.Random, count: int) -> pa.Table:
    return rows(
        *(
            (
                rng.choice([None, *range(30)]),
                rng.choice([None, "a", "b", "c"]),
                rng.choice([None, *range(5)]),
            )
            for _ in range(count)
        )
    )


def random_table(
    seed: int, new_table: Callable[..., HandMadeTable] = HandMadeTable
) -> HandMadeTable:
    """Data files, equality deletes, DVs and position deletes under three specs, in any order."""
    rng = random.Random(seed)
    table = new_table(KEYED, list(SPECS))
    for _ in range(rng.randint(2, 10)):
        table.commit()
        for _ in range(rng.randint(1, 3)):
            act = rng.choice(["add", "add", "keys", "keys", "dv", "positions"])
            if act == "add" or not table.data:
                table.add(random_rows(rng, rng.randint(1, 20)), rng.randrange(3))
            elif act == "keys":
                ids = rng.choice([[1], [1], [2, 1], [3], [1, 3]])
                table.delete_keys(random_rows(rng, rng.randint(1, 4)), ids, rng.randrange(3))
            elif act == "dv":
                target = rng.choice(table.data)
                count = target.data_file.record_count
                table.delete_vector(target, rng.sample(range(count), rng.randint(1, count)))
            else:
                first = rng.choice(table.data)
                key = first.data_file.partition_key
                near = [each for each in table.data if each.data_file.partition_key == key]
                targets = [(each, rng.randrange(each.data_file.record_count)) for each in near]
                if rng.random() < 0.5:
                    table.delete_positions(
                        [each for each in targets if each[0] is first], file_scoped=True
                    )
                else:
                    table.delete_positions(targets)
    return table
