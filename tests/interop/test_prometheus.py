"""Alerts and dashboard of deploy/ in Prometheus: its checker, and a server that scrapes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from maintenance.metrics import serving_metrics
from tests.support.observed_metrics import TABLE, observed_registries
from tests.support.ports import free_port

pytestmark = [pytest.mark.services, pytest.mark.slow]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yaml"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
HEALTHY = {'up{job="icefold-maintain"}': "1x200"}
# What an alert needs to see, each minute.
CASES = {
    "IcefoldMaintainDown": ('up{job="icefold-maintain"}', "0x200"),
    "IcefoldIngestDown": ('up{job="icefold-ingest"}', "0x200"),
    "IcefoldIngestBehind": ('icefold_ingest_backlog_events{table="a.b"}', "100001x200"),
    "IcefoldDeadLetters": ('icefold_ingest_dead_letters_total{table="a.b"}', "0+1x200"),
    "IcefoldPublishLate": ('icefold_staging_lag_seconds{table="a.b"}', "61x200"),
    "IcefoldSourceLate": ('icefold_source_lag_seconds{table="a.b"}', "301x200"),
    "IcefoldTaskFails": ('icefold_task_failures_in_a_row{table="a.b",task="compact"}', "3x200"),
    "IcefoldTableDown": ('icefold_table_up{table="a.b"}', "0x200"),
    "IcefoldCompactionBehind": ('icefold_table_dv_share{table="a.b"}', "0.41x200"),
    "IcefoldExpiryBehind": ('icefold_table_snapshots{table="a.b"}', "10001x200"),
}


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine (apt install prometheus)")
    return found


def promtool(*words: str | Path) -> None:
    command = [program("promtool"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_configuration_please_promtool() -> None:
    promtool("check", "rules", "--lint-fatal", ALERTS)
    promtool("check", "config", CONFIG)


def test_each_alert_fires_on_its_cause_and_no_other_does(tmp_path: Path) -> None:
    assert CASES.keys() == {rule["alert"] for rule in RULES}

    def fires(expression: str, count: int, minute: int) -> dict[str, Any]:
        samples = [{"labels": "{}", "value": count}] if count else []
        return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}

    firing = 'count(ALERTS{alertstate="firing"%s})'
    tests = [
        {
            "interval": "1m",
            "input_series": [
                {"series": name, "values": values}
                for name, values in (HEALTHY | {series: values}).items()
            ],
            "promql_expr_test": [
                # Without a `for` it fires in the first minute.
                *([fires(firing % "", 0, 0)] if "for" in rule else []),
                fires(firing % f',alertname="{alert}"', 1, 180),
                fires(firing % "", 1, 180),
            ],
        }
        for rule in RULES
        for alert, (series, values) in [(rule["alert"], CASES[rule["alert"]])]
    ]
    file = tmp_path / "cases.yaml"
    cases = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}
    file.write_text(yaml.safe_dump(cases))
    promtool("test", "rules", file)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Prometheus with the configuration of deploy/, its targets and times replaced."""
    binary = program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    registries = observed_registries(folder)
    ports = {job: free_port() for job in registries}
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    assert {each["job_name"] for each in config["scrape_configs"]} <= ports.keys()
    config["scrape_configs"] = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for job, port in ports.items()
    ]
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    with ExitStack() as stack:
        for job, registry in registries.items():
            stack.enter_context(serving_metrics(registry, ports[job], host="127.0.0.1"))
        process = subprocess.Popen(
            [binary, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while not has_scraped_twice(address):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield address


def ask(address: str, path: str, **parameters: str) -> Any:
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = json.load(answer)
    assert found["status"] == "success"
    return found["data"]


def has_scraped_twice(address: str) -> bool:
    try:
        return len(ask(address, "query", query="sum_over_time(up[1m]) >= 3")["result"]) == 2
    except OSError:
        return False


def test_server_scrapes_both_jobs(server: str) -> None:
    found = ask(server, "query", query="up")["result"]
    assert {each["metric"]["job"]: each["value"][1] for each in found} == {
        "icefold-maintain": "1",
        "icefold-ingest": "1",
    }


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_panel_shows_something(server: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        query = target["expr"].replace("$table", ".*").replace("$__rate_interval", "1m")
        found = ask(server, "query", query=query)["result"]
        assert found, query
        legends = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert all(legends <= each["metric"].keys() for each in found)


def test_variable_lists_the_table(server: str) -> None:
    [variable] = [v for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    metric, label = re.findall(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])[0]
    found = ask(server, "query", query=metric)["result"]
    assert {each["metric"][label] for each in found} == {TABLE}


def test_rules_are_loaded_and_evaluated_without_errors(server: str) -> None:
    [group] = ask(server, "rules")["groups"]
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in RULES]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    assert not [rule.get("lastError") for rule in group["rules"] if rule.get("lastError")]
