"""What the commands of maintenance tasks share: sizes, the options all have, the output."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from maintenance.cli.context import json_option, print_json, table_argument
from maintenance.tasks.base import LOCK_TIMEOUT_MS, TaskReport

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import SparkSession

_SIZE = re.compile(r"(\d{1,18})\s*(|b|kb|mb|gb|kib|mib|gib)")
_FACTORS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}  # fmt: skip


class SizeType(click.ParamType[int]):
    """`134217728`, `128MiB`, `512MB`, `2GB`."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Bytes."""
        found = _SIZE.fullmatch(str(value).strip().lower())
        if found is None or int(found[1]) == 0:
            self.fail(f"{value!r} is not a size: write 134217728, 128MiB or 512MB", param, ctx)
        return int(found[1]) * _FACTORS[found[2]]


branch_option = click.option("--branch", default="main", show_default=True, help="The branch.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done.")
lock_timeout_option = click.option(
    "--lock-timeout-ms",
    type=click.IntRange(min=0),
    default=LOCK_TIMEOUT_MS,
    show_default=True,
    help="How long to wait for other maintenance of the table.",
)
spark_option = click.option(
    "--spark", "use_spark", is_flag=True, help="Work on Spark (the active or a local session)."
)


def task_options(command: Any) -> Any:
    """The argument and the options that every task's command has."""
    for decorate in (json_option, lock_timeout_option, dry_run_option):
        command = decorate(command)
    return table_argument(command)


def session_for(use_spark: bool, name: str) -> SparkSession | None:
    """A Spark session, if one is asked for."""
    if not use_spark:
        return None
    from tableformat.spark.session import local_session

    return local_session(name)


def show_report(report: TaskReport, *, as_json: bool) -> None:
    """Print what a task did."""
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(report.describe())
