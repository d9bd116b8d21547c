"""Which topic goes where, and what the file says of it."""

from __future__ import annotations

import pytest

from tableformat.cdc.encodings import Encoding
from tableformat.cdc.many.routing import Route, Routing, TopicPattern
from tableformat.cdc.many.stream_file import parse_stream_file, read_stream_file
from tableformat.cdc.many.table_options import StreamOptions, TableOptions
from tableformat.errors import InvalidInputError


def routing(*include, exclude=(), routes=()):
    return Routing(
        namespace="shop",
        include=[TopicPattern.of(text) for text in include],
        exclude=[TopicPattern.of(text) for text in exclude],
        routes=[Route.of(*each) for each in routes],
    )


def test_topic_goes_to_the_table_of_its_last_part():
    found = routing("pg.public.*", exclude=["pg.public.tmp*"]).route(
        ["pg.public.orders", "pg.public.tmp1", "pg.other.lines", "__heartbeat.pg.public.x"]
    )
    assert found.tables == {"shop.orders": ("pg.public.orders",)}
    assert found.refused == {}


def test_first_route_that_fits_names_the_table_and_may_join_topics():
    routes = [
        (r"^pg\.public\.(?P<kind>\w+)_(\d+)$", "{kind}s"),
        ("pg.*.audit", "log.{schema}_{topic}"),
    ]
    found = routing("pg.*", routes=routes).route(
        ["pg.public.event_1", "pg.public.event_2", "pg.sales.audit"]
    )
    assert found.tables == {
        "shop.events": ("pg.public.event_1", "pg.public.event_2"),
        "log.sales_audit": ("pg.sales.audit",),
    }


def test_topics_that_meet_without_a_route_and_names_of_no_table_are_refused():
    found = routing("*").route(["a.x.orders", "a.y.orders", "a.x.o$d"])
    assert found.tables == {}
    assert "several topics would go to one table" in found.refused["a.x.orders"]
    assert "'shop.o$d' is no table name" in found.refused["a.x.o$d"]


def test_transaction_topic_is_left_out_and_a_table_of_that_name_is_not():
    taken = routing("pg.*").route(["pg.transaction", "pg.public.transaction", "pg.public.orders"])
    assert sorted(taken.tables) == ["shop.orders", "shop.transaction"]
    assert taken.table_of["pg.public.transaction"] == "shop.transaction"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tabels: {}", "t.yaml:1: unknown part 'tabels'; did you mean 'tables'?"),
        ("tables: [a", "t.yaml:1: not YAML"),
        pytest.param("[" * 3_000, "t.yaml:1: not YAML: nested too deeply", id="nested lists"),
        ("tables:\n  a: '\x00'", "t.yaml:2: not YAML: character U+0000 may not be in it"),
        ('tables:\n  a: "\\U00110000"', "t.yaml:2: not YAML: \\U of no character"),
        ("routes:\n - {topics: '^a{99999999999}', table: x}", "t.yaml:2: not a regular expression"),
        pytest.param(
            "exclude:\n - ^" + "(" * 3_000,
            "t.yaml:2: not a regular expression: nested too deeply",
            id="nested groups",
        ),
        ("a: 1\na: 2", "t.yaml:1: unknown part 'a'"),
        ("tables:\n  a: {key: id}\n  a: {key: id}", "t.yaml:3: 'a' is given twice"),
        ("tables:\n  a:\n    key: id\n    shards: x", "t.yaml:4: wrong value of option 'shards'"),
        ("defaults:\n  format: upsert", "t.yaml:2: format 'upsert' reads typed columns"),
        ("defaults:\n  format: nosuch", "t.yaml:2: unknown change format 'nosuch'"),
        ("routes:\n - {topics: x}", "t.yaml:2: a route has 'topics' and 'table'"),
        ("routes:\n - {topics: '^(', table: x}", "t.yaml:2: not a regular expression"),
        ("routes:\n - {topics: x, table: '{1}'}", "t.yaml:2: the route's pattern has no group '1'"),
        ("exclude: a", "t.yaml:1: 'exclude' is not a list"),
        ("defaults:\n  sequence: x", "t.yaml:2: option 'sequence' is given on the command line"),
        ("tables:\n  a:\n    key:", "t.yaml:3: a single value belongs here"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(text, line):
    with pytest.raises(InvalidInputError) as caught:
        parse_stream_file(text, "t.yaml", {"sequence": "source.lsn"})
    assert line in str(caught.value)


def test_file_that_is_not_utf8_is_told_with_its_line(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_bytes("exclude: []\ntables:\n  caf\xe9: {}\n".encode("latin-1"))
    with pytest.raises(InvalidInputError, match=r"t\.yaml:3: not UTF-8: byte 0xe9"):
        read_stream_file(path)


def test_pattern_that_a_later_python_may_read_otherwise_is_taken_without_a_word(recwarn):
    assert TopicPattern.of("^[[a]").match("[")
    assert not recwarn


def test_later_options_of_a_table_win_and_empty_parts_are_none():
    text = "exclude:\ndefaults: {shards: 2}\ntables:\n  '*': {shards: 3}\n  orders: {shards: 4}\n"
    file = parse_stream_file(text, "t.yaml")
    options = StreamOptions(namespace="shop", defaults=file.defaults, tables=file.tables)
    assert options.given_for("shop.orders")["shards"] == "4"
    assert options.given_for("shop.lines")["shards"] == "3"
    assert options.given_for("other.lines")["shards"] == "2"
    assert parse_stream_file("", "t.yaml").tables == ()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("pg.public.*", ["pg.public.*"]),
        (" pg.a.*, pg.b.* ,", ["pg.a.*", "pg.b.*"]),
        (r"^pg\.t_\d{1,3}$,pg.b", [r"^pg\.t_\d{1,3}$", "pg.b"]),
        (r"^pg\.(a{1,2}|b),^x[,(]y\(,z", [r"^pg\.(a{1,2}|b)", r"^x[,(]y\(", "z"]),
        (r"pg.[ab],pg.[!c]", ["pg.[ab]", "pg.[!c]"]),
        ("", []),
    ],
)
def test_comma_inside_of_a_pattern_does_not_end_it(text, parts):
    assert [each.text for each in TopicPattern.listed(text)] == parts


def test_comma_inside_of_an_entry_of_the_file_does_not_end_it():
    file = parse_stream_file(
        "tables:\n"
        "  a:\n"
        '    key: ["a,b", c]\n'
        '    partition-by: ["bucket(16, id)", month(at)]\n'
        '    columns: {price: "decimal(10,2)"}\n'
        '    encodings: {"a,b": us, c: ms}\n',
        "f.yaml",
    )
    ((_, given),) = file.tables
    making, values = TableOptions.of(given).making, TableOptions.of(given).choice.values
    assert making.key == ("a,b", "c")
    assert making.partition_by == ("bucket(16, id)", "month(at)")
    assert making.columns == {"price": "decimal(10,2)"}
    assert values.encodings == {"a,b": Encoding.MICROS, "c": Encoding.MILLIS}


def test_type_with_a_comma_and_no_quotes_is_told_with_its_line():
    text = "tables:\n  a:\n    columns: {price: decimal(10,2)}\n"
    with pytest.raises(InvalidInputError, match=r"f\.yaml:3: a comma within .* in quotes"):
        parse_stream_file(text, "f.yaml")


def test_type_that_is_none_is_told_with_its_line():
    text = "tables:\n  a:\n    key: id\n    columns: {price: lon}\n"
    with pytest.raises(InvalidInputError, match=r"f\.yaml:4: not an Iceberg type: 'lon' is no"):
        parse_stream_file(text, "f.yaml")
