"""Tables in buckets whose writes fail at random, in a catalog that loses answers (I9, R61).

A commit that says it is done is in the table once, one that says it is not is not, and of one that
does not know nothing is deleted that it needs.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest

import tableformat as tf
from tableformat.backend import open_backend
from tableformat.catalog.pointers import MetadataPointers
from tableformat.errors import CommitUnknownError, TableError
from tableformat.runtime import Runtime
from tests.support.bucket_servers import CLOUDS
from tests.support.commit_tables import ManualClock
from tests.support.goals import goal
from tests.support.lock_servers import lock_server

COMMITS = 500
LOST_SHARE = 0.5
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
FAULTS = {"error_before": 0.04, "error_after": 0.1, "conflict": 0.04, "resent": 0.1}


@dataclass
class LossyPointers:
    """Half of the answers to a swap are lost, before or after it takes effect."""

    inner: MetadataPointers
    rng: random.Random
    lost: int = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def swap(self, identifier: tuple[str, ...], *, expected: str, new: str) -> bool:
        is_lost, lands = self.rng.random() < LOST_SHARE, self.rng.random() < 0.7
        self.lost += is_lost
        done = (lands or not is_lost) and self.inner.swap(identifier, expected=expected, new=new)
        if is_lost:
            raise ConnectionResetError("the answer was lost")
        return done


@pytest.mark.long
@pytest.mark.services
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_commit_whose_answer_is_lost_is_there_once_or_not_at_all(cloud: str, tmp_path) -> None:
    server = lock_server(cloud)
    place = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"{server.root}/tables"}
    runtime = Runtime(clock=ManualClock())  # lost answers are waited for
    environment = open_backend("c", {"type": "sql", **place, **server.properties}, runtime=runtime)
    inner = environment.catalog._catalog  # below the declared keys
    pointers = inner._pointers = LossyPointers(inner._pointers, random.Random(61))
    table = tf.TableCatalog(environment).create_table("t.rows", SCHEMA, primary_key=["id"])
    server.faults.hits.clear()
    outcomes: dict[int, str] = {}
    number = 0
    while pointers.lost < COMMITS:
        server.faults.rates |= FAULTS
        try:
            table.append(pa.table({"id": [number]}, schema=SCHEMA))
            outcomes[number] = "ok"
        except CommitUnknownError:
            outcomes[number] = "unknown"
        except TableError as error:
            outcomes[number] = type(error).__name__
        finally:
            server.faults.rates.clear()
        table.refresh()
        number += 1
    found = Counter(table.scan().to_arrow().column("id").to_pylist())
    for number, outcome in outcomes.items():
        allowed = {"ok": {1}, "unknown": {0, 1}}.get(outcome, {0})
        assert found[number] in allowed, (number, outcome)
    print(cloud, Counter(outcomes.values()), server.faults.hits)
    assert all(server.faults.hits[fault] for fault in FAULTS)
    goal("G5", trials=pointers.lost)
