"""Streaming appends of Iceberg's Spark runtime to a staging branch, taken up again after a kill."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from maintenance.tasks.expire import expire
from resolver import resolve
from tableformat.commit.branch_history import ancestors, summary_of
from tests.support.interop_java_tables import DATA, Rows, SharedTable
from tests.support.staged_tables import EVERYTHING

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

EPOCH = "spark.sql.streaming.epochId"


@dataclass(frozen=True)
class Query:
    """A streaming query into `staging`; its folder has its source and its checkpoint."""

    shared: SharedTable
    folder: Path

    def append(self, *rows: tuple[int, str, str]) -> Rows:
        """One batch."""
        source = self.folder / "source"
        source.mkdir(parents=True, exist_ok=True)
        text = "\n".join(json.dumps(dict(zip(DATA, row, strict=True))) for row in rows)
        (source / f"{rows[0][0]}.json").write_text(text)
        self.run()
        return list(rows)

    def run(self) -> None:
        """What is not committed by what the checkpoint says."""
        self.shared.java.stream(
            self.shared.java_name,
            branch="staging",
            source=self.folder / "source",
            checkpoint=self.folder / "checkpoint",
        )

    def run_after_a_kill(self) -> None:
        """As if killed after the last commit to the table, before it was noted."""
        noted = self.folder / "checkpoint" / "commits"
        newest = max(int(each.name) for each in noted.iterdir() if each.name.isdigit())
        for each in (noted / str(newest), noted / f".{newest}.crc"):
            each.unlink()
        self.run()


def epochs(shared: SharedTable) -> list[str]:
    """What Spark's commits on staging say, the newest first."""
    state = shared.load().state
    found = map(summary_of, ancestors(state.metadata, state.head_id("staging")))
    return [each[EPOCH] for each in found if EPOCH in each and "spark.app.id" in each]


@pytest.fixture
def streamed(shared: SharedTable) -> SharedTable:
    shared.create(version=3)
    shared.insert((0, "EU", "base"))
    shared.sql("ALTER TABLE T CREATE BRANCH staging")
    return shared


def test_batch_that_spark_appends_again_to_a_branch_is_published_once(streamed, tmp_path) -> None:
    query = Query(streamed, tmp_path / "a")
    rows = [(0, "EU", "base"), *query.append((1, "EU", "v1"), (2, "US", "v2"))]
    rows += query.append((3, "US", "v3"))
    query.run_after_a_kill()
    assert epochs(streamed) == ["1", "1", "0"]  # it looks on main
    rows += query.append((4, "EU", "v4"))
    resolve(streamed.load())
    assert streamed.rows() == rows
    query.run_after_a_kill()
    rows += query.append((5, "EU", "v5"))
    resolve(streamed.load())
    assert streamed.rows() == rows


def test_batch_that_comes_again_after_another_query_has_hidden_it(streamed, tmp_path) -> None:
    """A summary names one query, and everything old has expired."""
    first, second = Query(streamed, tmp_path / "a"), Query(streamed, tmp_path / "b")
    rows = [(0, "EU", "base"), *first.append((1, "EU", "v1")), *second.append((2, "US", "v2"))]
    resolve(streamed.load())
    expire(streamed.load(), EVERYTHING)
    first.run_after_a_kill()
    rows += first.append((3, "EU", "v3"))
    resolve(streamed.load())
    assert streamed.rows() == rows
