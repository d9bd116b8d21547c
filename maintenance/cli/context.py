"""What every command shares: the catalog options, the output, and how errors end."""

from __future__ import annotations

import base64
import codecs
import csv
import difflib
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from io import TextIOWrapper
from types import FrameType
from typing import Any, NoReturn, TextIO

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lock import LockError
from maintenance.logs import error_text
from tableformat import Table, TableCatalog, open_catalog
from tableformat.errors import InvalidInputError, NotFoundError, TableError

EXIT_INTERRUPTED = 128 + signal.SIGINT  # as shells have it
# What ends a command, SIGHUP when its terminal is closed; ignored below `nohup`, and so here.
ENDINGS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "hung up",
}
_STANDARD = (signal.SIG_DFL, signal.default_int_handler)
_SENT_AGAIN_S = 0.01  # the finalizer that a signal has met is over by then, or meets it again
WIDTH, WIDTH_MIN = 80, 20  # characters, of a terminal that says none; of one that can be read


@dataclass(slots=True)
class CliContext:
    """The options before the command's name. The catalog is opened when it is first needed."""

    catalog_name: str
    properties: Mapping[str, str]
    opened: TableCatalog | None = None
    out: Console = field(default_factory=lambda: _console())
    err: Console = field(default_factory=lambda: _console(stderr=True))

    @property
    def catalog(self) -> TableCatalog:
        """The catalog named by `--catalog`, `--warehouse` and `--property`.

        Raises:
            NotFoundError: It is a file that is not there: most often a typing error.
        """
        catalog = self.new_catalog
        uri = str(catalog.environment.catalog.properties.get("uri", ""))
        if uri.startswith("sqlite"):
            _check_there(uri)
        return catalog

    @property
    def new_catalog(self) -> TableCatalog:
        """As `catalog`, for the command that may make it."""
        if self.opened is None:
            self.opened = open_catalog(self.catalog_name, **self.properties)
        return self.opened

    def table(self, name: str) -> Table:
        """Load one table; the error about one that is not there names the nearest."""
        catalog = self.catalog
        try:
            return catalog.load_table(name)
        except NotFoundError as error:
            with suppress(TableError):
                known = catalog.list_tables()
                if name not in known:  # else a file of it is not there
                    error.action = _point_to(name, known)
            raise

    def check_namespace(self, name: str) -> None:
        """A word that is no namespace is a typing error, not an empty one.

        Raises:
            NotFoundError: There is no such namespace; names the nearest.
        """
        known = self.catalog.list_namespaces()
        if name not in known:
            action = _point_to(name, known)
            raise NotFoundError("there is no such namespace", namespace=name, action=action)


def _console(*, stderr: bool = False) -> Console:
    """A console that shows something: Rich prints nothing where `COLUMNS=0`, as of no terminal."""
    made = Console(stderr=stderr)
    if made.width < WIDTH_MIN:  # else it follows the terminal
        made.width = WIDTH_MIN if made.width > 0 else WIDTH
    return made


def _check_there(sqlite_uri: str) -> None:
    from sqlalchemy.engine import make_url  # a catalog of another kind does without

    from tableformat.catalog.sqlite_files import is_missing

    url = make_url(sqlite_uri)
    if is_missing(url):
        raise NotFoundError(
            f"there is no catalog at {url.database}",
            action="check --warehouse (or ICEFOLD_WAREHOUSE); 'icefold table create' makes one",
        )


