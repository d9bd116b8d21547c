"""The REST catalog against a server that misbehaves: a stub that can break every answer."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
)

from tableformat.backend import open_backend
from tableformat.catalog import rest_client
from tableformat.catalog.base import TableCommit, TableState
from tableformat.catalog.rest_requirements import requirements_for
from tableformat.catalog.seen_versions import LAG_MS
from tableformat.commit.swap import swap_until_settled
from tableformat.environment import Environment
from tableformat.errors import (
    AccessRefusedError,
    AlreadyExistsError,
    CommitConflictError,
    CommitUnknownError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    TableError,
    UnsupportedError,
)
from tableformat.runtime import FailPoints, Runtime, SystemClock
from tests.support.table_metadata import (
    SCHEMA,
    append_updates,
    metadata_of,
    raw_metadata,
    raw_snapshot,
    set_ref,
)

TABLE = ("shop", "orders")
SECRET = "t0ken-of-the-test"
Reply = tuple[int, Any]


class Server:
    """A catalog of one table. `on` gives the answer to a request instead of the table's own."""

    def __init__(self) -> None:
        self.raw = raw_metadata(1, location="s3://bucket/t")
        self.version = 1
        self.config: dict[str, Any] = {"defaults": {}, "overrides": {}}
        self.on: dict[str, Callable[[dict[str, Any]], Reply | None]] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []

    def answer(self, method: str, path: str, headers: dict[str, str], body: Any) -> Reply:
        self.requests.append((method, path, headers))
        special = self.on.get(method)
        reply = special(body) if special else None
        if reply is not None:
            return reply
        if path.startswith("/v1/config"):
            return 200, self.config
        if method == "POST":
            self.land(body)
        return 200, self.table()

    def land(self, body: dict[str, Any]) -> None:
        """Apply what the tests send."""
        self.version += 1
        for update in body.get("updates", ()):
            if update["action"] == "add-snapshot":
                snapshot = update["snapshot"]
                self.raw["snapshots"].append(snapshot)
                self.raw["last-sequence-number"] = snapshot["sequence-number"]
                self.raw["next-row-id"] += snapshot["added-rows"]
                self.raw["last-updated-ms"] = snapshot["timestamp-ms"]
            elif update["action"] == "set-snapshot-ref":
                ref = {"snapshot-id": update["snapshot-id"], "type": update["type"]}
                self.raw["refs"][update["ref-name"]] = ref
                if update["ref-name"] == "main":
                    self.raw["current-snapshot-id"] = update["snapshot-id"]
            elif update["action"] == "remove-snapshots":
                gone = update["snapshot-ids"]
                left = [s for s in self.raw["snapshots"] if s["snapshot-id"] not in gone]
                self.raw["snapshots"] = left

    def log(self, base: TableState, *later: str) -> None:
        """Say which versions came before, as servers that write metadata files do."""
        places = (base.metadata_location, *later)
        self.raw["metadata-log"] = [{"metadata-file": each, "timestamp-ms": 1} for each in places]

    def table(self) -> dict[str, Any]:
        location = f"{self.raw['location']}/metadata/{self.version:05}-x.metadata.json"
        return {"metadata-location": location, "metadata": self.raw, "config": {}}


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(length)
            body = json.loads(text) if text.startswith(b"{") else {}
            status, reply = state.answer(self.command, self.path, dict(self.headers), body)
            if reply is ConnectionError:
                self.connection.close()
                return
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", state.config["redirect"])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_HEAD = do_DELETE = respond

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.uri = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


def open_rest(server: Server, runtime: Runtime | None = None, **properties: Any) -> Environment:
    given = {"type": "rest", "uri": server.uri, "token": SECRET, "warehouse": "demo"} | properties
    given = {key: value for key, value in given.items() if value is not None}
    return open_backend("rest", given, runtime=runtime)


def error_of(status: int, kind: str, message: str = "no") -> Reply:
    return status, {"error": {"message": message, "type": kind, "code": status}}


def load(server: Server, **options: Any) -> tuple[Environment, TableState]:
    environment = open_rest(server, **options)
    return environment, environment.catalog.load_table(TABLE)


def append(base: TableState) -> tuple[list[Any], int]:
    updates = append_updates(base.metadata)
    return updates, updates[0].snapshot.snapshot_id


# -- outcomes


def landing(server: Server, reply: Reply) -> Callable[[dict[str, Any]], Reply]:
    def land_then(body: dict[str, Any]) -> Reply:
        server.land(body)
        return reply

    return land_then


