"""Credentials that a REST server hands out with a table: used, renewed, and never shown."""

from __future__ import annotations

import pickle
import re
import time
from typing import Any

import pytest

from tableformat.errors import InvalidInputError, StoreUnavailableError
from tableformat.store import vended
from tableformat.store.vended import CredentialVault, VendedCredentials
from tests.support.s3_server import SECRET as S3_SECRET
from tests.support.s3_server import Fault, create_bucket, s3_server
from tests.unit.tableformat.catalog.test_rest import TABLE, Server, load, server  # noqa: F401

HOUR_MS = 3_600_000
AT = "s3://bucket/t/data/x"


def keys(name: str = "vended", **more: Any) -> dict[str, Any]:
    return {"s3.access-key-id": name, "s3.secret-access-key": S3_SECRET, **more}


def in_ms(milliseconds: int) -> str:
    return str(time.time_ns() // 1_000_000 + milliseconds)


@pytest.fixture
def s3(monkeypatch):
    """moto with the table's bucket, and no credentials in the environment."""
    found = s3_server()
    create_bucket(found.endpoint, "bucket")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    found.authorizations.clear()
    return found


def given(s3, **config):
    return {"s3.endpoint": s3.endpoint, "s3.region": "us-east-1", **config}


def answers(server: Server, monkeypatch, config: Any, listed: Any = None) -> None:  # noqa: F811
    """The server hands these out from now on; callables are asked each time."""
    own = server.table

    def table() -> dict[str, Any]:
        reply = own()
        reply["config"] = config() if callable(config) else config
        if listed is not None:
            reply["storage-credentials"] = listed() if callable(listed) else listed
        return reply

    monkeypatch.setattr(server, "table", table)


def used_keys(s3) -> list[str]:
    """The key ids that requests were signed with, each once."""
    return list(dict.fromkeys(re.findall(r"Credential=([^/]+)/", " ".join(s3.authorizations))))


def test_credentials_of_the_table_are_used(server, s3, monkeypatch):  # noqa: F811
    answers(server, monkeypatch, given(s3, **keys()))
    environment, _ = load(server)
    environment.store.put(f"{AT}-config", b"rows")
    assert environment.store.get(f"{AT}-config") == b"rows"
    assert used_keys(s3) == ["vended"]


def test_longest_prefix_wins_and_stands_above_the_operators_keys(server, s3, monkeypatch):  # noqa: F811
    listed = [
        {"prefix": "s3://bucket", "config": keys("bucket")},
        {"prefix": "s3a://bucket/t/data", "config": keys("data")},
        {"prefix": "s3://bucket/t/metadata", "config": keys("metadata")},
    ]
    answers(server, monkeypatch, {}, listed)
    own = given(s3, **keys("operator"), **{"s3.session-token": "of-the-operator"})
    environment, _ = load(server, **own)
    environment.store.put(f"{AT}-prefix", b"rows")
    assert used_keys(s3) == ["data"]
    environment.store.put("s3://bucket/t/other", b"rows")
    assert used_keys(s3) == ["data", "bucket"]


def test_without_credentials_the_operators_are_used(server, s3, monkeypatch):  # noqa: F811
    answers(server, monkeypatch, {"s3.endpoint": "http://127.0.0.1:1", "py-io-impl": "x.Y"})
    environment, _ = load(server, **given(s3, **keys("operator")))
    environment.store.put(f"{AT}-own", b"rows")
    assert used_keys(s3) == ["operator"]


def test_server_cannot_move_requests_away_from_the_operators_endpoint(server, s3, monkeypatch):  # noqa: F811
    answers(server, monkeypatch, keys() | {"s3.endpoint": "http://127.0.0.1:1"})
    environment, _ = load(server, **given(s3))
    environment.store.put(f"{AT}-endpoint", b"rows")
    assert used_keys(s3) == ["vended"]


def expiring(s3, names, milliseconds):
    """Other keys each time, which end so much later."""
    return lambda: given(
        s3, **keys(next(names)), **{"s3.session-token-expires-at-ms": in_ms(milliseconds)}
    )


def test_credentials_are_asked_for_again_before_they_end(server, s3, monkeypatch):  # noqa: F811
    names = iter(["first", "second", "third", "fourth", "fifth", "sixth", "seventh"])
    answers(server, monkeypatch, expiring(s3, names, 2_000))
    environment, _ = load(server)
    environment.store.put(f"{AT}-again-1", b"rows")
    time.sleep(1.3)  # more than half of their life
    environment.store.put(f"{AT}-again-2", b"rows")
    time.sleep(2.2)  # they have ended
    environment.store.put(f"{AT}-again-3", b"rows")
    assert used_keys(s3)[0] == "first"
    assert len(used_keys(s3)) >= 3


def test_long_credentials_are_asked_for_once(server, s3, monkeypatch):  # noqa: F811
    names = iter(["first", "second"])
    answers(server, monkeypatch, expiring(s3, names, HOUR_MS))
    environment, _ = load(server)
    for number in range(5):
        environment.store.put(f"{AT}-long-{number}", b"rows")
    assert used_keys(s3) == ["first"]


def test_executors_renew_what_they_were_sent(server, s3, monkeypatch):  # noqa: F811
    names = iter(["driver", "executor", "later", "latest", "last"])
    answers(server, monkeypatch, expiring(s3, names, 600))
    environment, _ = load(server)
    sent = pickle.dumps(environment.store)
    time.sleep(0.8)
    pickle.loads(sent).put(f"{AT}-executor", b"rows")
    assert "driver" not in used_keys(s3)


def test_ended_credentials_and_a_server_that_is_gone_are_unavailable(server, s3, monkeypatch):  # noqa: F811
    answers(server, monkeypatch, expiring(s3, iter(["only"] * 99), 300))
    environment, _ = load(server)
    time.sleep(0.5)
    server.on["GET"] = lambda _: (503, b"")
    with pytest.raises(StoreUnavailableError) as caught:
        environment.store.put(f"{AT}-gone", b"rows")
    assert "\n" not in str(caught.value)


def test_new_keys_without_an_end_are_used_from_the_next_load_on(server, s3, monkeypatch):  # noqa: F811
    names = iter(["first", "second"])
    answers(server, monkeypatch, lambda: given(s3, **keys(next(names))))
    environment, _ = load(server)
    environment.store.put(f"{AT}-load-1", b"rows")
    environment.catalog.load_table(TABLE)
    environment.store.put(f"{AT}-load-2", b"rows")
    assert used_keys(s3) == ["first", "second"]


def test_operators_credentials_serve_where_a_server_would_sign(server, s3, monkeypatch):  # noqa: F811
    answers(server, monkeypatch, {"s3.remote-signing-enabled": "true", "s3.signer.uri": "x"})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)
    environment, _ = load(server, **given(s3))
    environment.store.put(f"{AT}-signing", b"rows")
    assert used_keys(s3) == ["environment"]