def _point_to(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else "icefold table list shows all tables"


pass_context = click.make_pass_decorator(CliContext)
_CSV = "icefold.csv"  # in a click context's meta: what `print_json` prints


def _choose_format(ctx: click.Context, _param: click.Parameter, value: str | None) -> bool:
    """Whether output is for programs; `print_json` then prints it as was asked."""
    ctx.meta[_CSV] = value == "csv"
    return value in ("json", "csv")


def json_option(command: Any) -> Any:
    """`--format table|json|csv` as `as_json`, true for the last two; `--json` is short for json."""
    formats = click.option(
        "--format",
        "as_json",
        type=click.Choice(["table", "json", "csv"]),
        callback=_choose_format,
        help="For people, or for programs.  [table]",
    )
    short = click.option(
        "--json", "as_json", flag_value="json", callback=_choose_format,
        help="Short for --format json.",
    )  # fmt: skip
    return formats(short(command))


def with_options(*options: Any) -> Callable[[Any], Any]:
    """One decorator that gives a command several options, in this order."""

    def decorate(command: Any) -> Any:
        return reduce(lambda made, option: option(made), reversed(options), command)

    return decorate


def say(text: str) -> None:
    """A line for people, on standard output; what a terminal would obey is escaped.

    Names and values in it are what anybody who writes to the table likes.
    """
    shown = (each if each.isprintable() else ascii(each)[1:-1] for each in text)
    click.echo("".join(shown))


json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def print_json(value: object) -> None:
    """One JSON document on standard output; with `--format csv` its records as rows of text."""
    if click.get_current_context().meta.get(_CSV):
        _print_csv(value)
        return
    click.echo(json_text(value, indent=2))


def json_text(value: object, indent: int | None = None) -> str:
    """JSON; NaN and Infinity, which it lacks, are the texts that `ingest` reads as them."""
    try:
        return json.dumps(value, default=json_value, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(_finite(value), default=json_value, indent=indent)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return list(map(_finite, value)) if isinstance(value, list | tuple) else value


def json_value(value: object) -> str:
    """What JSON has no form for: bytes as base64, everything else as its text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def csv_cell(value: object) -> object:
    """Lists and objects as JSON, bytes as base64, everything else as its text."""
    if isinstance(value, list | tuple | Mapping):
        return json_text(value)
    return json_value(value) if isinstance(value, bytes) else value


def _print_csv(value: object) -> None:
    """Records as rows; lists and objects inside them as JSON."""
    records = value if isinstance(value, list) else [value]
    rows = [each if isinstance(each, Mapping) else {"name": each} for each in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    write_csv(names, rows)


def write_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A line of names, if there are any, and one for each row, on standard output.

    Raises:
        InvalidInputError: Its encoding has no such character; CSV has no other form for one.
    """
    writer = csv.writer(sys.stdout, lineterminator="\n")
    try:
        with encoding_errors(sys.stdout, "strict"):
            writer.writerows([names] if names else ())
            writer.writerows([csv_cell(row.get(name)) for name in names] for row in rows)
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            "the output cannot be written: its encoding has no such character",
            character=ascii(error.object[error.start]),
            encoding=error.encoding,
            action="set PYTHONIOENCODING=utf-8, or print JSON, which escapes it",
        ) from error


class TableName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """The name of a table; the shell completes it from the catalog."""

    name = "table"

    def convert(
        self, value: object, _param: click.Parameter | None, _ctx: click.Context | None
    ) -> str:
        """As it is."""
        return str(value)

    def shell_complete(
        self, ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Tables whose names begin so; none when the catalog cannot be asked."""
        given = ctx.find_root().params
        properties = dict(given.get("properties") or {})
        if given.get("warehouse") is not None:
            properties["warehouse"] = given["warehouse"]
        try:
            known = CliContext(str(given.get("catalog_name")), properties).catalog.list_tables()
        except (TableError, OSError):
            return []
        return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def table_argument(command: Any) -> Any:
    """The argument TABLE, as `table_name`."""
    return click.argument("table_name", metavar="TABLE", type=TableName())(command)


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


class ListedGroup(click.Group):
    """Lists its commands by their whole first sentence, on as many lines as it takes."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group.format_commands`, which cuts the sentences."""
        sentences = [
            (name, command.get_short_help_str(limit=sys.maxsize))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(sentences)


class GuardedGroup(ListedGroup):
    """Turns the errors a user can cause into one line on standard error and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            with _endings_interrupt(), encoding_errors(sys.stdout, "backslashreplace"):
                result = super().invoke(ctx)
            sys.stdout.flush()  # what cannot be written is told here, not by the interpreter's end
        except (TableError, LockError) as error:
            _fail(error_text(error))
        except BrokenPipeError:  # the reader of a pipe has seen enough
            _give_up_output()
            ctx.exit(0)
        except _Ended as ended:
            _fail(ended.word, code=128 + ended.number)
        except KeyboardInterrupt:
            _fail("interrupted", code=EXIT_INTERRUPTED)
        except OSError as error:
            _fail_output(error)
        return result


@contextmanager
def telling_lost_output() -> Iterator[None]:
    """Around the whole command line: `--help` and `--version` print before a command is run.

    Raises:
        SystemExit: What was printed cannot be written; or the reader of a pipe has left.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _give_up_output()
        sys.exit(0)
    except OSError as error:
        _fail_output(error)


class _Ended(KeyboardInterrupt):
    """A signal ends a command as Ctrl-C does: locks are given up and files closed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.word = number, ENDINGS[signal.Signals(number)]


@contextmanager
def encoding_errors(file: TextIO, errors: str) -> Iterator[None]:
    r"""What becomes of characters that the file's encoding lacks: Latin-1, or ASCII by LC_ALL=C.

    For people they are written as `\u2192`, as Python does on standard error. UTF-8 has them all.
    """
    if not isinstance(file, TextIOWrapper) or codecs.lookup(file.encoding).name == "utf-8":
        yield
        return
    before = file.errors
    file.reconfigure(errors=errors)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):  # it flushes: who flushes next is told
            file.reconfigure(errors=before)


@contextmanager
def _endings_interrupt() -> Iterator[None]:
    """Unless the process does something else with the signal, or this is not its main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDINGS if is_main}
    taken = {number: each for number, each in before.items() if each in _STANDARD}
    arrived: list[_Ended] = []

    def end(number: int, _frame: FrameType | None) -> None:
        arrived.append(_Ended(number))
        raise arrived[-1]

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        # Python only prints what is raised in a finalizer: the command would go on.
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            tell(lost)
            return
        number = getattr(lost.exc_value, "number", signal.SIGINT)
        threading.Timer(_SENT_AGAIN_S, os.kill, (os.getpid(), number)).start()

    tell, sys.unraisablehook = sys.unraisablehook, send_again
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    except Exception:
        if arrived:  # pydantic and others make another error of whatever is raised below them
            raise arrived[0] from None
        raise
    finally:
        sys.unraisablehook = tell
        for number, handler in taken.items():
            signal.signal(number, handler)


@contextmanager
def handling_stops(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """`handler` is called by Ctrl-C and by what else ends a command, while the block runs.

    A SIGHUP that the caller ignores (`nohup`) stays ignored.
    """
    before = {
        number: signal.getsignal(number)
        for number in ENDINGS
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def _give_up_output() -> None:
    """Let what is still buffered go nowhere, or the interpreter complains about it at its end."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _fail_output(error: OSError) -> NoReturn:
    """End as what cannot print does; an error of a file that has a name, or of a server, is other.

    Those, and what Arrow says of its files, nobody has foreseen: a traceback tells where they are.
    """
    is_system = error.strerror == os.strerror(error.errno or 0)
    if error.filename is not None or isinstance(error, ConnectionError) or not is_system:
        raise error
    _give_up_output()
    _fail(f"the output cannot be written: {error.strerror}")


def _fail(text: str, *, code: int = 1) -> NoReturn:
    with suppress(OSError):  # standard error is full, or its terminal is gone
        click.echo(f"icefold: {text}", err=True)
    sys.exit(code)


def check_in_place(staging: str, target: str) -> None:
    """Refuse a `--target` that is the staging branch only because nobody named another one.

    A conversion in place there makes its waiting changes unpublishable on `main`.

    Raises:
        InvalidInputError: `--staging` was not given, and its default is the target.
    """
    source = click.get_current_context().get_parameter_source("staging")
    if staging == target and source is ParameterSource.DEFAULT:
        raise InvalidInputError(
            "the branch that changes wait on is no target: converted in place, they could not be "
            "published any more",
            target=target,
            action=f"leave --target out to publish on main; or give --staging {target}, too, if "
            "that branch is read itself and never published",
        )


def parse_columns(text: str | None) -> list[str] | None:
    """`a,b,c` as a list; None stays None."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidInputError("an empty column name", columns=repr(text))
    return names
