"""The documentation's site: its reference is the code's, its pages load nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from maintenance.cli.table_properties import check_settings
from resolver import resolve
from tableformat.codec.parquet.options import parquet_options
from tableformat.commit.merging import merge_policy
from tableformat.commit.property_check import check_properties
from tableformat.commit.retry import commit_retry_policy, status_check_policy
from tableformat.errors import InvalidInputError
from tableformat.spec import names
from tests.support.headless_browser import HeadlessBrowser, png_size
from tests.support.memory_tables import memory_catalog

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
from reference_pages import ICEBERG_PROPERTIES, reference_pages  # noqa: E402

pytestmark = pytest.mark.xdist_group("site")  # built once, not by every worker
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)")


@pytest.fixture(scope="module")
def reference():
    return dict(reference_pages())


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/nowhere", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Asked(dict[str, str]):
    """Properties that remember which names were asked for."""

    def __init__(self, *given):
        super().__init__(*given)
        self.names = set()

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)


@pytest.mark.parametrize(
    "parse", [parquet_options, commit_retry_policy, status_check_policy, merge_policy]
)
def test_properties_of_iceberg_are_listed_with_the_defaults_of_the_code(parse):
    asked = Asked()
    defaults = parse(asked)
    listed = {name: str(value) for name, value, _ in ICEBERG_PROPERTIES}
    assert asked.names
    assert asked.names <= listed.keys()
    assert parse({name: listed[name] for name in asked.names}) == defaults


def test_properties_of_iceberg_that_are_listed_are_in_the_code():
    code = "".join(path.read_text() for path in (ROOT / "tableformat").rglob("*.py"))
    code += "".join(path.read_text() for path in (ROOT / "maintenance").rglob("*.py"))
    for name, _, _ in ICEBERG_PROPERTIES:
        last = name.removesuffix(".<name>").rpartition(".")[2]
        assert last in code, name


def test_own_properties_that_are_listed_are_known_to_the_commands(reference):
    listed = set(re.findall(r"`(icefold\.[a-z.-]+)`", reference["reference/properties.md"]))
    assert {"icefold.publish", "icefold.maintain.resolve.age-ms"} < listed
    assert [name for name in listed if "no such table property" in refusal(name)] == []
    assert "no such table property" in refusal("icefold.nothing")


def refusal(name):
    try:
        check_settings({name: "?"})
        check_properties({name: "?"})
    except InvalidInputError as error:
        return str(error)
    return ""


def test_summary_keys_that_are_written_are_listed(reference, tmp_path):
    orders = memory_catalog(str(tmp_path / "index")).create_table(
        "shop.orders", pa.schema([("id", pa.int64())]), primary_key=["id"]
    )
    orders.append(pa.table({"id": [1]}))
    for batch in range(2):
        rows = pa.table({"id": [batch], "op": ["u"]})
        orders.write_changes(rows, options={"kind-column": "op"}, query_id="q", batch_id=batch)
    resolve(orders)
    listed = re.findall(r"^\| `(.+?)` \|", reference["reference/summary-keys.md"], re.MULTILINE)
    written = {
        key for snapshot in orders.snapshots() for key in snapshot.summary.additional_properties
    }
    own = {key for key in written if key.startswith(("icefold.", "equality-convert"))}
    assert len(own) > 12
    families = tuple(key for key in listed if key.endswith("."))
    assert {key for key in own if key not in listed and not key.startswith(families)} == set()


def test_every_stored_name_is_on_a_page(reference):
    stored = [
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and not name.endswith(("_DEFAULT", "_BRANCH"))
    ]
    pages = reference["reference/summary-keys.md"] + reference["reference/properties.md"]
    assert len(stored) > 20
    assert [value for value in stored if f"`{value}`" not in pages] == []


def test_page_of_commands_has_every_command_and_option(reference):
    page = reference["reference/command-line.md"]
    assert "## icefold table set-key" in page
    assert "`--from-staging-state`" in page
    assert page.count("## icefold") > 40


@pytest.mark.slow
def test_site_is_built_strictly_and_loads_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    assert {url for page in pages for url in LOADED.findall(page.read_text())} == set()


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize("width", [500, 1400])
def test_page_is_laid_out_by_a_real_browser(site, tmp_path, width):
    browser = HeadlessBrowser(tmp_path)
    assert png_size(browser.screenshot(site / "index.html", width=width))[0] == width
    assert "Beside what you use today" in browser.dom(site / "index.html")
