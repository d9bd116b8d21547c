"""`icefold resolve`: publish what is staged."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from maintenance.cli.context import (
    CliContext,
    TableName,
    check_in_place,
    json_option,
    parse_columns,
    pass_context,
    print_json,
    progress_bar,
)
from maintenance.cli.cuts import publish_cut
from maintenance.table_patterns import is_pattern
from resolver import GroupReport, ResolveReport, resolve
from resolver.cursor import skipped_snapshots
from resolver.engine import ENGINES
from resolver.index.build import BuildProgress
from tableformat import Table
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH

OF_ONE_TABLE = ("from_staging_state", "staged_after", "rebuild_index")


@click.command("resolve")
@click.argument("names", metavar="TABLE...", nargs=-1, required=True, type=TableName())
@click.option(
    "--cut",
    "as_cut",
    is_flag=True,
    help="Publish the tables of a stream together, up to the newest batch that all of them have; "
    "patterns such as 'shop.*' may name them.",
)
@click.option(
    "--set-aside",
    multiple=True,
    metavar="TABLE",
    help="With --cut: neither publish this table nor wait for it; may be repeated.",
)
@click.option("--staging", default=STAGING_BRANCH, show_default=True, help="The staging branch.")
@click.option("--target", default=MAIN_BRANCH, show_default=True, help="The published branch.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="At most so many staged snapshots; with --cut, batches.",
)
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
    names: tuple[str, ...],
    as_cut: bool,
    set_aside: tuple[str, ...],
    staging: str,
    target: str,
    from_snapshot: int | None,
    yes: bool,
    key: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Turn TABLE's staged equality deletes into deletion vectors and publish them."""
    check_in_place(staging, target)
    if as_cut:
        _refuse_with_cut(from_snapshot is not None or yes, options)
        kept = {key: options[key] for key in ("limit", "engine")}
        given = {"set_aside": set_aside, "staging": staging, "target": target, **kept}
        _print(publish_cut(context, names, **given), as_json)
        return
    if set_aside or len(names) > 1 or is_pattern(names[0]):
        raise click.UsageError(
            "several tables are published together with --cut only; "
            "icefold maintain publishes each by itself"
        )
    loaded = context.table(names[0])
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
    _print(report, as_json)


def _print(report: ResolveReport | GroupReport, as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(report.describe())


def _refuse_with_cut(is_recovery: bool, options: Mapping[str, Any]) -> None:
    if is_recovery or any(options[key] for key in OF_ONE_TABLE):
        raise click.UsageError(
            "a lost cursor and an index are mended table by table: run resolve without --cut"
        )


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
