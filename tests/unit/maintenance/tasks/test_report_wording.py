"""Reports count in words: one file, two files."""

import dataclasses
import re

import pytest

from maintenance.tasks import reports
from maintenance.tasks.base import TaskReport
from resolver.report import ResolveReport

REPORTS = [
    report
    for report in vars(reports).values()
    if isinstance(report, type) and issubclass(report, TaskReport) and report is not TaskReport
]
COMMON = {"task": "work", "table": "t.rows", "changed": True, "duration_ms": 1.0}


def with_counts(report, count, **others):
    """A report whose counts are all `count`."""
    values = {field.name: count for field in dataclasses.fields(report) if field.type == "int"}
    listed = {
        name: (7,) * count
        for name in ("snapshots", "refs")
        if name in {field.name for field in dataclasses.fields(report)}
    }
    return report(**(values | listed | others))


@pytest.mark.parametrize("dry_run", [False, True], ids=["done", "dry run"])
@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.__name__)
def test_task_reports_have_right_plurals(report, dry_run):
    one = with_counts(report, 1, dry_run=dry_run, **COMMON).describe()
    assert not re.search(r"\b1 (\w+ )*\w+s\b", one.split(": ", 2)[2]), one
    assert re.search(
        r"\b2 (\w+ )*\w+s\b", with_counts(report, 2, dry_run=dry_run, **COMMON).describe()
    )


def test_resolve_reports_have_right_plurals():
    names = {"table": "t.rows", "target_snapshot_id": 5, "staging_snapshot_id": 4}
    on_v2 = with_counts(ResolveReport, 1, dvs=0, **names).describe()
    assert "deleted by 1 position delete file, in" in on_v2
    names["position_delete_files"] = 0
    one = with_counts(ResolveReport, 1, **names).describe()
    assert "published 1 staged snapshot as 5: 1 row in 1 file, 1 equality delete -> 1 row " in one
    assert "deleted by 1 deletion vector, in" in one
    two = with_counts(ResolveReport, 2, **names).describe()
    assert "2 staged snapshots as 5: 2 rows in 2 files, 2 equality deletes -> 2 rows" in two