def test_nothing_to_sign_with_is_one_line_that_says_what_to_set(server, s3, monkeypatch):  # noqa: F811
    answers(server, monkeypatch, {"s3.remote-signing-enabled": "true", "s3.signer.uri": "x"})
    environment, _ = load(server, **given(s3))
    with pytest.raises(InvalidInputError, match=r"no s3 credentials.*set s3\.access-key-id"):
        environment.store.get(AT)


@pytest.mark.parametrize(
    "offer",
    [
        {"s3.remote-signing-enabled": "true"},
        {"s3.signer": "S3V4RestSigner", "s3.signer.uri": "https://catalog"},
    ],
)
def test_signing_offer_is_named_with_what_to_set_also_on_executors(
    server,  # noqa: F811
    s3,
    monkeypatch,
    offer,
):
    answers(server, monkeypatch, offer)
    environment, _ = load(server, **given(s3))
    for store in (environment.store, pickle.loads(pickle.dumps(environment.store))):
        with pytest.raises(InvalidInputError) as caught:
            store.get(AT)
        text = str(caught.value)
        assert "(remote signing), which is not supported" in text
        assert "set s3.access-key-id and s3.secret-access-key, or AWS_*" in text
        assert "let the catalog vend credentials" in text
        assert "\n" not in text
    with pytest.raises(InvalidInputError) as caught:  # another table's files
        environment.store.get("s3://bucket/elsewhere/x")
    assert "remote signing" not in str(caught.value)


