from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from tableformat.scan.plan import plan_scan
from tableformat.scan.reader import read_scan, to_table
from tests.support.scan_tables import HandMadeTable

SCHEMA = Schema(
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


def scanned(table: HandMadeTable, row_filter: str | None = None) -> Counter[tuple]:
    plan = plan_scan(table.environment(), table.state(), row_filter=row_filter)
    columns = ["_file", "_pos", "_row_id", "_last_updated_sequence_number", "_spec_id"]
    result = to_table(table.environment(), plan, columns=columns)
    return Counter(tuple(row.values()) for row in result.to_pylist())


def expected(table: HandMadeTable, keep=lambda _: True) -> Counter[tuple]:
    return Counter(
        (
            row.entry.data_file.file_path,
            row.position,
            row.entry.data_file.first_row_id + row.position,
            row.entry.sequence_number,
            row.entry.data_file.spec_id,
        )
        for row in table.live_rows()
        if keep(row.values)
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


def random_table(seed: int) -> HandMadeTable:
    rng = random.Random(seed)
    table = HandMadeTable(SCHEMA, list(SPECS))
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


@pytest.mark.parametrize("seed", range(60))
def test_random_deletes_leave_the_rows_the_rules_leave(seed: int) -> None:
    table = random_table(seed)
    assert scanned(table) == expected(table)


@pytest.mark.parametrize("seed", range(60, 90))
@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("amount > 2", lambda v: v[3] is not None and v[3] > 2),
        ("id = 7", lambda v: v[1] == 7),
        ("region = 'a' and amount < 3", lambda v: v[2] == "a" and v[3] is not None and v[3] < 3),
        ("region is null", lambda v: v[2] is None),
        ("region != 'a'", lambda v: v[2] is not None and v[2] != "a"),
        (
            "not (id < 10 or region = 'b')",
            lambda v: None not in (v[1], v[2]) and not (v[1] < 10 or v[2] == "b"),
        ),
        ("id in (1, 2, 3) or amount = 4", lambda v: v[1] in (1, 2, 3) or v[3] == 4),
        ("region not in ('a', 'b')", lambda v: v[2] is not None and v[2] not in ("a", "b")),
    ],
)
def test_filter_keeps_exactly_its_rows(seed: int, text: str, keep) -> None:
    table = random_table(seed)
    assert scanned(table, text) == expected(table, keep)


def test_limit_stops_after_the_rows_asked_for() -> None:
    table = HandMadeTable(SCHEMA)
    for _ in range(5):
        table.commit()
        table.add(rows(*((i, "a", i) for i in range(10))))
    plan = plan_scan(table.environment(), table.state())
    batches = list(read_scan(table.environment(), plan, limit=13, batch_rows=4))
    assert sum(batch.num_rows for batch in batches) == 13
    assert to_table(table.environment(), plan, limit=0).num_rows == 0
