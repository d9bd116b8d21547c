"""Publishes and maintains tables every five minutes. Copy it to the folder of DAGs.

Exit code 1: refused or failed, tried again. 3: another process holds a table's lock, no failure.
The catalog comes from the worker's environment (ICEFOLD_CATALOG, ICEFOLD_WAREHOUSE, PYICEBERG_...).
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "icefold",
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
) as dag:
    publish = BashOperator(task_id="publish", bash_command="icefold resolve shop.orders")
    maintain = BashOperator(
        task_id="maintain",
        bash_command="icefold maintain 'shop.*' --once --log-format json",
        skip_on_exit_code=3,
        execution_timeout=timedelta(hours=6),
    )
    publish >> maintain
