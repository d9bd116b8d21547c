"""The commands of the maintenance tasks: `compact`, `expire`, `orphans` and the rewrites.

Their options bear the names of the fields of the task's own options, which have the defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from maintenance.cli.context import (
    CliContext,
    json_option,
    parse_columns,
    pass_context,
    print_json,
    say,
    table_argument,
    with_options,
)
from maintenance.cli.option_types import duration, size
from maintenance.tasks.base import TaskReport
from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.expire import expire
from maintenance.tasks.options import (
    CompactOptions,
    DropDeadDeletesOptions,
    ExpireOptions,
    RemoveOrphansOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
)
from maintenance.tasks.remove_orphans import remove_orphans
from maintenance.tasks.reports import CompactReport, RemoveOrphansReport
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver.job import LOCK_TIMEOUT_MS
from tableformat import Table
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import NotFoundError
from tableformat.spec.names import MAIN_BRANCH

BRANCH = click.option("--branch", default="main", show_default=True, help="The branch.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done.")
LOCK_TIMEOUT = click.option(
    "--lock-timeout-ms",
    type=click.IntRange(min=0),
    default=LOCK_TIMEOUT_MS,
    show_default=True,
    help="How long to wait for other maintenance of the table.",
)
COMPACT, VECTORS = CompactOptions(), RewriteVectorsOptions()


def _command(
    name: str,
    task: Callable[..., TaskReport],
    *parameters: Callable[..., Any],
    dry_run: Callable[..., Any] = DRY_RUN,
    after: Callable[[Any, bool], None] | None = None,
) -> Callable[..., click.Command]:
    """Makes a command of a function that gives the task's arguments for a table and the options.

    `after` gets the report, and whether output is for programs, when the report has been printed.
    """

    def decorate(arguments: Callable[..., dict[str, Any]]) -> click.Command:
        def run(
            context: CliContext, table_name: str, as_json: bool, dry_run: bool,
            lock_timeout_ms: int, **given: Any,
        ) -> None:  # fmt: skip
            table = context.table(table_name)
            options = arguments(table, **given)
            report = task(table, **options, dry_run=dry_run, lock_timeout_ms=lock_timeout_ms)
            if as_json:
                print_json(report.to_dict())
            else:
                click.echo(report.describe())
            if after is not None:
                after(report, as_json)

        run.__doc__ = arguments.__doc__
        given = (table_argument, *parameters, dry_run, LOCK_TIMEOUT, json_option, pass_context)
        made: click.Command = click.command(name)(with_options(*given)(run))
        return made

    return decorate


def _compacted(report: CompactReport, _as_json: bool) -> None:
    for error in report.errors:
        click.echo(f"icefold: not compacted: {error}", err=True)
    if report.failed_groups:
        sys.exit(1)


@_command(
    "compact",
    compact,
    BRANCH,
    click.option("--filter", help="Only files that may hold rows matching it."),
    click.option(
        "--strategy",
        type=click.Choice(["bin-pack", "sort", "z-order"]),
        default=COMPACT.strategy,
        show_default=True,
    ),
    click.option("--sort-by", metavar="'A, B desc'", help="Columns for sort and z-order."),
    click.option(
        "--target-size",
        "target_size_bytes",
        type=size,
        help="Size of new files.  [the table's write.target-file-size-bytes]",
    ),
    click.option(
        "--group-size",
        "group_bytes_max",
        type=size,
        default=COMPACT.group_bytes_max,
        help="Bytes that are rewritten together.  [2 GiB]",
    ),
    click.option(
        "--max-bytes",
        "rewrite_bytes_max",
        type=size,
        help="Leave what exceeds this to the next run.",
    ),
    click.option(
        "--min-files",
        "input_files_min",
        type=click.IntRange(min=1),
        default=COMPACT.input_files_min,
        show_default=True,
        help="Small files that are worth a rewrite.",
    ),
    click.option(
        "--dv-share",
        "dv_share_min",
        type=click.FloatRange(min=0, max=1, min_open=True),
        default=COMPACT.dv_share_min,
        show_default=True,
        help="Share of dead rows in a file that is worth a rewrite.",
    ),
    click.option("--rewrite-all", is_flag=True, help="Rewrite every file."),
    click.option("--partial-progress", is_flag=True, help="Commit groups in several parts."),
    click.option(
        "--max-commits",
        "partial_progress_commits_max",
        type=click.IntRange(min=1),
        default=COMPACT.partial_progress_commits_max,
        show_default=True,
        help="With --partial-progress: how many parts at most.",
    ),
    click.option(
        "--spark", "use_spark", is_flag=True, help="Work on Spark (the active or a local session)."
    ),
    after=_compacted,
)
def compact_command(
    _table: Table, sort_by: str | None, use_spark: bool, **given: Any
) -> dict[str, Any]:
    """Rewrite TABLE's small files and files with many dead rows; rows keep their row ids."""
    options = CompactOptions(sort_by=tuple(parse_columns(sort_by) or ()), **given)
    if not use_spark:
        return {"options": options}
    from tableformat.spark.session import local_session  # Spark is an optional dependency

    return {"options": options, "spark": local_session("icefold compact")}


