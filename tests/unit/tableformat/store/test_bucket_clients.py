"""From PyIceberg's property names to clients, and what is said of wrong ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tableformat.errors import InvalidInputError, StoreUnavailableError, UnsupportedError
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.buckets import connect
from tableformat.store.locations import AllowedLocations
from tests.support.s3_server import Fault, fresh_bucket, s3_properties, s3_server

ROOT = Path(__file__).parents[4]
AZURE = "abfss://box@account.dfs.core.windows.net"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)


def client(location: str, **properties: str) -> object:
    given = {name.replace("__", ".").replace("_", "-"): text for name, text in properties.items()}
    return connect(location, given, connect_timeout_s=1, timeout_s=2)


@pytest.mark.parametrize(
    ("location", "properties", "expected"),
    [
        ("s3://b/x", {}, {"bucket": "b", "endpoint": None}),
        ("s3://b/x", {"s3__region": "eu-west-1"}, {"region": "eu-west-1"}),
        ("s3://b/x", {"client__region": "eu-west-1"}, {"region": "eu-west-1"}),
        (
            "s3://b/x",
            {"s3__endpoint": "http://h:9/"},
            {"endpoint": "http://h:9", "region": "us-east-1"},
        ),
        (
            "s3://b/x",
            {"s3__endpoint": "https://h", "s3__force_virtual_addressing": "true"},
            {"endpoint": "https://b.h", "virtual_hosted_style_request": True},
        ),
        ("s3://b/x", {"s3__anonymous": "true"}, {"skip_signature": True}),
        (
            "s3://b/x",
            {"s3__server_side_encryption": "aws:kms", "s3__sse_kms_key_id": "k"},
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "k"},
        ),
        (
            "gs://b/x",
            {"gcs__service__host": "http://h:9"},
            {"bucket": "b", "base_url": "http://h:9"},
        ),
        (
            f"{AZURE}/x",
            {"adls__account_key": "a2V5"},
            {
                "container_name": "box",
                "account_name": "account",
                "account_key": "a2V5",
                "endpoint": "https://account.blob.core.windows.net",
            },
        ),
        (
            "abfss://box/x",
            {
                "adls__account_name": "a",
                "adls__blob_storage_authority": ".blob.core.chinacloudapi.cn",
            },
            {"endpoint": "https://a.blob.core.chinacloudapi.cn"},
        ),
        (
            f"{AZURE}/x",
            {"adls__tenant_id": "t", "adls__client_id": "c", "adls__client_secret": "s"},
            {"tenant_id": "t", "client_id": "c", "client_secret": "s"},
        ),
    ],
)
def test_properties_configure_the_client(
    location: str, properties: dict[str, str], expected: dict[str, object]
) -> None:
    config = client(location, **properties).config  # type: ignore[attr-defined]
    assert {key: config.get(key) for key in expected} == {
        key: config_value(value) for key, value in expected.items()
    }


def config_value(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def test_keys_never_get_a_session_token_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of other keys")
    made = client("s3://b/x", s3__access_key_id="k", s3__secret_access_key="s")
    assert made.credential_provider()["token"] is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("location", "properties", "says"),
    [
        ("s3://b/x", {"s3__access_key_id": "hunter2"}, "half of the S3 credentials"),
        ("s3://b/x", {"s3__endpoint": "no address hunter2"}, "not an http"),
        ("s3://b/x", {"s3__server_side_encryption": "hunter2"}, "settings refused"),
        ("gs://b/x", {"gcs__service__host": "hunter2"}, "not an http"),
        ("abfss://box/x", {}, "which Azure account"),
        (f"{AZURE}/x", {"adls__account_key": "hunter2"}, "settings refused"),
        ("s3://b/x", {"s3__endpoint": "http://hunter2:port"}, "not an http"),
        ("s3://b/x", {"s3__endpoint": "http://hunter2:99999"}, "not an http"),
        ("s3://b/x", {"s3__endpoint": "http://[hunter2"}, "not an http"),
        ("s3://b/x", {"s3__endpoint": "http://hunter2%zz"}, "not an http"),
        ("s3://b/x", {"s3__endpoint": "http://hunter2\t"}, "not an http"),
        ("s3://b/x", {"s3__region": "hunter2 east"}, "key=s3.region"),
        (
            "s3://b/x",
            {"s3__access_key_id": "k", "s3__secret_access_key": "hunter2\n"},
            "key=s3.secret-access-key",
        ),
        ("gs://b/x", {"gcs__oauth2__token": "hunter2\n"}, "key=gcs.oauth2.token"),
    ],
)
def test_wrong_property_is_one_line_without_its_value(
    location: str, properties: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        client(location, **properties)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_that_the_library_is_not_given_may_have_blanks() -> None:
    """Catalogs hand out such properties, of other tools."""
    assert client("s3://b/x", **{"s3.write.tags.team": "data platform"}) is not None


@pytest.mark.parametrize(
    "name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_REGION", "AWS_SECRET_ACCESS_KEY"]
)
def test_wrong_variable_is_one_line_without_its_value(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "hunter2\n")
    with pytest.raises(InvalidInputError, match=f"key={name}") as caught:
        client("s3://b/x")
    assert "hunter2" not in str(caught.value)


def test_panic_of_the_library_is_one_line_and_an_exception() -> None:
    """Rust's panics are no `Exception`: a task's thread ended with one, and nobody was told."""
    properties = s3_properties() | {"s3.endpoint": "http://1.2.3.999"}
    store = ArrowObjectStore(properties, AllowedLocations(["s3://b"]))
    with pytest.raises(InvalidInputError, match="has given up on its settings"):
        store.get("s3://b/x")


@pytest.mark.parametrize(
    "key",
    [
        "s3__profile_name",
        "client__profile_name",
        "s3__role_arn",
        "s3__signer",
        "adls__connection_string",
    ],
)
def test_property_without_effect_is_refused_and_says_what_to_do(key: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        client("s3://b/x", **{key: "x"})
    assert caught.value.action


@pytest.mark.parametrize(
    ("location", "action"), [("s3://b", "s3.access-key-id"), (AZURE, "adls.account-key")]
)
def test_missing_credentials_are_one_line(
    location: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", "http://127.0.0.1:1")
    store = ArrowObjectStore({}, AllowedLocations([location]))
    with pytest.raises(InvalidInputError, match=r"no \w+ credentials; .*" + action) as caught:
        store.get(f"{location}/x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seconds", ["soon", "0", "-1", "nan", "inf"])
def test_timeout_that_is_none_is_one_line(seconds: str) -> None:
    store = ArrowObjectStore({"s3.request-timeout": seconds}, AllowedLocations(["s3://b"]))
    with pytest.raises(InvalidInputError, match=r"s3\.request-timeout"):
        store.get("s3://b/x")


def test_bucket_of_another_region_is_one_line() -> None:
    server, bucket = s3_server(), fresh_bucket()
    store = ArrowObjectStore(s3_properties(), AllowedLocations([f"s3://{bucket}"]))
    server.faults.append(Fault("GET", "before", "301 Moved Permanently"))
    with pytest.raises(InvalidInputError, match=r"another region; .*set s3.region"):
        store.get(f"s3://{bucket}/x")


def test_endpoint_that_nobody_answers_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tableformat.store.bucket_objects._WAIT_S", (0.001, 0.01))
    properties = s3_properties() | {"s3.endpoint": "http://127.0.0.1:1"}
    store = ArrowObjectStore(properties, AllowedLocations(["s3://b"]))
    with pytest.raises(StoreUnavailableError, match=r"no answer \(Connect\)"):
        store.get("s3://b/x")


@pytest.mark.slow
def test_forked_process_is_refused_instead_of_hanging() -> None:
    program = f"""
import os
from tableformat.errors import UnsupportedError
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations
store = ArrowObjectStore({s3_properties()!r}, AllowedLocations(["s3://b"]))
def status():
    try:
        store.get("s3://b/x")
    except UnsupportedError:
        return 7
    except LookupError:
        return 0
child = os.fork()
if child == 0:
    os._exit(status())
assert os.waitpid(child, 0)[1] == 0, "before its first use a fork is no matter"
assert status() == 0
child = os.fork()
if child == 0:
    os._exit(status())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True, text=True, timeout=60, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_region_of_the_environment_counts_at_an_endpoint_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    made = client("s3://b/x", s3__endpoint="http://h:9")
    assert made.config["region"] == "eu-west-1"  # type: ignore[attr-defined]
