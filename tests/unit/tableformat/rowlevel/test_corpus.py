"""Every statement of the corpus leaves the rows that DuckDB leaves, in both write modes.

A statement is evaluated once, on a branch of its own; what it found is committed in both modes, on
two branches. Statements that this process can do without Spark are done by it as well.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pytest

from tableformat.commit.refs import create_branch
from tableformat.rowlevel.changes import RowChanges
from tableformat.rowlevel.committing import commit_changes
from tableformat.rowlevel.engine import InProcessEngine
from tableformat.rowlevel.planning import StatementPlan, plan_statement
from tableformat.rowlevel.spark_engine import SparkEngine
from tableformat.spec.properties import WriteMode
from tableformat.sql.statement import Statement, parse_statement
from tests.support.rowlevel_corpus import Case, cases
from tests.support.rowlevel_tables import (
    NAMESPACE,
    TABLES,
    build_catalog,
    build_oracle,
    canonical,
    oracle_rows,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CASES = list(cases())


@dataclass(frozen=True)
class Evaluated:
    plan: StatementPlan
    changes: RowChanges


def in_namespace(sql: str) -> Statement:
    """The statement with icefold's table names."""
    for name in TABLES:
        for before in ("FROM ", "UPDATE ", "INTO ", "USING "):
            sql = sql.replace(f"{before}{name}", f"{before}{NAMESPACE}.{name}")
    return parse_statement(sql)


def test_corpus_is_large_enough() -> None:
    assert len(CASES) >= 150
    assert len(set(CASES)) == len(CASES)


@pytest.mark.timeout(1800)  # hundreds of statements on Spark, on a machine that may be busy
def test_statements_leave_what_duckdb_leaves(interpreted, tmp_path) -> None:
    catalog = build_catalog(tmp_path)
    oracle = build_oracle(catalog)
    environment = catalog.environment

    def evaluate(case: Case) -> Evaluated | Exception:
        try:
            plan = plan_statement(environment, in_namespace(case.sql))
            changes = SparkEngine(environment, interpreted).evaluate(plan)
        except Exception as error:  # reported with the statement
            return error
        return Evaluated(plan, changes)

    with ThreadPoolExecutor(4) as pool:
        evaluated = list(pool.map(evaluate, CASES))
    wrong = []
    in_process = 0
    for number, (case, found) in enumerate(zip(CASES, evaluated, strict=True)):
        expected = oracle_rows(oracle, case.table, case.oracle_sql)
        if isinstance(found, Exception):
            wrong.append(f"{case.sql}: {type(found).__name__}: {found}")
            continue
        outcomes = {
            mode.value: _committed(catalog, found, mode, f"{mode.value}-{number}")
            for mode in WriteMode
        }
        local = InProcessEngine.for_plan(environment, found.plan)
        if local is not None:
            in_process += 1
            again = Evaluated(found.plan, local.evaluate(found.plan))
            outcomes["in-process"] = _committed(
                catalog, again, WriteMode.MERGE_ON_READ, f"local-{number}"
            )
        for mode, rows in outcomes.items():
            if rows != expected:
                more, less = rows - expected, expected - rows
                wrong.append(f"{case.sql} ({mode}): more {dict(more)}, missing {dict(less)}")
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong)
    assert in_process >= 60


def _committed(catalog, found: Evaluated, mode: WriteMode, branch: str) -> Counter[str]:
    """The rows after a commit of the changes on a fresh branch."""
    environment, identifier = catalog.environment, found.plan.state.identifier
    table = catalog.load_table(".".join(identifier))
    if found.plan.context.target.snapshot_id is None:
        branch = "main"  # an empty table has no other branch
        if table.state.head("main") is not None:
            catalog.drop_table(table.name)
            build_empty(catalog, found, table.name)
            plan = plan_statement(environment, found.plan.statement)
            found = Evaluated(plan, found.changes)
    else:
        create_branch(
            environment, identifier, branch, snapshot_id=found.plan.context.target.snapshot_id
        )
    context = replace(found.plan.context, branch=branch, mode=mode)
    plan = replace(found.plan, context=context)
    commit_changes(
        environment, plan, found.changes, partial(InProcessEngine(environment).rewrite, plan)
    )
    rows = table.scan(branch=branch).to_arrow().to_pylist()
    return canonical(rows)


def build_empty(catalog, found: Evaluated, name: str) -> None:
    catalog.create_table(name, found.plan.schema, primary_key=["id"])