@_command(
    "expire",
    expire,
    click.option(
        "--older-than",
        "max_snapshot_age_ms",
        type=duration,
        metavar="AGE",
        help="e.g. 12h, 5d.  [the table's history.expire.max-snapshot-age-ms, else 5d]",
    ),
    click.option(
        "--keep",
        "min_snapshots_to_keep",
        type=click.IntRange(min=1),
        help="Snapshots to keep per branch.  [history.expire.min-snapshots-to-keep, else 1]",
    ),
    click.option(
        "--staging",
        "declared",
        multiple=True,
        metavar="NAME[:TARGET]",
        help="A staging branch that cannot be recognised, as another tool writes only appends to "
        "it; may be repeated.  [target: main]",
    ),
    click.option("--keep-files", is_flag=True, help="Delete no file; orphan removal finds them."),
)
def expire_command(
    table: Table, declared: Sequence[str], keep_files: bool, **given: Any
) -> dict[str, Any]:
    """Expire TABLE's old snapshots and refs, and delete what nothing needs any more."""
    if declared:
        given["staging"] = _staging(table, declared)
    return {"options": ExpireOptions(policy=ExpiryPolicy(**given), delete_files=not keep_files)}


def _staging(table: Table, declared: Sequence[str]) -> dict[str, str]:
    """Targets by name of staging branch. A name that is misspelt would protect nothing."""
    found: dict[str, str] = {}
    for text in declared:
        name, _, target = text.partition(":")
        found[name] = target or MAIN_BRANCH
        for branch in (name, found[name]):
            if table.state.ref(branch) is None and branch != MAIN_BRANCH:
                raise NotFoundError("there is no such branch", table=table.name, branch=branch)
    return found


def _listed(report: RemoveOrphansReport, as_json: bool) -> None:
    if as_json or not report.dry_run:
        return
    for location in report.locations:
        say(f"  {location}")
    if report.orphan_files:
        click.echo("nothing was deleted; run again with --delete")


@_command(
    "orphans",
    remove_orphans,
    click.option(
        "--older-than",
        "older_than_ms",
        type=duration,
        metavar="AGE",
        default=RemoveOrphansOptions().older_than_ms,
        help="More than the longest write takes; at least 1h.  [3d]",
    ),
    dry_run=click.option(
        "--dry-run/--delete",
        default=True,
        show_default=True,
        help="Only list them, or delete them.",
    ),
    after=_listed,
)
def orphans_command(_table: Table, **given: Any) -> dict[str, Any]:
    """List TABLE's unreferenced old files; with --delete, delete them."""
    return {"options": RemoveOrphansOptions(**given)}


@_command(
    "rewrite-manifests",
    rewrite_manifests,
    BRANCH,
    click.option(
        "--target-size",
        "target_size_bytes",
        type=size,
        help="[the table's commit.manifest.target-size-bytes]",
    ),
    click.option("--rewrite-all", is_flag=True, help="Rewrite also where there are few enough."),
)
def rewrite_manifests_command(_table: Table, **given: Any) -> dict[str, Any]:
    """Write TABLE's data manifests again: full ones, each about few partitions."""
    return {"options": RewriteManifestsOptions(**given)}


@_command(
    "rewrite-vectors",
    rewrite_vectors,
    BRANCH,
    click.option(
        "--min-files",
        "small_files_min",
        type=click.IntRange(min=2),
        default=VECTORS.small_files_min,
        show_default=True,
        help="Small or mostly dead Puffin files that are worth a rewrite.",
    ),
    click.option("--rewrite-all", is_flag=True, help="Rewrite every deletion vector."),
)
def rewrite_vectors_command(_table: Table, **given: Any) -> dict[str, Any]:
    """Merge TABLE's Puffin files, and turn position delete files into deletion vectors."""
    return {"options": RewriteVectorsOptions(**given)}


@_command("drop-dead-deletes", drop_dead_deletes, BRANCH)
def drop_dead_deletes_command(_table: Table, **given: Any) -> dict[str, Any]:
    """Remove TABLE's delete files that reach no live row file any more."""
    return {"options": DropDeadDeletesOptions(**given)}


TASK_COMMANDS = (
    compact_command, expire_command, orphans_command, rewrite_manifests_command,
    rewrite_vectors_command, drop_dead_deletes_command,
)  # fmt: skip
