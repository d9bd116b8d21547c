"""`icefold maintain`: all maintenance of some tables, for ever or once."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any, NoReturn

import click
from prometheus_client import CollectorRegistry

from maintenance.cli.context import (
    CliContext,
    check_in_place,
    handling_stops,
    json_option,
    parse_properties,
    pass_context,
    print_json,
)
from maintenance.cli.option_types import duration
from maintenance.cli.process_end import leave_at_once
from maintenance.logs import LogFormat, log_run, logging_to_stderr
from maintenance.memory_release import release_after
from maintenance.metrics import SchedulerMetrics
from maintenance.run_history import Outcome
from maintenance.scheduler import Scheduler, SchedulerEnd
from maintenance.scheduler_options import SchedulerOptions
from maintenance.settings import (
    TaskName,
    parse_overrides,
    settings_text,
)
from resolver.number_text import plural
from tableformat import TableCatalog
from tableformat.errors import NotFoundError
from tableformat.memory import collect_seldom, share_heaps
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH

EXIT_FAILED, EXIT_UNFINISHED = 1, 3
logger = logging.getLogger("icefold.maintain")


def _show_settings(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(settings_text(ctx.make_formatter().width))
        ctx.exit()


@click.command("maintain")
@click.argument("names", metavar="TABLE...", nargs=-1, required=True)
@click.option("--once", is_flag=True, help="Do what is due and end: for cron.")
@click.option(
    "--every",
    "every_ms",
    type=duration,
    help="Publish in this rhythm, e.g. 30s.  [default: as soon as the triggers say]",
)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    type=click.Choice([task.value for task in TaskName]),
    help="Only this task; may be repeated.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_properties,
    help="A setting for all tables, before their icefold.maintain.* properties.",
)
@click.option(
    "--parallel",
    "parallel_max",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    help="Tasks at a time; long ones leave a thread and a core to cycles.",
)
@click.option("--staging", default=STAGING_BRANCH, show_default=True, help="The staging branch.")
@click.option("--target", default=MAIN_BRANCH, show_default=True, help="The published branch.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Serve Prometheus metrics.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option(
    "--grace",
    "grace_ms",
    type=duration,
    default="20s",
    show_default=True,
    help="How long a stop waits for what is running.",
)
@click.option(
    "--settings",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_settings,
    help="List all settings with their defaults, and end.",
)
@json_option
@pass_context
def maintain(
    context: CliContext,
    /,
    names: tuple[str, ...],
    once: bool,
    tasks: tuple[str, ...],
    overrides: dict[str, str],
    metrics_port: int | None,
    metrics_host: str,
    log_format: LogFormat,
    as_json: bool,
    **given: Any,
) -> None:
    """Resolve, compact, expire and clean TABLE..., whenever there is work to do.

    TABLE is a name or a pattern such as 'shop.*'. Ends on SIGTERM or SIGINT; a second one does not
    wait for what is running.

    With --once the exit code is 0: all that was due is done; 1: something failed; 3: something was
    left to do, as another process holds a table's lock or a signal came.
    """
    check_in_place(given["staging"], given["target"])
    if once and given["every_ms"] is not None:
        raise click.UsageError("--once and --every exclude each other")
    options = SchedulerOptions(
        tasks=tuple(TaskName(task) for task in tasks) or tuple(TaskName),
        overrides=parse_overrides(overrides),
        **given,
    )
    with logging_to_stderr(log_format):
        end = _maintain(context, names, options, once=once, metrics=(metrics_host, metrics_port))
    if as_json:
        print_json([run.to_dict() for run in end.runs])
    leave(end, exit_code(end) if once else 0)


def open_scheduler(
    catalog: TableCatalog,
    names: Sequence[str],
    options: SchedulerOptions,
    registry: CollectorRegistry | None = None,
) -> tuple[Scheduler, SchedulerMetrics]:
    """A scheduler that logs and counts what it does, in a process that is tuned to last."""
    share_heaps()
    collect_seldom()
    watcher = SchedulerMetrics(catalog.environment.runtime.clock, registry)
    scheduler = Scheduler(catalog, names, options, observers=(log_run, watcher, release_after))
    watcher.watch(scheduler)
    return scheduler, watcher


def _maintain(
    context: CliContext,
    names: tuple[str, ...],
    options: SchedulerOptions,
    *,
    once: bool,
    metrics: tuple[str, int | None],
) -> SchedulerEnd:
    scheduler, watcher = open_scheduler(context.catalog, names, options)
    if once and not scheduler.tables():
        raise NotFoundError("no table has such a name", pattern=" ".join(names))
    host, port = metrics
    with _signals(scheduler), nullcontext() if port is None else watcher.serving(port, host=host):
        if once:
            end = scheduler.run_once()
            if not (end.runs or end.failed or end.was_stopped):
                logger.info("nothing was due")
            return end
        _log_start(names, len(scheduler.tables()), None if port is None else f"{host}:{port}")
        end = scheduler.run()
        logger.info("stopped")
        return end


def _log_start(names: tuple[str, ...], count: int, metrics: str | None) -> None:
    """A log that is empty could be that of a process that hangs."""
    if not count:
        logger.warning("no table has such a name yet: %s", " ".join(names))
        return
    where = "" if metrics is None else f"; metrics on {metrics}"
    logger.info("watching %s of %s%s", plural(count, "table"), " ".join(names), where)


@contextmanager
def _signals(scheduler: Scheduler) -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP stop the scheduler while the block runs."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        scheduler.stop()

    with handling_stops(stop):
        yield


def leave(end: SchedulerEnd, code: int) -> NoReturn:
    """End the process, with 3 if something was left behind, or with a code."""
    if end.abandoned:  # Python would wait for the threads that were left behind
        leave_at_once(code or EXIT_UNFINISHED)
    if end.is_looking:  # and for a request that nobody answers
        leave_at_once(code)
    sys.exit(code)


def exit_code(end: SchedulerEnd) -> int:
    """What `--once` ends with."""
    outcomes = {run.outcome for run in end.runs}
    if end.failed or Outcome.FAILED in outcomes:
        return EXIT_FAILED
    unfinished = end.was_stopped or end.abandoned or Outcome.BUSY in outcomes
    return EXIT_UNFINISHED if unfinished else 0
