"""Accounts in several tables, and transfers between them: the sum over all tables never changes.

A batch is a list of balances to set, by table and account. `Bank` knows what each table holds
after each batch, and stages batches as a stream into many tables does: each table gets the marker,
the names of all tables of the batch, and offsets.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tableformat import Table, TableCatalog
from tableformat.cdc.batch_commit import BatchId, commit_batch
from tableformat.commit.changeset import CommitKind
from tableformat.write.delete_scope import delete_spec
from tableformat.write.stage import write_staged

SCHEMA = pa.schema([("id", pa.int64()), ("balance", pa.int64())])
QUERY = "bank"
START = 100
Balances = dict[int, int]
Batch = Mapping[str, Balances]  # by table: the accounts that change, with their new balances


def rows_of(balances: Mapping[int, int]) -> pa.Table:
    return pa.table([list(balances), list(balances.values())], schema=SCHEMA)


def stage_batch(
    table: Table, number: int, balances: Balances, names: Sequence[str], query: str = QUERY
) -> bool:
    """Stage one table's part of a batch, once; False if it was there."""
    environment = table.environment
    spec, state = delete_spec(environment, environment.catalog.load_table(table.identifier))
    data, deletes = write_staged(environment, state, spec, upserts=rows_of(balances))
    summary = {
        "icefold.batch-tables": json.dumps(sorted(names)),
        "icefold.source-offsets": json.dumps({table.name: {"0": number + 1}}),
        "icefold.source-transaction": f"tx-{number}",
    }
    done = commit_batch(
        environment,
        table.identifier,
        branch="staging",
        kind=CommitKind.ROW_DELTA,
        batch=BatchId(query, number),
        data_files=data,
        delete_files=deletes,
        summary=summary,
    )
    return done is not None


@dataclass
class Bank:
    """What the tables hold after each batch: `states[n + 1]` after batch n."""

    names: Sequence[str]
    accounts: int = 4
    states: list[dict[str, Balances]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        opening = {name: dict.fromkeys(range(self.accounts), START) for name in self.names}
        self.states.append(opening)

    @property
    def total(self) -> int:
        return START * self.accounts * len(self.names)

    def create(self, catalog: TableCatalog) -> dict[str, Table]:
        """The tables, with the opening balances on main."""
        tables = {
            name: catalog.create_table(name, SCHEMA, primary_key=["id"]) for name in self.names
        }
        for name, table in tables.items():
            table.append(rows_of(self.states[0][name]))
        return tables

    def transfer(
        self, rng: random.Random, names: Sequence[str] | None = None, tables: int = 2
    ) -> int:
        """A batch of transfers between some tables, of all or of `names`; its number."""
        state = {name: dict(balances) for name, balances in self.states[-1].items()}
        touched = rng.sample(list(names or self.names), tables)
        batch: dict[str, Balances] = {name: {} for name in touched}
        for giver, taker in zip(touched, [*touched[1:], touched[0]], strict=True):
            amount, at, to = rng.randint(1, 50), *rng.sample(range(self.accounts), 2)
            for name, account, change in ((giver, at, -amount), (taker, to, amount)):
                state[name][account] += change
                batch[name][account] = state[name][account]
        self.states.append(state)
        self.batches.append(batch)
        return len(self.batches) - 1

    def stage(self, tables: Mapping[str, Table], number: int, only: Sequence[str] = ()) -> None:
        """Stage a batch on its tables, or on some of them; what is there is not staged again."""
        batch = self.batches[number]
        for name in only or batch:
            stage_batch(tables[name], number, batch[name], list(batch))


def balances_of(table: Table, snapshot_id: int | None = None) -> Balances:
    """What a snapshot holds, by icefold's scan."""
    rows = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return {row["id"]: row["balance"] for row in rows}
