"""`icefold resolve`: publish what is staged."""

from __future__ import annotations

import sys
from typing import Any

import click

from maintenance.cli.context import (
    CliContext,
    json_option,
    parse_columns,
    pass_context,
    print_json,
    progress_bar,
    table_argument,
)
from resolver import resolve
from resolver.engine import ENGINES
from resolver.index.build import BuildProgress
from resolver.staging import skipped_snapshots
from tableformat import Table
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH


@click.command("resolve")
@table_argument
@click.option("--staging", default=STAGING_BRANCH, show_default=True, help="The staging branch.")
@click.option("--target", default=MAIN_BRANCH, show_default=True, help="The published branch.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many staged snapshots.")
@click.option(
    "--from-snapshot",
    type=int,
    help="Operator's override of a lost cursor: the last staged snapshot that was published.",
)
@click.option(
    "--from-staging-state",
    is_flag=True,
    help="Where staged snapshots have expired unpublished: take the changes from the files that "
    "the staging branch still lists.",
)
@click.option(
    "--staged-after",
    type=click.IntRange(min=0),
    metavar="N",
    help="For --from-staging-state: the highest sequence number that is not staged.",
)
@click.option("--yes", is_flag=True, help="Do not ask before staged snapshots are skipped.")
@click.option(
    "--key",
    metavar="A,B",
    help="The columns that name a row, where the table does not declare them.",
)
@click.option("--rebuild-index", is_flag=True, help="Build the index afresh from the target.")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="This process, or Spark; auto: Spark for a large backlog under spark-submit.",
)
@json_option
@pass_context
def resolve_command(
    context: CliContext,
    /,
    table_name: str,
    staging: str,
    target: str,
    from_snapshot: int | None,
    yes: bool,
    key: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Turn TABLE's staged equality deletes into deletion vectors and publish them."""
    loaded = context.table(table_name)
    if from_snapshot is not None and not yes:
        yes = _may_skip(loaded, staging, target, from_snapshot)
    with progress_bar(context) as bar:
        task = bar.add_task("resolving", total=None)

        def show(build: BuildProgress) -> None:
            bar.update(
                task,
                description=f"building the index ({build.phase})",
                total=build.rows_total + build.shards_total,
                completed=build.rows_done + build.shards_done,
            )

        report = resolve(
            loaded,
            staging=staging,
            target=target,
            from_snapshot=from_snapshot,
            skip_unpublished=yes,
            key=parse_columns(key),
            progress=show,
            **options,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(report.describe())


def _may_skip(table: Table, staging: str, target: str, from_snapshot: int) -> bool:
    """Ask, where somebody is there to answer; else the cycle refuses and says how many."""
    skipped = skipped_snapshots(
        table.state, staging=staging, target=target, from_snapshot=from_snapshot
    )
    if not skipped or not sys.stdin.isatty():
        return False
    return click.confirm(
        f"{skipped.describe()} will be taken as published; what was not is lost. Go on?",
        abort=True,
        err=True,
    )