@pytest.mark.parametrize(
    "reply",
    [
        (500, b"oops"),
        (502, b"<html>bad gateway</html>"),
        error_of(503, "ServiceUnavailableException"),
        error_of(504, "GatewayTimeout"),
        (200, b"<html>login</html>"),
        (200, b"{}"),
        (200, b""),
        (404, b"<html>not found</html>"),
        (0, ConnectionError),
        error_of(409, "CommitFailedException", "of our own repeated request"),
    ],
    ids=str,
)
def test_lost_answer_of_a_landed_commit_is_settled_as_landed(server: Server, reply: Reply) -> None:
    environment, base = load(server)
    updates, snapshot_id = append(base)
    server.on["POST"] = landing(server, reply)
    landed = environment.catalog.commit(base, updates)
    assert landed.metadata.current_snapshot_id == snapshot_id


@pytest.mark.parametrize(
    "reply",
    [(500, b"oops"), error_of(503, "Busy"), (200, b"<html/>"), (0, ConnectionError)],
    ids=str,
)
def test_lost_answer_without_a_trace_is_unknown(server: Server, reply: Reply) -> None:
    environment, base = load(server)
    updates, snapshot_id = append(base)
    server.on["POST"] = lambda _: reply
    with pytest.raises(CommitUnknownError) as caught:
        environment.catalog.commit(base, updates)
    assert caught.value.context["snapshot_id"] == str(snapshot_id)
    assert not caught.value.files_safe_to_delete


def test_lost_answer_and_a_server_that_is_gone_is_unknown(server: Server) -> None:
    environment, base = load(server)
    server.on["POST"] = landing(server, (500, b"oops"))
    server.on["GET"] = lambda _: (503, b"")
    with pytest.raises(CommitUnknownError):
        environment.catalog.commit(base, append(base)[0])


@pytest.mark.parametrize("status", [400, 401, 403, 409, 429])
def test_refusal_that_cannot_be_checked_is_unknown(server: Server, status: int) -> None:
    environment, base = load(server)
    server.on["POST"] = lambda _: error_of(status, "SomeException")
    server.on["GET"] = lambda _: (503, b"")
    with pytest.raises(CommitUnknownError):
        environment.catalog.commit(base, append(base)[0])


def test_client_that_may_not_look_either_is_not_authorized(server: Server) -> None:
    environment, base = load(server)
    server.on["POST"] = server.on["GET"] = lambda _: error_of(403, "ForbiddenException")
    with pytest.raises(AccessRefusedError, match="not authorized"):
        environment.catalog.commit(base, append(base)[0])


def test_commit_is_sent_once_whatever_happens(server: Server) -> None:
    environment, base = load(server)
    server.on["POST"] = lambda _: (503, b"")
    with pytest.raises(CommitUnknownError):
        environment.catalog.commit(base, append(base)[0])
    assert [method for method, _, _ in server.requests].count("POST") == 1


def test_refused_requirement_is_a_conflict(server: Server) -> None:
    environment, base = load(server)
    server.on["POST"] = lambda _: error_of(409, "CommitFailedException", "main has changed")
    with pytest.raises(CommitConflictError, match="main has changed") as caught:
        environment.catalog.commit(base, append(base)[0])
    assert not caught.value.is_proven  # the table shows nothing that it could have lost to
    assert not caught.value.files_safe_to_delete
    server.log(base)
    server.version += 1
    with pytest.raises(CommitConflictError, match="main has changed") as caught:
        environment.catalog.commit(base, append(base)[0])
    assert caught.value.is_proven
    assert caught.value.files_safe_to_delete


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "TooManyRequests"), (403, "ForbiddenException")]
)
def test_refusal_of_a_repeated_request_is_settled_as_landed(
    server: Server, status: int, kind: str
) -> None:
    environment, base = load(server)
    updates, snapshot_id = append(base)
    server.on["POST"] = landing(server, error_of(status, kind))
    landed = environment.catalog.commit(base, updates)
    assert landed.metadata.current_snapshot_id == snapshot_id


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "TooManyRequests"), (403, "ForbiddenException")]
)
def test_refused_removal_that_landed_is_found_by_who_asked_for_it(
    server: Server, status: int, kind: str
) -> None:
    """No snapshot of its own shows it."""
    environment, base = load(server, runtime=Runtime(clock=ImpatientClock()))
    for _ in range(2):
        base = environment.catalog.commit(base, append(base)[0])
    server.on["POST"] = landing(server, error_of(status, kind))
    change = Removal()
    outcome = swap_until_settled(environment, TABLE, change, state=base)
    assert change.has_landed(outcome.state)
    assert outcome.looked_up


# -- what shows a table lags behind


def test_commit_refused_as_an_echo_beside_a_lagging_replica_is_unknown(server: Server) -> None:
    environment, base = load(server, runtime=Runtime(clock=ImpatientClock()))
    before = deepcopy(server.table())
    server.on["POST"] = echoing(server)
    server.on["GET"] = lambda _: (200, before)
    with pytest.raises(CommitUnknownError) as caught:
        swap_until_settled(environment, TABLE, Append(), state=base)
    assert not caught.value.files_safe_to_delete


