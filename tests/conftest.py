"""How tests share the machine, and what they count: `goal("G4", kills=1)` of `tests.support.goals`.

One JVM serves one xdist worker, the other workers go on meanwhile. `-m quick` selects what
`scripts/test --quick` runs; one worker imports all other test modules nevertheless.
"""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest

from tests.support import goals, guard
from tests.support.memory_disk import memory_disk
from tests.support.spark_archive import spark_options

COUNTED = pytest.StashKey[goals.Counts]()
PROPERTY = "goals"
FOLDER = Path(__file__).parent
QUICK = "quick"
LONG_S = 7_200  # a long test is minutes by itself; beside others each may take many times that
QUICK_FOLDERS = frozenset({"unit", "property"})
os.environ.update(spark_options())  # commands that a test runs inherit them
if folder := memory_disk():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))  # of `tmp_path`, in all workers
NOT_QUICK = ("spark", "interop", "services", "slow", "long")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTED] = goals.Counts()
    config.pluginmanager.register(_Collector(config.stash[COUNTED]))
    guard.allows_servers = config.getoption("markexpr") != QUICK


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Modules and tests stay to the end: the garbage collector looks at them once.

    Else it spends six seconds of CPU in each worker while they are made, and more in the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of what is imported only because a name may have moved, one worker imports all."""
    is_another = getattr(config, "workerinput", {}).get("workerid", "gw0") != "gw0"
    elsewhere = collection_path.parent == FOLDER and collection_path.name not in QUICK_FOLDERS
    return True if is_another and elsewhere and config.getoption("markexpr") == QUICK else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Files of failed tests stay to be looked at, until the next run; others would fill memory."""
    if exitstatus == 0 and not hasattr(session.config, "workerinput"):
        shutil.rmtree(session.config._tmp_path_factory.getbasetemp(), ignore_errors=True)


class _Collector:
    """Adds up the counts of all reports, other workers' included."""

    def __init__(self, counted: goals.Counts) -> None:
        self._counted = counted

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":  # every test has one, and it knows everything
            for name, counts in report.user_properties:
                if name == PROPERTY:
                    assert isinstance(counts, list)
                    goals.merge(self._counted, {(each[0], each[1]): each[2] for each in counts})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item):
    yield
    counts = goals.take()
    if counts:
        item.user_properties.append((PROPERTY, counts))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counted = config.stash[COUNTED]
    if counted:
        whole = config.args_source is config.ArgsSource.TESTPATHS and guard.allows_servers
        terminalreporter.section("goals")
        for line in goals.table(counted, whole=whole):
            terminalreporter.write_line(line)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever shares a JVM runs in one xdist worker, so that one session serves it all."""
    for item in items:
        folder = item.path.relative_to(FOLDER).parts[0]
        if folder in QUICK_FOLDERS and not any(map(item.get_closest_marker, NOT_QUICK)):
            item.add_marker(QUICK)
        is_long, own = map(item.get_closest_marker, ("long", "timeout"))
        if is_long and not own:
            item.add_marker(pytest.mark.timeout(LONG_S))
        for marker in ("interop", "spark"):
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.xdist_group(marker))
                break


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails where xdist ignores groups: each worker would start every JVM and server, too."""
    if item.config.getoption("loadgroup", default=False) and "@" not in item.nodeid:
        assert item.get_closest_marker("xdist_group") is None, "pytest-xdist ignores groups"
