"""docs/many-tables.md: its options exist, its table is the code's, its file can be read."""

import re
from pathlib import Path

from maintenance.cli.ingest import ingest
from maintenance.cli.ingest_many import NAMES
from maintenance.cli.ingest_words import spelled
from tableformat.cdc.many.engine_choice import LOCAL_LAG_MAX
from tableformat.cdc.many.routing import Routing, TopicPattern
from tableformat.cdc.many.stream_file import parse_stream_file
from tableformat.cdc.many.table_options import MakingOptions, StreamOptions
from tests.support.option_tables import markdown

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "many-tables.md").read_text()


def test_options_named_are_those_of_the_command():
    known = {name for param in ingest.params for name in param.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named <= known | {"--remove"}
    assert set(map(spelled, NAMES)) <= named
    assert f"{LOCAL_LAG_MAX:,}" in PAGE


def test_table_of_options_is_that_of_the_code():
    assert markdown(MakingOptions) in PAGE


def test_file_on_the_page_routes_and_gives_options():
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = parse_stream_file(text, "page")
    routing = Routing(
        namespace="shop", include=[TopicPattern.of("pg.*")],
        exclude=file.exclude, routes=file.routes,
    )  # fmt: skip
    topics = ["pg.public.events_1", "pg.public.events_2", "pg.audit.log", "pg.public.tmp_x",
              "pg.public.orders", "pg.transaction"]  # fmt: skip
    assert routing.route(topics).tables == {
        "shop.audit_log": ("pg.audit.log",),
        "shop.events": ("pg.public.events_1", "pg.public.events_2"),
        "shop.orders": ("pg.public.orders",),
    }
    options = StreamOptions(namespace="shop", defaults=file.defaults, tables=file.tables)
    assert options.of("shop.orders").making.partition_by == ("day(created_at)", "bucket(16, id)")
    assert options.of("shop.events").making.columns == {"price": "decimal(20,4)"}
    assert options.of("shop.log").sink["schema-evolution"] == "add-columns"


def test_snippet_runs():
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(snippet, "docs/many-tables.md", "exec"), {})