def test_commit_refused_as_an_echo_is_found_once_the_replica_has_caught_up(server: Server) -> None:
    environment, base = load(server, runtime=Runtime(clock=ImpatientClock()))
    before, change = deepcopy(server.table()), Append()
    server.on["POST"] = echoing(server)
    server.on["GET"] = lagging(before, times=2)
    outcome = swap_until_settled(environment, TABLE, change, state=base)
    assert outcome.attempts == 2
    assert change.has_landed(outcome.state)


def test_failure_after_a_refusal_that_nothing_bears_out_is_unknown(server: Server) -> None:
    environment, base = load(server, runtime=Runtime(clock=ImpatientClock()))
    before = deepcopy(server.table())
    server.on["POST"] = echoing(server)
    server.on["GET"] = lambda _: (200, before)
    with pytest.raises(CommitUnknownError, match="the bucket is away") as caught:
        swap_until_settled(environment, TABLE, Append(fails_at=2), state=base)
    assert not caught.value.files_safe_to_delete


def test_refusal_that_a_newer_version_bears_out_is_a_conflict(server: Server) -> None:
    environment, base = load(server, runtime=Runtime(clock=ImpatientClock()))

    def another(_: dict[str, Any]) -> Reply:
        server.log(base)
        server.version += 1
        return error_of(409, "CommitFailedException", "main has changed")

    server.on["POST"] = another
    with pytest.raises(CommitConflictError) as caught:
        swap_until_settled(environment, TABLE, Append(), state=base)
    assert caught.value.files_safe_to_delete


def test_table_is_not_shown_older_than_it_was(server: Server) -> None:
    clock = ImpatientClock()
    environment, base = load(server, runtime=Runtime(clock=clock))
    before = deepcopy(server.table())
    newer = environment.catalog.commit(base, append(base)[0])
    server.on["GET"] = lagging(before, times=3)
    shown = environment.catalog.load_table(TABLE)
    assert shown.metadata_location == newer.metadata_location
    server.on["GET"] = lambda _: (200, before)
    with pytest.raises(StoreUnavailableError, match="older version"):
        environment.catalog.load_table(TABLE)
    clock.sleep_ms(LAG_MS)  # no replica lags for so long: the catalog was restored
    shown = environment.catalog.load_table(TABLE)
    assert shown.metadata_location == base.metadata_location


def test_table_that_was_dropped_may_come_back_older(server: Server) -> None:
    environment, base = load(server)
    before = deepcopy(server.table())
    environment.catalog.commit(base, append(base)[0])
    server.on["DELETE"] = lambda _: (204, None)
    environment.catalog.drop_table(TABLE)
    server.on["GET"] = lambda _: (200, before)  # registered again, by an older file
    shown = environment.catalog.load_table(TABLE)
    assert shown.metadata_location == base.metadata_location


def test_expiry_beside_a_lagging_replica_deletes_nothing(server: Server) -> None:
    """A version from before the snapshots existed does not show that they have been removed."""
    environment, base = load(server, runtime=Runtime(clock=ImpatientClock()))
    before = deepcopy(server.table())
    later = environment.catalog.commit(base, append(base)[0])

    server.on["POST"] = lambda _: (503, b"")
    server.on["GET"] = lambda _: (200, before)
    with pytest.raises(CommitUnknownError):
        swap_until_settled(environment, TABLE, Removal(), state=later)


class Removal:
    """Removes the oldest snapshot."""

    def __init__(self) -> None:
        self.expired: list[int] = []

    def prepare(self, state: TableState) -> list[Any]:
        self.expired.append(state.metadata.snapshots[0].snapshot_id)
        return [RemoveSnapshotsUpdate(snapshot_ids=self.expired[-1:])]

    def has_landed(self, state: TableState) -> bool:
        return state.metadata.snapshot_by_id(self.expired[-1]) is None

    def context(self) -> dict[str, object]:
        return {}


def echoing(server: Server) -> Callable[[dict[str, Any]], Reply]:
    """Whoever comes first lands, and is told what the second one is told."""
    first = iter([True])

    def land_then(body: dict[str, Any]) -> Reply:
        if next(first, False):
            server.land(body)
        return error_of(409, "CommitFailedException", "main has changed")

    return land_then


class ImpatientClock(SystemClock):
    """Nobody waits; what was slept has passed."""

    def __init__(self) -> None:
        self.slept_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.slept_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.slept_ms += duration_ms


