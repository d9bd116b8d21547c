"""Publishes and maintains tables every five minutes: `dagster dev -f icefold_job.py`.

Exit code 1: refused or failed, tried again. 3: another process holds a table's lock, no failure.
The catalog comes from the environment (ICEFOLD_CATALOG, ICEFOLD_WAREHOUSE, PYICEBERG_...).
"""

import subprocess

import dagster as dg

BUSY = 3


def icefold(context: dg.OpExecutionContext, *words: str) -> None:
    done = subprocess.run(["icefold", *words], capture_output=True, text=True, check=False)
    for line in (done.stdout + done.stderr).splitlines():
        context.log.info(line)
    if done.returncode == BUSY:
        context.log.warning("another process works on a table; the next run goes on")
    elif done.returncode:
        raise dg.Failure(done.stderr.strip().rpartition("\n")[2])


@dg.op(retry_policy=dg.RetryPolicy(max_retries=2, delay=60))
def publish(context: dg.OpExecutionContext) -> None:
    icefold(context, "resolve", "shop.orders")


@dg.op(ins={"after": dg.In(dg.Nothing)})
def maintain(context: dg.OpExecutionContext) -> None:
    icefold(context, "maintain", "shop.*", "--once", "--log-format", "json")


@dg.job
def keep_clean() -> None:
    maintain(after=publish())


defs = dg.Definitions(
    jobs=[keep_clean],
    schedules=[dg.ScheduleDefinition(job=keep_clean, cron_schedule="*/5 * * * *")],
)
