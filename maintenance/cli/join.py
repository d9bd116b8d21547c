"""`icefold join`: keep the result of a join as a table."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from lock import LeaseLostError, LeaseUnavailableError, LockError, LockUnavailableError
from maintenance.cli.context import CliContext, json_flag, pass_context, print_json
from maintenance.cli.option_types import duration
from maintenance.logs import error_text
from resolver import resolve
from resolver.number_text import plural
from tableformat.commit.retry import backoff_ms
from tableformat.errors import FencedError, Retry, TableError
from tableformat.join.delta_join import DeltaJoin, JoinRound
from tableformat.runtime import Runtime

BACKOFF_MIN_MS, BACKOFF_MAX_MS = 1_000, 60_000


@click.command("join")
@click.argument("definition", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--follow", is_flag=True, help="Go on with rounds, until interrupted.")
@click.option(
    "--every",
    "every_ms",
    type=duration,
    default="1s",
    show_default=True,
    help="With --follow: the pause between two rounds.",
)
@click.option(
    "--resolve", "publishes", is_flag=True, help="Publish what a round staged; else maintain does."
)
@click.option(
    "--cut",
    metavar="NAMESPACE",
    help="Join the tables as of the newest cut of NAMESPACE, not as they are; see icefold cuts.",
)
@json_flag
@pass_context
def join(
    context: CliContext,
    definition: Path,
    follow: bool,
    every_ms: int,
    publishes: bool,
    cut: str | None,
    as_json: bool,
) -> None:
    """Bring the result of the join in the file DEFINITION (TOML or JSON) up to date.

    The first round creates and fills the result's table; each later one stages what the changes of
    the joined tables change in it, exactly once. A round that is interrupted is repeated; with
    --follow also one that a catalog, store or lock did not let through, after a growing wait.
    """
    rounds = _Rounds(context, definition, cut, publishes, as_json, is_quiet=follow)
    with closing(rounds):
        if not follow:
            rounds.run()
            return
        runtime, failures = Runtime(), 0  # the catalog may not be there yet
        while True:
            try:
                rounds.run()
                failures, wait_ms = 0, float(every_ms)
            except (TableError, LockError) as error:
                if not _passes(error):
                    raise
                failures += 1
                wait_ms = backoff_ms(
                    failures, min_ms=BACKOFF_MIN_MS, max_ms=BACKOFF_MAX_MS, runtime=runtime
                )
                click.echo(
                    f"icefold: {error_text(error)}; tried again in {wait_ms / 1e3:.1f} s", err=True
                )
            runtime.clock.sleep_ms(wait_ms)


def _passes(error: TableError | LockError) -> bool:
    """Whether the same round may go well later: nobody answered, or another was faster."""
    if isinstance(error, LockError):
        return isinstance(error, LeaseUnavailableError | LeaseLostError | LockUnavailableError)
    return error.retry is not Retry.NEVER or isinstance(error, FencedError)


@dataclass(slots=True)
class _Rounds:
    """Rounds of one join, and what is published after them.

    `waits`: something may wait to be published: also what a process staged that died before it did.
    """

    context: CliContext
    definition: Path
    cut: str | None
    publishes: bool
    as_json: bool
    is_quiet: bool
    waits: bool = True
    kept: DeltaJoin | None = None

    def run(self) -> None:
        """A round; told before it is published. After an error the same can be run again."""
        if self.kept is None:
            self.kept = self.context.catalog.delta_join(self.definition, cut=self.cut)
        done = self.kept.run()
        if not self.is_quiet or done.snapshot_id is not None:
            print_json(asdict(done)) if self.as_json else click.echo(_text(done))
        self.waits |= done.snapshot_id is not None
        if self.publishes and self.waits:
            resolve(self.context.table(self.kept.plan.definition.into))
            self.waits = False

    def close(self) -> None:
        """Release the indexes."""
        if self.kept is not None:
            self.kept.close()


def _text(done: JoinRound) -> str:
    name = f"round {done.batch}" if done.cut is None else f"round {done.batch}, cut {done.cut}"
    if done.snapshot_id is None:
        return f"{name}: nothing has changed"
    read = ", ".join(f"{alias} {plural(n, 'change')}" for alias, n in done.changes.items())
    staged = f"{plural(done.upserts, 'row')} and {plural(done.deletes, 'delete')} staged"
    lines = [f"{name}: {read or 'all rows'}; {staged} in {done.duration_ms:,.0f} ms"]
    lines += [f"  {alias} is scanned: {reason}" for alias, reason in done.scanned.items()]
    return "\n".join(lines)