class Append:
    """A change that adds one snapshot, the same in each attempt; `fails_at` an attempt."""

    def __init__(self, fails_at: int = 0) -> None:
        self.fails_at, self.attempts = fails_at, 0
        self.updates: list[Any] = []

    def prepare(self, state: TableState) -> list[Any]:
        self.attempts += 1
        if self.attempts == self.fails_at:
            raise StoreUnavailableError("the bucket is away")
        self.updates = self.updates or append(state)[0]
        return self.updates

    def has_landed(self, state: TableState) -> bool:
        added = self.updates[0].snapshot.snapshot_id if self.updates else None
        return added is not None and state.metadata.snapshot_by_id(added) is not None

    def context(self) -> dict[str, object]:
        return {}


def lagging(old: dict[str, Any], *, times: int) -> Callable[[dict[str, Any]], Reply | None]:
    """Answers that show `old`, so often."""
    left = iter(range(times))
    return lambda _: (200, old) if next(left, None) is not None else None


# -- groups


def load_two(server: Server) -> tuple[Environment, list[TableCommit]]:
    """Two names, for which the stub has the same table."""
    server.config["endpoints"] = ["POST /v1/{prefix}/transactions/commit"]
    environment = open_rest(server)
    states = [environment.catalog.load_table(each) for each in (TABLE, ("shop", "items"))]
    return environment, [TableCommit(each, append(each)[0]) for each in states]


@pytest.mark.parametrize(
    "reply", [(204, b""), (500, b"oops"), (0, ConnectionError), error_of(409, "Ours")], ids=str
)
def test_group_of_which_one_table_shows_its_commit_has_landed(server: Server, reply: Reply) -> None:
    environment, group = load_two(server)
    sent: list[dict[str, Any]] = []

    def land(body: dict[str, Any]) -> Reply:
        sent.extend(body["table-changes"])
        server.land(sent[0])
        return reply

    server.on["POST"] = land
    landed = environment.catalog.commit_group(group)
    assert [each.identifier for each in landed] == [TABLE, ("shop", "items")]
    assert [each["identifier"]["name"] for each in sent] == ["items", "orders"]
    assert [path for method, path, _ in server.requests if method == "POST"] == [
        "/v1/transactions/commit"
    ]


def test_group_without_a_trace_is_unknown_and_a_refused_one_a_conflict(server: Server) -> None:
    environment, group = load_two(server)
    server.on["POST"] = lambda _: (503, b"")
    with pytest.raises(CommitUnknownError):
        environment.catalog.commit_group(group)
    server.on["POST"] = lambda _: error_of(409, "CommitFailedException")
    with pytest.raises(CommitConflictError):
        environment.catalog.commit_group(group)


def test_server_that_lists_no_transactions_is_asked_for_none(server: Server) -> None:
    _, group = load_two(server)
    del server.config["endpoints"]
    catalog = open_rest(server).catalog
    assert not catalog.commits_groups
    with pytest.raises(UnsupportedError, match="several tables in one step"):
        catalog.commit_group(group)
    assert "POST" not in [method for method, _, _ in server.requests]


def test_bad_request_on_a_moved_table_is_a_conflict(server: Server) -> None:
    environment, base = load(server)
    server.version += 1
    server.on["POST"] = lambda _: error_of(400, "ValidationException", "sequence number 2 older")
    with pytest.raises(CommitConflictError, match="sequence number"):
        environment.catalog.commit(base, append(base)[0])


def test_bad_request_on_the_same_table_is_invalid(server: Server) -> None:
    environment, base = load(server)
    server.on["POST"] = lambda _: error_of(400, "BadRequestException", "cannot parse")
    with pytest.raises(InvalidInputError, match="cannot parse"):
        environment.catalog.commit(base, append(base)[0])


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (401, "NotAuthorizedException", InvalidInputError),
        (403, "ForbiddenException", InvalidInputError),
        (404, "NoSuchTableException", NotFoundError),
        (406, "UnsupportedOperationException", UnsupportedError),
        (429, "TooManyRequests", StoreUnavailableError),
    ],
)
def test_refusal_is_typed_and_nothing_is_done(
    server: Server, status: int, kind: str, error: type[TableError]
) -> None:
    environment, base = load(server)
    server.on["POST"] = lambda _: error_of(status, kind)
    with pytest.raises(error):
        environment.catalog.commit(base, append(base)[0])


def test_server_that_was_never_reached_changed_nothing(server: Server) -> None:
    environment = open_rest(server, uri="http://127.0.0.1:1")
    with pytest.raises(StoreUnavailableError):
        environment.catalog.load_table(TABLE)
    environment, base = load(server)
    environment.catalog._client().uri = "http://127.0.0.1:1"
    with pytest.raises(StoreUnavailableError):
        environment.catalog.commit(base, append(base)[0])


