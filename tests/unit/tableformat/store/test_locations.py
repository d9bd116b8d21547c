from pathlib import Path

import pytest

from tableformat.errors import InvalidInputError
from tableformat.store.locations import AllowedLocations, canonical_location, local_path


@pytest.mark.parametrize(
    "spelling",
    [
        "/a/b",
        "/a//b/",
        "file:/a/b",
        "file:///a/b",
        "FILE:///a/b",
        "file://localhost/a/b",
        "file:////a/b",
    ],
)
def test_local_location_in_any_spelling_is_one(spelling: str) -> None:
    assert canonical_location(spelling) == "file:///a/b"
    assert local_path(spelling) == "/a/b"


@pytest.mark.parametrize("spelling", ["s3://b/k/x", "s3a://b/k/x", "S3N://b/k/x", "S3://b/k/x"])
def test_s3_location_in_any_scheme_is_one(spelling: str) -> None:
    assert canonical_location(spelling) == "s3://b/k/x"


@pytest.mark.parametrize("spelling", ["gs://b/k/x", "gcs://b/k/x"])
def test_google_location_in_any_scheme_is_one(spelling: str) -> None:
    assert canonical_location(spelling) == "gs://b/k/x"


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "wasb", "wasbs", "WASBS"])
@pytest.mark.parametrize("service", ["dfs", "blob"])
def test_azure_location_in_any_scheme_is_one(scheme: str, service: str) -> None:
    spelling = f"{scheme}://box@account.{service}.core.windows.net/k/x"
    assert canonical_location(spelling) == "abfss://box@account.dfs.core.windows.net/k/x"


def test_s3_key_with_double_slash_is_another_key() -> None:
    assert canonical_location("s3://b/k//x") == "s3://b/k//x"


def test_partition_path_with_encoded_characters_is_kept() -> None:
    location = "s3://b/t/data/p=a%2Fb%2F..%2Fc/q=%25/x.parquet"
    assert canonical_location(location) == location


@pytest.mark.parametrize(
    "location",
    [
        "",
        "warehouse/t",
        "file:warehouse/t",
        "file://elsewhere/etc/passwd",
        "/tbl/../etc/passwd",
        "/tbl/./x",
        "file:///tbl/%2e%2e/etc",
        "file:///tbl/%2E./etc",
        "file:///tbl/%252e%252e/etc",
        "s3://bucket/tbl/../other",
        "s3://bucket/tbl/%2e%2e/other",
        "s3://",
        "s3:///key",
        "s3:bucket/key",
        "s3://user:password@bucket/key",
        "abfss://box:password@account.dfs.core.windows.net/key",
        "abfss://box@account/key",
        "gs://user@bucket/key",
        "/tbl/x\x00y",
        "/tbl/x\ny",
        "/" + "x" * 5000,
    ],
)
def test_location_that_could_mean_another_place_is_refused(location: str) -> None:
    with pytest.raises(InvalidInputError, match="refused"):
        canonical_location(location)


@pytest.mark.parametrize(
    ("prefix", "inside"),
    [
        ("/wh/tbl", "/wh/tbl/data/x"),
        ("/wh/tbl", "/wh/tbl"),
        ("/wh/tbl/", "file:/wh/tbl/x"),
        ("s3://b/tbl", "s3a://b/tbl/x"),
        ("s3a://b", "s3://b/any/x"),
        ("s3://b/", "s3://b/any/x"),
    ],
)
def test_location_below_prefix_is_allowed(prefix: str, inside: str) -> None:
    AllowedLocations([prefix]).check(inside)


@pytest.mark.parametrize(
    ("prefix", "outside"),
    [
        ("/wh/tbl", "/wh/tbl2/x"),
        ("/wh/tbl", "/wh"),
        ("/wh/tbl", "/etc/passwd"),
        ("/wh/tbl", "file:///etc/passwd"),
        ("/wh/tbl", "s3://wh/tbl/x"),
        ("s3://b/tbl", "s3://b/tbl2/x"),
        ("s3://b/tbl", "s3://other/tbl/x"),
        ("s3://b/tbl", "s3://B/tbl/x"),
        ("s3://b/tbl", "/b/tbl/x"),
        ("s3://b/tbl", "file:///etc/passwd"),
        ("s3://b/tbl", "http://169.254.169.254/latest/meta-data"),
    ],
)
def test_location_outside_prefix_is_refused(prefix: str, outside: str) -> None:
    with pytest.raises(InvalidInputError, match="outside the allowed prefixes") as caught:
        AllowedLocations([prefix]).check(outside)
    assert caught.value.context["location"] == outside


def test_no_prefixes_allow_nothing() -> None:
    with pytest.raises(InvalidInputError):
        AllowedLocations([]).check("/wh/x")


def test_root_folder_as_prefix_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="root"):
        AllowedLocations(["/"])


def test_symbolic_link_out_of_the_prefix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wh").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "wh" / "link").symlink_to(tmp_path / "secret")
    allowed = AllowedLocations([str(tmp_path / "wh")])
    allowed.check(str(tmp_path / "wh" / "plain"))
    with pytest.raises(InvalidInputError):
        allowed.check(str(tmp_path / "wh" / "link" / "key"))


@pytest.mark.parametrize("name", ["data", "data/file"])
def test_link_that_takes_the_place_of_what_was_allowed_is_refused(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "wh" / "data").mkdir(parents=True)
    (tmp_path / "wh" / "data" / "file").touch()
    allowed = AllowedLocations([str(tmp_path / "wh")])
    location = str(tmp_path / "wh" / "data" / "file")
    for _ in range(2):
        assert allowed.covers(location)
    (tmp_path / "wh" / name).rename(tmp_path / "old")
    (tmp_path / "wh" / name).symlink_to(tmp_path / "secret")
    assert not allowed.covers(location)
    (tmp_path / "wh" / name).unlink()
    (tmp_path / "old").rename(tmp_path / "wh" / name)
    assert allowed.covers(location)


def test_prefix_that_is_a_symbolic_link_works(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "wh").symlink_to(tmp_path / "real")
    AllowedLocations([str(tmp_path / "wh")]).check(str(tmp_path / "wh" / "x"))


def test_admitted_prefix_is_allowed_from_then_on() -> None:
    allowed = AllowedLocations(["/wh"])
    assert not allowed.covers("s3://b/t/x")
    allowed.admit("s3a://b/t/")
    assert allowed.covers("s3://b/t/x")
    assert allowed.prefixes == ("file:///wh", "s3://b/t")
