"""`icefold maintain`, `status` and `report` as a person types them, in processes of their own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli
from maintenance.run_history import Ledger, load_ledger
from maintenance.settings import settings_text
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])


def rows(*ids):
    return pa.table({"id": list(ids), "note": ["x"] * len(ids)})


@pytest.fixture
def catalog(tmp_path):
    return tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))


@pytest.fixture
def orders(catalog):
    table = catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])
    table.append(rows(*range(100)))
    table.stage(upserts=rows(1, 200))
    return table


def run(tmp_path, *words):
    return CliRunner().invoke(cli, ["--warehouse", str(tmp_path / "warehouse"), *words])


def ok(tmp_path, *words):
    result = run(tmp_path, *words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def start(tmp_path, *words):
    code = "from maintenance.cli.start import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "--warehouse", str(tmp_path / "warehouse"), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.1)


def test_once_does_what_is_due_and_says_it_in_json_lines(tmp_path, orders):
    result = run(tmp_path, "maintain", "shop.*", "--once", "--log-format", "json", "--json")
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    logged = json.loads(line)
    assert (logged["task"], logged["outcome"], logged["table"]) == (
        "resolve", "done", "shop.orders",
    )  # fmt: skip
    assert logged["facts"]["deleted_rows"] == 1
    assert [run["task"] for run in json.loads(result.stdout)] == ["resolve"]
    assert orders.scan().to_arrow().num_rows == 101


def test_once_with_a_table_that_cannot_be_read_does_not_say_that_nothing_was_due(tmp_path, orders):
    Path(orders.metadata_location.removeprefix("file://")).unlink()
    result = run(tmp_path, "maintain", "shop.*", "--once")
    assert result.exit_code == 1
    assert "shop.orders" in result.stderr
    assert "nothing was due" not in result.stderr


def test_publish_says_in_its_summary_what_the_cycle_did(tmp_path, orders):
    ok(tmp_path, "maintain", "shop.orders", "--once")
    summary = orders.refresh().state.head("main").summary.additional_properties
    assert summary["icefold.cycle-staged-commits"] == "1"
    assert summary["icefold.cycle-deleted-rows"] == "1"
    assert int(summary["icefold.cycle-oldest-staged-ms"]) > 0
    assert {key for key in summary if key.startswith("icefold.cycle-ms.")} >= {
        "icefold.cycle-ms.read", "icefold.cycle-ms.index", "icefold.cycle-ms.match",
    }  # fmt: skip
    assert sum(key.startswith("icefold.cycle-") for key in summary) < 12


def test_freshness_is_the_age_of_the_oldest_staged_commit(tmp_path, orders):
    first = orders.state.head("staging").timestamp_ms
    time.sleep(0.05)
    orders.stage(upserts=rows(3))
    result = run(tmp_path, "maintain", "shop.orders", "--once", "--task", "resolve", "--json")
    head = orders.refresh().state.head("main")
    assert head.summary.additional_properties["icefold.cycle-oldest-staged-ms"] == str(first)
    (done,) = json.loads(result.stdout)
    assert done["facts"]["freshness_ms"] == head.timestamp_ms - first >= 50


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["maintain", "shop.nothing", "--once"], 1, "not-found"),
        (["maintain", "none.*", "--once"], 1, "no table has such a name"),
        (["maintain", "shop.orders", "--set", "compact.filez=3", "--once"], 1, "did you mean"),
        (["maintain", "shop.orders", "--set", "compact.files=x", "--once"], 1, "not a count"),
        (["maintain", "shop.orders", "--every", "soon"], 2, "not a duration"),
        (["maintain", "shop.orders", "--every", "1s", "--once"], 2, "exclude each other"),
        (["maintain", "shop.orders", "--task", "vacuum"], 2, "vacuum"),
        (["report", "shop.orders", "-o", "/nowhere/r.html"], 1, "cannot be written"),
        (["report", "shop.*", "-o", "/dev/null/r"], 1, "cannot be written"),
        (["report", "none.*"], 1, "no table has such a name"),
    ],
)
def test_wrong_call_is_one_clear_line(tmp_path, orders, words, code, text):
    result = run(tmp_path, *words)
    assert result.exit_code == code
    assert text in result.stderr.splitlines()[-1]


def test_report_of_a_pattern_is_a_folder_with_an_index(tmp_path, catalog, orders):
    catalog.create_table("shop.lost", SCHEMA, primary_key=["id"])
    lost = catalog.load_table("shop.lost").metadata_location
    Path(lost.removeprefix("file://")).unlink()
    folder = tmp_path / "pages"
    assert ok(tmp_path, "report", "shop.*", "-o", str(folder)) == f"wrote {folder}/index.html\n"
    assert {file.name for file in folder.iterdir()} == {"index.html", "shop.orders.html"}
    index = (folder / "index.html").read_text()
    assert 'href="shop.orders.html"' in index
    assert "cannot be read" in index
    assert "shop.lost" in index


def test_failing_table_makes_exit_code_1_and_the_others_are_done(tmp_path, catalog, orders):
    catalog.create_table(
        "shop.bad", SCHEMA, primary_key=["id"], properties={"icefold.maintain.compact.filez": "1"}
    )
    result = run(tmp_path, "maintain", "shop.*", "--once")
    assert result.exit_code == 1
    assert "shop.bad: cannot be maintained" in result.stderr
    assert orders.scan().to_arrow().num_rows == 101


@pytest.mark.slow
def test_sigterm_ends_the_process_cleanly_and_metrics_tell_what_it_did(tmp_path, orders):
    port = free_port()
    process = start(tmp_path, "maintain", "shop.*", "--metrics-port", str(port))

    def metrics():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
                return reply.read().decode()
        except OSError:
            return ""

    done = 'icefold_task_runs_total{outcome="done",table="shop.orders",task="resolve"} 1.0'
    try:
        wait_for(lambda: done in metrics())
        wait_for(lambda: 'icefold_staging_commits{table="shop.orders"} 0.0' in metrics())
        wait_for(lambda: 'icefold_table_data_files{table="shop.orders"} 2.0' in metrics())
        wait_for(lambda: "icefold_publish_freshness_seconds_count 1.0" in metrics())
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert re.search(r"INFO resolve done after .* shop.orders: published 1 staged", errors)
    first, *_, last = errors.splitlines()
    assert first.endswith(f"INFO watching 1 table of shop.*; metrics on 127.0.0.1:{port}")
    assert last.endswith("INFO stopped")


def test_status_tells_backlog_index_lock_and_triggers(tmp_path, orders):
    (before,) = json.loads(ok(tmp_path, "status", "shop.orders", "--json"))
    assert (before["backlog_snapshots"], before["backlog_rows"]) == (1, 2)
    assert before["index"]["state"] == "missing"
    ok(tmp_path, "maintain", "shop.orders", "--once")
    (after,) = json.loads(ok(tmp_path, "status", "shop.orders", "--json"))
    assert (after["backlog_snapshots"], after["lag_ms"]) == (0, 0)
    assert after["index"]["state"] == "current"
    assert after["index"]["size_bytes"] > 0
    assert after["lock"]["holder"] is None
    assert after["dv_share"] == pytest.approx(1 / 102)
    assert [(c["staged_commits"], c["deleted_rows"]) for c in after["cycles"]] == [(1, 1)]
    assert sum(each["files"] for each in after["sizes"]) == 2
    tasks = {task["task"]: task for task in after["tasks"]}
    assert not any(task["is_due"] for task in tasks.values())
    assert "files 2 of 64" in tasks["compact"]["why"]
    assert [run["task"] for run in after["runs"]] == ["resolve"]


def test_status_for_people_fits_a_screen_and_survives_markup_in_errors(tmp_path, orders):
    text = ok(tmp_path, "status", "shop.orders")
    for word in ("staged, waiting", "lag", "index", "lock", "compact", "remove-orphans"):
        assert word in text
    assert len(text.splitlines()) < 45
    orders.set_properties({"icefold.maintain.[bold]": "1"})
    assert "[bold]" in ok(tmp_path, "status", "shop.orders")


def test_status_of_several_tables_is_one_line_each(tmp_path, catalog, orders):
    catalog.create_table("shop.other", SCHEMA, primary_key=["id"])
    lines = ok(tmp_path, "status", "shop.*").splitlines()
    assert sum(line.strip().startswith("shop.") for line in lines) == 2


def test_settings_are_listed_as_text_that_fits_the_terminal(tmp_path):
    lines = ok(tmp_path, "maintain", "--settings").splitlines()
    at = lines.index("icefold.maintain.compact.files=64")
    assert lines[at + 1] == "    Data files added since then that start one."
    assert not any("`" in line or "|" in line for line in lines)
    narrow = settings_text(40).splitlines()
    assert max(len(line) for line in narrow if line.startswith(" ")) <= 40  # names stay whole


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"records": {"x": {}}, "runs": []}'])
def test_damaged_ledger_counts_as_empty(tmp_path, content):
    path = tmp_path / "ledger.json"
    path.write_bytes(content)
    assert load_ledger(path) == Ledger()