def test_server_that_hangs_is_unknown_after_the_time_out(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, base = load(server)
    monkeypatch.setattr(rest_client, "_READ_TIMEOUT_S", 1.0)
    release = threading.Event()

    def hang(_: dict[str, Any]) -> Reply:
        release.wait(20)
        return 500, b""

    server.on["POST"] = hang
    try:
        with pytest.raises(CommitUnknownError):
            environment.catalog.commit(base, append(base)[0])
    finally:
        release.set()


def test_crash_after_the_answer_is_settled_as_landed(server: Server) -> None:
    def crash(_: str) -> None:
        raise RuntimeError("out of something")

    runtime = Runtime(fail_points=FailPoints(armed={"catalog.after_swap": crash}))
    environment, base = load(server, runtime=runtime)
    updates, snapshot_id = append(base)
    landed = environment.catalog.commit(base, updates)
    assert landed.metadata.snapshot_by_id(snapshot_id) is not None


def test_property_commit_without_an_answer_is_unknown(server: Server) -> None:
    environment, base = load(server)
    server.on["POST"] = landing(server, (500, b""))
    with pytest.raises(CommitUnknownError):
        environment.catalog.commit(base, [SetPropertiesUpdate(updates={"a": "b"})])


def test_created_table_without_an_answer_is_unknown(server: Server) -> None:
    environment = open_rest(server)
    server.on["POST"] = lambda _: (502, b"")
    with pytest.raises(CommitUnknownError):
        _create(environment)
    server.on["POST"] = lambda _: error_of(409, "AlreadyExistsException")
    with pytest.raises(AlreadyExistsError):
        _create(environment)


def _create(environment: Environment, **options: Any) -> TableState:
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    return environment.catalog.create_table(
        TABLE,
        schema=SCHEMA,
        partition_spec=UNPARTITIONED_PARTITION_SPEC,
        sort_order=UNSORTED_SORT_ORDER,
        location=options.get("location"),
        properties=options.get("properties", {}),
    )


# -- what is sent


def test_commit_sends_its_requirements(server: Server) -> None:
    environment, base = load(server)
    sent: list[dict[str, Any]] = []
    server.on["POST"] = lambda body: sent.append(body)
    environment.catalog.commit(base, append(base)[0])
    assert sent[0]["requirements"] == [
        {"type": "assert-table-uuid", "uuid": str(base.metadata.table_uuid)},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
    ]
    assert sent[0]["updates"][0]["snapshot"]["first-row-id"] == 10


def test_new_ref_must_not_exist_and_expiry_binds_every_ref() -> None:
    base = metadata_of(2)
    new = requirements_for(base, [set_ref(1, "audit")])
    assert json.loads(new[1].model_dump_json())["snapshot-id"] is None
    expiry = requirements_for(base, [RemoveSnapshotsUpdate(snapshot_ids=[1])])
    assert [(one.ref, one.snapshot_id) for one in expiry[1:]] == [("main", 2)]
    only_uuid = requirements_for(base, [SetPropertiesUpdate(updates={"a": "b"})])
    assert only_uuid == (AssertTableUUID(uuid=base.table_uuid),)


def test_expired_token_is_renewed_once(server: Server) -> None:
    environment, base = load(server)
    answers = [error_of(401, "NotAuthorizedException"), None]
    server.on["POST"] = lambda _: answers.pop(0)
    updates, snapshot_id = append(base)
    assert environment.catalog.commit(base, updates).metadata.current_snapshot_id == snapshot_id


# -- ways to prove who asks, as PyIceberg configures them

SIGV4 = {
    "rest.sigv4-enabled": "true",
    "rest.signing-region": "eu-central-1",
    "rest.signing-name": "glue",
    "client.access-key-id": "AKIDTEST",
    "client.secret-access-key": "s3cret-of-the-test",
    "client.region": "eu-central-1",
}


def is_signed(server: Server, method: str, path: str, headers: dict[str, str]) -> bool:
    """Whether AWS would take it: signed again, over what it says is signed."""
    given = headers["Authorization"]
    names = re.search(r"SignedHeaders=([^,]+)", given)[1].split(";")
    sent = {name.lower(): value for name, value in headers.items()}
    url, _, query = f"{server.uri}{path}".partition("?")
    request = AWSRequest(method, url, params=dict(parse_qsl(query)))
    request.headers = {name: sent[name] for name in names}
    request.context["timestamp"] = sent["x-amz-date"]
    signer = SigV4Auth(Credentials("AKIDTEST", "s3cret-of-the-test"), "glue", "eu-central-1")
    signer.payload = lambda _: sent["x-amz-content-sha256"]
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return given.endswith(f"Signature={signer.signature(text, request)}")


def test_requests_are_signed_for_aws_and_sent_once(server: Server) -> None:
    environment, base = load(server, **SIGV4)
    reads = [request for request in server.requests if request[0] == "GET"]
    assert len(reads) == 2
    assert all(is_signed(server, *request) for request in reads)
    assert not is_signed(server, "GET", "/v1/other", reads[0][2])
    server.on["POST"] = lambda _: (0, ConnectionError)
    with pytest.raises(CommitUnknownError):
        environment.catalog.commit(base, append(base)[0])
    assert [method for method, *_ in server.requests].count("POST") == 1
    assert "s3cret-of-the-test" not in repr(environment)


def test_signing_without_its_library_or_credentials_is_refused_in_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    keyless = {key: value for key, value in SIGV4.items() if "key" not in key}
    with pytest.raises(InvalidInputError, match="no AWS credentials to sign with"):
        load(server, **keyless)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UnsupportedError, match="pip install boto3"):
        load(server, **SIGV4)


