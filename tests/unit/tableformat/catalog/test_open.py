from __future__ import annotations

from pathlib import Path

import pytest

from tableformat.backend import absolute_location, open_backend
from tableformat.catalog.keyed import real_catalog
from tableformat.catalog.rest import RestCatalog
from tableformat.catalog.sql import SqlCatalog
from tableformat.errors import CommitConflictError, InvalidInputError, UnsupportedError
from tests.support.bucket_servers import bucket_of
from tests.support.table_metadata import append_updates, create

SECRET = "s3cret-of-the-test"


@pytest.fixture(autouse=True)
def _no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def configure(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / ".pyiceberg.yaml").write_text(text)


def test_local_catalog_needs_nothing(tmp_path: Path) -> None:
    environment = open_backend("local", {})
    state = create(environment.catalog, ("shop", "orders"))
    assert (tmp_path / "warehouse" / "icefold.db").exists()
    assert state.metadata.location == f"file://{tmp_path}/warehouse/shop/orders"
    assert environment.store.size_bytes(state.metadata_location) > 0


@pytest.mark.parametrize("spelling", ["wh", "./wh", "{}/wh", "file://{}/wh", "file:{}/wh/"])
def test_warehouse_may_be_spelled_in_any_way(tmp_path: Path, spelling: str) -> None:
    environment = open_backend("local", {"warehouse": spelling.format(tmp_path)})
    assert environment.catalog.properties["warehouse"] == f"file://{tmp_path}/wh"


def test_sql_without_uri_is_local_under_any_name(tmp_path: Path) -> None:
    environment = open_backend("mine", {"type": "sql", "warehouse": "wh"})
    create(environment.catalog, ("shop", "orders"))
    assert environment.catalog.name == "mine"
    assert (tmp_path / "wh" / "icefold.db").exists()


def test_local_warehouse_on_s3_needs_a_uri() -> None:
    with pytest.raises(InvalidInputError, match="local warehouse"):
        open_backend("local", {"warehouse": "s3://bucket/wh"})


def test_sql_with_uri_needs_a_warehouse(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="warehouse"):
        open_backend("c", {"uri": f"sqlite:///{tmp_path}/c.db"})


def test_configured_catalog_is_found_and_given_properties_win(tmp_path: Path) -> None:
    configure(
        tmp_path,
        f"catalog:\n  prod:\n    type: sql\n    uri: sqlite:///{tmp_path}/p.db\n"
        f"    warehouse: {tmp_path}/a\n    init: true\n",
    )
    environment = open_backend("prod", {"warehouse": f"{tmp_path}/b", "missing": None})
    assert isinstance(real_catalog(environment.catalog), SqlCatalog)
    assert environment.catalog.properties["warehouse"] == f"file://{tmp_path}/b"
    create(environment.catalog, ("shop", "orders"))
    assert (tmp_path / "p.db").exists()


def test_environment_variables_configure_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", "http://127.0.0.1:1")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__TOKEN", SECRET)
    environment = open_backend("prod", {})
    assert isinstance(real_catalog(environment.catalog), RestCatalog)
    assert SECRET not in repr(environment)


def test_unknown_catalog_is_one_clear_line() -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_backend("nowhere", {})
    assert "catalog is not configured" in str(caught.value)
    assert "nowhere" in str(caught.value)


def test_folder_that_no_database_url_can_name_is_refused(tmp_path: Path) -> None:
    """SQLite would open the part before the mark, which other folders have as well."""
    with pytest.raises(InvalidInputError, match="path has a \\?"):
        open_backend("local", {"warehouse": f"{tmp_path}/a?b"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["hive", "glue", "dynamodb", "bigquery", "in-memory"])
def test_other_catalog_type_is_unsupported(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="known=sql, rest"):
        open_backend("c", {"type": kind, "uri": "thrift://h"})


def test_broken_configuration_shows_no_secret(tmp_path: Path) -> None:
    configure(tmp_path, f"catalog:\n  prod:\n   token: {SECRET}\n  - broken\n")
    with pytest.raises(InvalidInputError, match="cannot be read") as caught:
        open_backend("prod", {})
    assert SECRET not in str(caught.value)


def test_rest_needs_a_uri() -> None:
    with pytest.raises(InvalidInputError, match="uri"):
        open_backend("c", {"type": "rest"})


def test_rest_connects_only_when_used() -> None:
    open_backend("c", {"uri": "http://127.0.0.1:1"})


def test_allowed_locations_widen_where_tables_may_be(tmp_path: Path) -> None:
    given = {"warehouse": "wh", "allowed-locations": f"{tmp_path}/more, s3://bucket/x"}
    allowed = open_backend("local", given).store.allowed
    assert allowed.covers(f"{tmp_path}/wh/t")
    assert allowed.covers(f"{tmp_path}/more/t")
    assert allowed.covers("s3a://bucket/x/t")
    assert not allowed.covers(f"{tmp_path}/other/t")


@pytest.mark.parametrize("cloud", ["s3", "gcs", pytest.param("azure", marks=pytest.mark.services)])
def test_tables_in_a_bucket_are_kept_in_a_sql_catalog(cloud: str, tmp_path: Path) -> None:
    properties, bucket = bucket_of(cloud)
    warehouse = f"{bucket}/wh"
    given = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": warehouse, **properties}
    environment = open_backend("c", given)
    base = create(environment.catalog, ("shop", "orders"))
    assert base.metadata.location == f"{warehouse}/shop/orders"
    state = environment.catalog.commit(base, append_updates(base.metadata))
    with pytest.raises(CommitConflictError):
        environment.catalog.commit(base, append_updates(base.metadata))
    again = open_backend("c", given)
    assert again.catalog.load_table(("shop", "orders")).metadata == state.metadata
    assert len(list(again.store.list_prefix(warehouse))) == 2, "the loser's file is gone"


def test_root_is_no_warehouse() -> None:
    with pytest.raises(InvalidInputError):
        open_backend("local", {"warehouse": "/"})


def test_warehouse_above_the_working_folder_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert absolute_location("a/../b") == f"file://{tmp_path}/b"


def test_moved_warehouse_is_used_through_a_link_at_its_old_place(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    create(open_backend("local", {"warehouse": str(old)}).catalog, ("shop", "orders"))
    old.rename(new)
    old.symlink_to(new)
    for given in (
        {"warehouse": str(old)},
        {"warehouse": "old"},
        {"warehouse": str(new), "allowed-locations": str(old)},
    ):
        base = open_backend("local", given).catalog.load_table(("shop", "orders"))
        assert base.metadata.location == f"file://{old}/shop/orders"
    with pytest.raises(InvalidInputError, match="allowed-locations"):
        open_backend("local", {"warehouse": str(new)}).catalog.load_table(("shop", "orders"))


def test_parent_of_a_link_is_the_one_that_is_opened(tmp_path: Path) -> None:
    (tmp_path / "far/inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far/inside")
    allowed = open_backend("local", {"warehouse": f"{tmp_path}/link/../wh"}).store.allowed
    assert allowed.covers(f"{tmp_path}/far/wh/t")
    assert not allowed.covers(f"{tmp_path}/wh/t")


def test_home_of_nobody_is_one_line() -> None:
    with pytest.raises(InvalidInputError, match=r"no such home folder; path=~no-such-user/wh"):
        open_backend("local", {"warehouse": "~no-such-user/wh"})
