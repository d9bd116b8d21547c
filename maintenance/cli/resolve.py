"""`icefold resolve`: publish what is staged."""

from __future__ import annotations

import click

from maintenance.cli.context import (
    CliContext,
    json_option,
    pass_context,
    print_json,
    progress_bar,
    table_argument,
)
from resolver import resolve
from resolver.engine import ENGINES, EngineName
from resolver.index.build import BuildProgress
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
    table_name: str,
    staging: str,
    target: str,
    limit: int | None,
    from_snapshot: int | None,
    rebuild_index: bool,
    engine: EngineName,
    as_json: bool,
) -> None:
    """Turn TABLE's staged equality deletes into deletion vectors and publish them."""
    loaded = context.table(table_name)
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
            limit=limit,
            from_snapshot=from_snapshot,
            rebuild_index=rebuild_index,
            engine=engine,
            progress=show,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(report.describe())
