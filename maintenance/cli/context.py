"""What every command shares: the catalog options, the output, and how errors end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy.engine import make_url

from lock import LockError
from tableformat import Table, TableCatalog, open_catalog
from tableformat.catalog.sqlite_files import is_missing
from tableformat.errors import InvalidInputError, NotFoundError, TableError

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@dataclass(slots=True)
class CliContext:
    """The options before the command's name. The catalog is opened when it is first needed."""

    catalog_name: str
    properties: Mapping[str, str]
    opened: TableCatalog | None = None
    out: Console = field(default_factory=Console)
    err: Console = field(default_factory=lambda: Console(stderr=True))

    @property
    def catalog(self) -> TableCatalog:
        """The catalog named by `--catalog`, `--warehouse` and `--property`.

        Raises:
            NotFoundError: It is a file that is not there: most often a typing error.
        """
        catalog = self.new_catalog
        uri = str(catalog.environment.catalog.properties.get("uri", ""))
        url = make_url(uri) if uri.startswith("sqlite") else None
        if url is not None and is_missing(url):
            raise NotFoundError(
                f"there is no catalog at {url.database}",
                action="check --warehouse (or ICEFOLD_WAREHOUSE); 'icefold table create' makes one",
            )
        return catalog

    @property
    def new_catalog(self) -> TableCatalog:
        """As `catalog`, for the command that may make it."""
        if self.opened is None:
            self.opened = open_catalog(self.catalog_name, **self.properties)
        return self.opened

    def table(self, name: str) -> Table:
        """Load one table."""
        return self.catalog.load_table(name)


pass_context = click.make_pass_decorator(CliContext)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, default=str, indent=2))


def progress_bar(context: CliContext) -> Progress:
    """A bar on standard error while something takes long; nothing where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(
        *columns, console=context.err, transient=True, disable=not context.err.is_terminal
    )


def parse_properties(_ctx: click.Context, _param: click.Parameter, value: Any) -> dict[str, str]:
    """Click callback: repeated `KEY=VALUE` as a dict."""
    pairs: dict[str, str] = {}
    for item in value:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"{item!r} is not KEY=VALUE")
        if key in pairs:
            raise click.BadParameter(f"{key!r} is given twice")
        pairs[key] = text
    return pairs


class GuardedGroup(click.Group):
    """Turns the errors a user can cause into one line on standard error and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # what cannot be written is told here, not by the interpreter's end
        except TableError as error:
            _fail(f"{error.kind.value}: {error}")
        except LockError as error:
            _fail(f"lock: {error}")
        except BrokenPipeError:  # the reader of a pipe has seen enough
            _give_up_output()
            ctx.exit(0)
        except KeyboardInterrupt:
            _fail("interrupted", code=EXIT_INTERRUPTED)
        except OSError as error:
            if error.filename is not None:
                raise
            _give_up_output()
            _fail(f"the output cannot be written: {error.strerror}")
        return result


def _give_up_output() -> None:
    """Let what is still buffered go nowhere, or the interpreter complains about it at its end."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _fail(text: str, *, code: int = 1) -> NoReturn:
    click.echo(f"icefold: {text}", err=True)
    sys.exit(code)


def parse_columns(text: str | None) -> list[str] | None:
    """`a,b,c` as a list; None stays None."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidInputError("an empty column name", columns=repr(text))
    return names
