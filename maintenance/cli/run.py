"""`icefold run`: a stream into many tables, and all maintenance of those, in one process."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click
from prometheus_client import CollectorRegistry

from maintenance.cli import registry_options
from maintenance.cli.context import CliContext, pass_context
from maintenance.cli.ingest import EXIT_DEAD_LETTERS, given_format, ingest, is_left_over
from maintenance.cli.ingest_many import NAMES, Heard, ManyRequest, many_request, stream_runner
from maintenance.cli.ingest_stream import Interrupt, interrupt_event
from maintenance.cli.ingest_words import IngestWords
from maintenance.cli.maintain import leave, maintain, open_scheduler
from maintenance.cli.stream_stop import Run, StreamStop
from maintenance.ingest_watch import IngestWatch
from maintenance.logs import logging_to_stderr
from maintenance.metrics import serving_metrics
from maintenance.scheduler import Scheduler, SchedulerEnd
from maintenance.scheduler_options import SchedulerOptions
from maintenance.settings import TaskName, parse_overrides
from tableformat import TableCatalog
from tableformat.recent_store import RecentStore

# What is staged here is published at once, unless the table says how much shall wait.
AT_ONCE = {"resolve.commits": 1.0}
OF_INGEST = (
    "kafka", *(name for name in NAMES if name != "dry_run"), "format_name", "options", "query_id",
    "batch_events", "interval_s", "connector_jars", "kafka_options", "allow_dead_letters",
    "as_json", *registry_options.NAMES,
)  # fmt: skip
OF_MAINTAIN = (
    "tasks", "overrides", "parallel_max", "staging", "target", "grace_ms",
    "metrics_port", "metrics_host", "log_format",
)  # fmt: skip
logger = logging.getLogger("icefold.run")


def _options_of(command: click.Command, names: tuple[str, ...]) -> list[click.Parameter]:
    return [each for each in command.params if each.name in names]


@click.command("run", params=_options_of(ingest, OF_INGEST) + _options_of(maintain, OF_MAINTAIN))
@pass_context
@click.pass_context
def run(
    click_context: click.Context,
    context: CliContext,
    /,
    tasks: tuple[str, ...],
    overrides: dict[str, str],
    parallel_max: int,
    staging: str,
    target: str,
    grace_ms: int,
    **given: Any,
) -> None:
    """Bring many topics of Kafka into many tables, and maintain those: one process for all.

    What `icefold ingest --topics ... --into NAMESPACE --follow` does, and `icefold maintain
    'NAMESPACE.*'`, with one log and one set of metrics; what is staged is published at once. Ends
    on SIGTERM or SIGINT; a second one does not wait for what is running.

    The exit code is 0 after a stop; 1: the stream cannot go on; 3: tables are set aside, bad
    records were put aside, or something was left behind.
    """
    typed = given_format(click_context)
    words = IngestWords(**given, given_format=typed, branch=staging, follow=True)
    request = many_request(words, registry_options.registry_decoder(words))
    if request is None:
        raise click.UsageError("name --kafka, --topics and --into")
    scheduling = SchedulerOptions(
        tasks=tuple(TaskName(task) for task in tasks) or tuple(TaskName),
        overrides=parse_overrides(overrides),
        defaults=AT_ONCE,
        parallel_max=parallel_max,
        staging=staging,
        target=target,
        grace_ms=grace_ms,
    )
    with logging_to_stderr(words.log_format):
        heard, end = _run(context, request, scheduling)
    heard.tell(request)
    is_left = is_left_over(heard, allow_dead_letters=words.allow_dead_letters)
    leave(end, EXIT_DEAD_LETTERS if is_left else 0)


def _run(
    context: CliContext, request: ManyRequest, options: SchedulerOptions
) -> tuple[Heard, SchedulerEnd]:
    opened, registry = context.new_catalog.environment, CollectorRegistry()
    environment = replace(opened, store=RecentStore(opened.store))
    catalog = TableCatalog(environment)
    namespace = request.settings.routing.namespace
    watch = IngestWatch(namespace, environment.runtime.clock, is_many=True, registry=registry)
    host, port = request.words.metrics_host, request.words.metrics_port
    with ExitStack() as stack:
        stack.callback(watch.line)
        if port is not None:
            stack.enter_context(serving_metrics(registry, port, host=host))
        catalog.create_namespace(namespace)  # and the warehouse, where leases are
        scheduler, _ = open_scheduler(catalog, [f"{namespace}.*"], options, registry)
        heard = Heard(watch, on_staged=scheduler.wake, publishes=scheduler.is_publishing)
        ending = StreamStop(options.grace_ms)
        stream = stream_runner(stack, request, environment, heard, ending)
        assert not isinstance(stream, dict)

        def again() -> None:
            stop_now(scheduler)
            ending.again()

        interrupted = stack.enter_context(interrupt_event(ending.first, again))
        where = "" if port is None else f"; metrics on {host}:{port}"
        logger.info("streaming into %s and maintaining it%s", namespace, where)
        end = run_together(scheduler, stream, interrupted)
        logger.info("stopped")
        return heard, end


def run_together(scheduler: Scheduler, stream: Run, interrupted: Interrupt) -> SchedulerEnd:
    """Run a stream in this thread and a scheduler beside it, until a signal or the stream's end.

    Raises:
        TableError: The stream's, when the scheduler has stopped.

    Effects: those of both. The stream stops first; what it has staged and nobody has published yet
    is for the next run, or whoever else maintains the tables.
    """
    ends: list[SchedulerEnd] = []
    beside = threading.Thread(target=lambda: ends.append(scheduler.run()), name="scheduler")
    beside.start()
    try:
        stream(lambda: interrupted.is_set() or not beside.is_alive())
    finally:
        scheduler.stop()
        beside.join()
    if not ends:
        raise RuntimeError("the scheduler has failed; see the log")
    return ends[0]


def stop_now(scheduler: Scheduler) -> None:
    """Wait for nothing that is running."""
    scheduler.stop()
    scheduler.stop()
