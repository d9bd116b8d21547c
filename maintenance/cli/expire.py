"""`icefold expire`: forget old snapshots."""

from __future__ import annotations

from collections.abc import Iterable

import click

from maintenance.cli.context import CliContext, pass_context
from maintenance.cli.maintain import DurationType
from maintenance.cli.tasks import show_report, task_options
from maintenance.tasks.expire import expire
from maintenance.tasks.options import ExpireOptions
from tableformat import Table
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import NotFoundError
from tableformat.spec.names import MAIN_BRANCH


@click.command("expire")
@task_options
@click.option(
    "--older-than",
    type=DurationType(),
    metavar="AGE",
    help="e.g. 12h, 5d.  [the table's history.expire.max-snapshot-age-ms, else 5d]",
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    help="Snapshots to keep per branch.  [history.expire.min-snapshots-to-keep, else 1]",
)
@click.option(
    "--staging",
    "declared",
    multiple=True,
    metavar="NAME[:TARGET]",
    help="A staging branch that cannot be recognised, as another tool writes only appends to it; "
    "may be repeated.  [target: main]",
)
@click.option("--keep-files", is_flag=True, help="Delete no file; orphan removal finds them.")
@pass_context
def expire_command(
    context: CliContext,
    table_name: str,
    older_than: int | None,
    keep: int | None,
    declared: tuple[str, ...],
    keep_files: bool,
    dry_run: bool,
    lock_timeout_ms: int,
    as_json: bool,
) -> None:
    """Expire TABLE's old snapshots and refs, and delete what nothing needs any more."""
    table = context.table(table_name)
    policy = ExpiryPolicy(
        max_snapshot_age_ms=older_than,
        min_snapshots_to_keep=keep,
        staging=_staging(table, declared) if declared else ExpiryPolicy().staging,
    )
    report = expire(
        table,
        ExpireOptions(policy=policy, delete_files=not keep_files),
        dry_run=dry_run,
        lock_timeout_ms=lock_timeout_ms,
    )
    show_report(report, as_json=as_json)


def _staging(table: Table, declared: Iterable[str]) -> dict[str, str]:
    """Targets by name of staging branch. A name that is misspelt would protect nothing."""
    found: dict[str, str] = {}
    for text in declared:
        name, _, target = text.partition(":")
        found[name] = target or MAIN_BRANCH
        for branch in (name, found[name]):
            if table.state.ref(branch) is None and branch != MAIN_BRANCH:
                raise NotFoundError("there is no such branch", table=table.name, branch=branch)
    return found
