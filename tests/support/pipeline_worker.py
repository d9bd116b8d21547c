"""Runs `icefold` commands, a JSON list per line of its input, in one process with one Spark."""

from __future__ import annotations

import contextlib
import io
import json
import sys

import click

from maintenance.cli.main import main


def _run(words: list[str]) -> dict[str, object]:
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["icefold", *words]
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except click.exceptions.Exit as end:
            status = end.exit_code
    return {"status": status, "out": out.getvalue(), "err": err.getvalue()}


for line in sys.stdin:
    answer = _run(json.loads(line))
    print(json.dumps(answer), flush=True)
