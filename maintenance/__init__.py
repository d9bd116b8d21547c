"""Everything that runs on a schedule, the status view and the command line.

What is offered here (`maintenance.public`) is imported when it is first asked for: the `icefold`
script goes through this module, and tells what goes wrong while all else is imported
(`maintenance.cli.start`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maintenance.public import *  # noqa: F403


def __getattr__(name: str) -> object:
    return getattr(import_module("maintenance.public"), name)