def test_oauth2_token_is_fetched_and_fetched_again_when_it_has_ended(server: Server) -> None:
    tokens: list[str] = []
    ended: set[str] = set()

    def token_or_commit(_: dict[str, Any]) -> Reply | None:
        _, path, headers = server.requests[-1]
        if path.endswith("/oauth/tokens"):
            tokens.append(f"token-{len(tokens)}")
            return 200, {
                "access_token": tokens[-1],
                "token_type": "bearer",
                "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            }
        if headers["Authorization"].removeprefix("Bearer ") in ended:
            return error_of(401, "NotAuthorizedException", "expired")
        return None

    server.on["POST"] = token_or_commit
    endpoint = {"oauth2-server-uri": f"{server.uri}/v1/oauth/tokens"}
    credential = "client:s3cret-of-the-test"
    environment, base = load(server, token=None, credential=credential, **endpoint)
    assert server.requests[-1][2]["Authorization"] == f"Bearer {tokens[-1]}"
    ended |= set(tokens)
    updates, snapshot_id = append(base)
    assert environment.catalog.commit(base, updates).metadata.current_snapshot_id == snapshot_id
    assert len(set(tokens) - ended) == 1


def test_headers_and_client_certificate_of_the_operator_are_used(
    server: Server, tmp_path: Path
) -> None:
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "me.pem", "me.key"))
    tls = {"cabundle": ca, "client": {"cert": cert, "key": key}}
    with pytest.raises(StoreUnavailableError, match=r"certificate file.*me\.pem"):
        load(server, ssl=tls)
    for name in (ca, cert, key):
        Path(name).touch()
    environment, _ = load(server, ssl=tls, **{"header.X-Tenant": "blue"})
    assert server.requests[-1][2]["X-Tenant"] == "blue"
    session = environment.catalog._client()._session
    assert (session.verify, session.cert) == (ca, (cert, key))


# -- a server that is not to be trusted


def test_redirect_is_not_followed(server: Server) -> None:
    server.config["redirect"] = "http://127.0.0.1:1/elsewhere"
    environment = open_rest(server)
    server.on["GET"] = lambda _: (302, b"")
    with pytest.raises(StoreUnavailableError):
        environment.catalog.load_table(TABLE)
    server.on.clear()
    environment, base = load(server)
    server.on["POST"] = lambda _: (302, b"")
    with pytest.raises(CommitUnknownError):
        environment.catalog.commit(base, append(base)[0])


def test_redirected_configuration_and_listing_are_not_followed(server: Server) -> None:
    server.config["redirect"] = f"{server.uri}/trap"
    server.on["GET"] = lambda _: (302, b"") if len(server.requests) == 1 else None
    with pytest.raises(StoreUnavailableError):
        open_rest(server).catalog.list_namespaces()
    environment, _ = load(server)
    server.on["GET"] = lambda _: (302, b"")
    with pytest.raises(StoreUnavailableError):
        environment.catalog.list_namespaces()
    assert not any("trap" in path for _, path, _ in server.requests)


@pytest.mark.parametrize("uri", ["http://elsewhere.test", "https://127.0.0.1", "ftp://x"])
def test_configuration_cannot_move_to_another_server(server: Server, uri: str) -> None:
    server.config["overrides"] = {"uri": uri}
    with pytest.raises((UnsupportedError, InvalidInputError)):
        open_rest(server).catalog.load_table(TABLE)
    assert len(server.requests) == 1


def test_configuration_brings_no_endpoint_credential_or_class(server: Server) -> None:
    server.config["overrides"] = {
        "s3.endpoint": "http://169.254.169.254",
        "token": "stolen",
        "oauth2-server-uri": "http://elsewhere.test",
        "py-io-impl": "os.system",
        "prefix": "one",
    }
    environment, _ = load(server)
    client = environment.catalog._client()
    assert client.properties["prefix"] == "one"
    assert client.properties["token"] == SECRET
    assert not {"s3.endpoint", "oauth2-server-uri", "py-io-impl"} & client.properties.keys()
    assert server.requests[-1][1].startswith("/v1/one/namespaces/shop/tables/orders")