def test_own_keys_that_are_refused_where_a_server_would_sign_are_told_so(server, s3, monkeypatch):  # noqa: F811
    answers(server, monkeypatch, {"s3.remote-signing-enabled": "true"})
    environment, _ = load(server, **given(s3, **keys("operator")))
    s3.faults.append(Fault("GET", "before", "403 Access Denied"))
    with pytest.raises(StoreUnavailableError, match=r"403 AccessDenied.*remote signing.*; .*set "):
        environment.store.get(AT)


def test_credentials_beside_an_offer_to_sign_are_used(server, s3, monkeypatch):  # noqa: F811
    offer = {"s3.remote-signing-enabled": "true", "s3.signer": "S3V4RestSigner"}
    answers(server, monkeypatch, given(s3, **keys(), **offer))
    environment, _ = load(server)
    environment.store.put(f"{AT}-both", b"rows")
    assert used_keys(s3) == ["vended"]


@pytest.mark.parametrize("listed", ["x", [{"prefix": "s3://bucket"}], [3], [{"config": {}}]])
def test_answers_that_make_no_sense_hand_out_nothing(server, s3, monkeypatch, listed):  # noqa: F811
    answers(server, monkeypatch, "none", listed)
    environment, _ = load(server, **given(s3))
    with pytest.raises((InvalidInputError, StoreUnavailableError)):
        environment.store.get(AT)


def test_secrets_are_in_no_text(server, s3, monkeypatch):  # noqa: F811
    answers(server, monkeypatch, given(s3, **keys(**{"s3.session-token": "to-ken"})))
    environment, state = load(server)
    vault = environment.store._vault
    texts = [repr(environment.store), repr(vault), repr(vault.current(state.metadata.location))]
    texts += [repr(each) for each in vault._granted.values()]
    assert not any(S3_SECRET in text or "to-ken" in text for text in texts)


def test_clouds_say_when_their_credentials_end():
    azure = VendedCredentials.of(
        "abfss://c@a.dfs.core.windows.net/t",
        {
            "adls.sas-token.a.dfs.core.windows.net": "sv=1",
            "adls.sas-token-expires-at-ms.a.dfs.core.windows.net": "5000",
        },
    )
    assert azure.as_credential()["sas_token"] == "sv=1"
    assert azure.expires_at_ms == 5000
    google = VendedCredentials.of(
        "gs://b/t", {"gcs.oauth2.token": "abc", "gcs.oauth2.token-expires-at": "7000"}
    )
    assert google.as_credential()["token"] == "abc"
    assert google.expires_at_ms == 7000
    assert VendedCredentials.of("s3://b", {"s3.region": "eu-west-1", "owner": "me"}) is None


def test_old_credentials_serve_until_they_end_when_the_server_is_away():
    vault, asked = CredentialVault(), []

    def renew():
        asked.append(1)
        raise StoreUnavailableError("away")

    ends = {"s3.session-token-expires-at-ms": in_ms(vended.RENEWED_BEFORE_MS // 2)}
    vault.grant([VendedCredentials.of("s3://b/t", keys(**ends))], renew)
    vault._granted["s3://b/t"].received_ms -= HOUR_MS
    assert vault.current("s3://b/t").properties["s3.access-key-id"] == "vended"
    assert asked == [1]