def test_class_names_from_properties_are_never_looked_at(server: Server) -> None:
    server.raw["properties"] = {"py-io-impl": "this.does.not.Exist"}
    environment, state = load(server, **{"py-io-impl": "neither.does.This"})
    assert state.metadata.properties["py-io-impl"] == "this.does.not.Exist"
    assert "py-io-impl" not in environment.catalog._client().properties


def test_credentials_are_asked_for_unless_the_operator_says_otherwise(server: Server) -> None:
    load(server)
    asked = {headers.get("X-Iceberg-Access-Delegation") for _, _, headers in server.requests}
    assert asked == {"vended-credentials"}
    server.requests.clear()
    load(server, **{"header.X-Iceberg-Access-Delegation": "remote-signing"})
    asked = {headers.get("X-Iceberg-Access-Delegation") for _, _, headers in server.requests}
    assert asked == {"remote-signing"}


def test_token_is_sent_and_never_shown(server: Server) -> None:
    environment, base = load(server)
    assert server.requests[-1][2]["Authorization"] == f"Bearer {SECRET}"
    server.on["POST"] = lambda _: error_of(400, "BadRequest", f"I do not like {SECRET}\nat all")
    with pytest.raises(InvalidInputError) as caught:
        environment.catalog.commit(base, append(base)[0])
    for shown in (str(caught.value), repr(environment), repr(environment.catalog)):
        assert SECRET not in shown
        assert "\n" not in shown


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b'{"a":1,"a":2}', b"{" * 100_000, b"\xff\xfe"]
)
def test_answer_that_is_no_catalogs_is_unavailable(server: Server, answer: bytes) -> None:
    environment = open_rest(server)
    environment.catalog.load_table(TABLE)
    server.on["GET"] = lambda _: (200, answer)
    with pytest.raises(StoreUnavailableError):
        environment.catalog.load_table(TABLE)


def test_configuration_that_is_no_json_is_unavailable(server: Server) -> None:
    server.on["GET"] = lambda _: (200, b"<html>login</html>")
    with pytest.raises(StoreUnavailableError):
        open_rest(server).catalog.load_table(TABLE)


def test_answer_without_end_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, _ = load(server)
    monkeypatch.setattr(rest_client, "METADATA_BYTES_MAX", 1000)
    with pytest.raises(StoreUnavailableError, match="too large"):
        environment.catalog.load_table(TABLE)


def test_broken_metadata_of_the_server_is_corrupt_data_naming_it(server: Server) -> None:
    server.raw["snapshots"].append(raw_snapshot(1))
    with pytest.raises(TableError) as caught:
        load(server)
    assert caught.value.context["location"].endswith("00001-x.metadata.json")
    assert caught.value.context["table"] == "shop.orders"


# -- where tables may be


def test_table_of_the_server_is_allowed_where_nothing_was_configured(server: Server) -> None:
    environment, _ = load(server)
    assert environment.store.allowed.prefixes == ("s3://bucket/t",)


@pytest.mark.parametrize(
    ("location", "properties"),
    [
        ("file:///etc", {}),
        ("/etc", {}),
        ("s3://bucket/t", {"allowed-locations": "s3://other"}),
        ("s3://bucket/t", {"warehouse": "s3://other/wh"}),
        ("file:///etc", {"warehouse": "file:///srv/wh"}),
        ("s3://bucket/t/../../x", {}),
    ],
)
def test_table_elsewhere_is_refused(
    server: Server, location: str, properties: dict[str, str]
) -> None:
    server.raw["location"] = location
    with pytest.raises(InvalidInputError, match="refused"):
        load(server, **properties)


@pytest.mark.parametrize(
    "properties",
    [
        {"allowed-locations": "s3://other, s3a://bucket/t"},
        {"warehouse": "s3://bucket/wh"},
        {"warehouse": "s3a://bucket/t"},
    ],
)
def test_table_in_a_configured_place_is_allowed(server: Server, properties: dict[str, str]) -> None:
    load(server, **properties)


def test_commit_cannot_move_a_table_elsewhere(server: Server, tmp_path: Path) -> None:
    environment, base = load(server)
    for update in (
        SetLocationUpdate(location="file:///etc/x"),
        SetPropertiesUpdate(updates={"write.data.path": "s3://elsewhere/x"}),
        SetPropertiesUpdate(updates={"write.metadata.path": f"{tmp_path}"}),
    ):
        with pytest.raises(InvalidInputError, match="outside"):
            environment.catalog.commit(base, [update])
    assert all(method != "POST" for method, _, _ in server.requests)
    with pytest.raises(InvalidInputError, match="outside"):
        _create(environment, location="s3://elsewhere/x")
    with pytest.raises(InvalidInputError, match="outside"):
        _create(environment, properties={"write.data.path": "s3://elsewhere/x"})


def test_stale_plan_is_a_conflict_before_anything_is_sent(server: Server) -> None:
    environment, base = load(server)
    snapshot = append_updates(base.metadata, first_row_id=0)[0]
    with pytest.raises(CommitConflictError):
        environment.catalog.commit(base, [AddSnapshotUpdate(snapshot=snapshot.snapshot)])
    assert all(method != "POST" for method, _, _ in server.requests)


# -- what a server cannot


@pytest.mark.parametrize("group", ["defaults", "overrides"])
def test_branch_on_a_server_that_says_it_keeps_none_is_refused_before_it_is_sent(
    server: Server, group: str
) -> None:
    server.config[group]["nessie.is-nessie-catalog"] = "true"
    environment, base = load(server)
    with pytest.raises(UnsupportedError) as caught:
        environment.catalog.commit(base, append_updates(base.metadata, "staging"))
    assert "keeps no branch or tag of a table but main (nessie.is-nessie-catalog=true)" in str(
        caught.value
    )
    assert "resolve in place: --staging main --target main" in str(caught.value)
    assert "POST" not in {method for method, _, _ in server.requests}
    environment.catalog.commit(base, append(base)[0])  # main is


@pytest.mark.parametrize("is_lost", [False, True], ids=["answered", "answer lost"])
def test_branch_that_a_server_took_and_does_not_show_is_told(server: Server, is_lost: bool) -> None:
    environment, base = load(server)
    updates = append_updates(base.metadata, "staging")

    def take_for_main(body: dict[str, Any]) -> Reply | None:
        body["updates"] = [{**one, "ref-name": "main"} for one in body["updates"]]
        if not is_lost:
            return None
        server.land(body)
        server.log(base)  # nobody else has committed since
        return 500, b"oops"

    server.on["POST"] = take_for_main
    with pytest.raises(UnsupportedError, match=r"took one and does not show it.*main now") as found:
        environment.catalog.commit(base, updates)
    assert not found.value.files_safe_to_delete  # they are on main


@pytest.mark.parametrize("has_log", [True, False])
@pytest.mark.parametrize("reply", [(500, b"oops"), error_of(409, "Ours, repeated")], ids=str)
def test_branch_that_somebody_dropped_after_a_commit_was_kept(
    server: Server, reply: Reply, has_log: bool
) -> None:
    environment, base = load(server)
    updates = append_updates(base.metadata, "staging")

    def land_and_drop(body: dict[str, Any]) -> Reply:
        server.land(body)
        ours = server.table()["metadata-location"]
        server.land({})
        del server.raw["refs"]["staging"]  # by another process, before anybody looks
        if has_log:
            server.log(base, ours)
        return reply

    server.on["POST"] = land_and_drop
    state = environment.catalog.commit(base, updates)
    assert state.metadata.snapshot_by_id(updates[0].snapshot.snapshot_id) is not None
    assert state.ref("staging") is None


def test_branch_of_a_group_that_somebody_dropped_was_kept(server: Server) -> None:
    environment, group = load_two(server)
    updates = append_updates(group[0].base.metadata, "staging")

    def land_and_drop(body: dict[str, Any]) -> Reply:
        server.land(next(each for each in body["table-changes"]
                         if each["identifier"]["name"] == TABLE[-1]))  # fmt: skip
        del server.raw["refs"]["staging"]
        return 204, b""

    server.on["POST"] = land_and_drop
    landed, _ = environment.catalog.commit_group([TableCommit(group[0].base, updates), group[1]])
    assert landed.ref("staging") is None


def test_what_a_server_has_not_got_is_said_in_its_words(server: Server) -> None:
    environment, base = load(server)
    words = "Implement format version update"
    server.on["POST"] = lambda _: error_of(500, "UnsupportedOperationException", words)
    with pytest.raises(UnsupportedError, match=words):
        environment.catalog.commit(base, [SetPropertiesUpdate(updates={"a": "b"})])
    with pytest.raises(CommitUnknownError, match=words):  # files: nobody knows, nothing is deleted
        environment.catalog.commit(base, append(base)[0])


def test_table_of_another_version_than_asked_for_is_told(server: Server, caplog) -> None:
    server.raw |= {"format-version": 2}
    server.raw.pop("next-row-id", None)
    environment = open_rest(server)
    environment.catalog.create_table(
        TABLE,
        schema=SCHEMA,
        partition_spec=UNPARTITIONED_PARTITION_SPEC,
        sort_order=UNSORTED_SORT_ORDER,
        location=None,
        properties={},
    )
    assert "made a v2 table, v3 was asked for" in caplog.text
