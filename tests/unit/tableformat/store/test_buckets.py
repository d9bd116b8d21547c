"""What S3 may do to a request, and what becomes of it. moto on loopback, with faults in between."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tableformat.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from tableformat.store import bucket_files, bucket_objects
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations
from tests.support.s3_server import SECRET, Fault, S3Server, fresh_bucket, s3_properties, s3_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setattr(bucket_objects, "_WAIT_S", (0.001, 0.01))
    found = s3_server()
    yield found
    found.faults.clear()


@pytest.fixture
def bucket(server: S3Server) -> str:
    name = fresh_bucket()
    server.requests.clear()
    return name


def store_of(bucket: str, **properties: str) -> ArrowObjectStore:
    given = s3_properties() | {f"s3.{key}": value for key, value in properties.items()}
    return ArrowObjectStore(given, AllowedLocations([f"s3://{bucket}/t"]))


@pytest.mark.parametrize("status", ["503 Slow Down", "500 Internal Error", "429 Too Many"])
@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD"])
def test_transient_answer_is_tried_again(
    server: S3Server, bucket: str, method: str, status: str
) -> None:
    store = store_of(bucket)
    store.put(f"s3://{bucket}/t/old", b"old")
    server.faults.append(Fault(method, "before", status, times=2))
    store.put(f"s3://{bucket}/t/new", b"new")
    assert store.get(f"s3://{bucket}/t/old") == b"old"
    assert store.size_bytes(f"s3://{bucket}/t/new") == 3
    assert server.faults == []


def test_answer_that_stays_away_is_unavailable(server: S3Server, bucket: str) -> None:
    server.faults.append(Fault("GET", "before", times=100))
    with pytest.raises(StoreUnavailableError, match="503") as caught:
        store_of(bucket).get(f"s3://{bucket}/t/x")
    assert len(server.requests) == bucket_objects.ATTEMPTS_MAX
    assert caught.value.context["location"] == f"s3://{bucket}/t/x"


def test_own_put_without_an_answer_is_recognised(server: S3Server, bucket: str) -> None:
    server.faults.append(Fault("PUT", "after", "500 Internal Error"))
    store = store_of(bucket)
    store.put(f"s3://{bucket}/t/x", b"mine")
    assert store.get(f"s3://{bucket}/t/x") == b"mine"
    assert server.faults == []


def test_own_output_without_an_answer_is_recognised(server: S3Server, bucket: str) -> None:
    server.faults.append(Fault("PUT", "after", "503 Slow Down"))
    with store_of(bucket).open_output(f"s3://{bucket}/t/x") as output:
        output.write(b"mine")
    assert store_of(bucket).get(f"s3://{bucket}/t/x") == b"mine"


def test_foreign_object_after_a_lost_request_is_not_taken_for_ours(
    server: S3Server, bucket: str
) -> None:
    store_of(bucket).put(f"s3://{bucket}/t/x", b"same")
    server.faults.append(Fault("PUT", "before", "503 Slow Down"))
    with pytest.raises(AlreadyExistsError):
        store_of(bucket).put(f"s3://{bucket}/t/x", b"same")


def test_conditional_conflict_is_tried_again_and_never_means_taken(
    server: S3Server, bucket: str
) -> None:
    store = store_of(bucket)
    server.faults.append(Fault("PUT", "before", "409 Conditional Request Conflict"))
    store.put(f"s3://{bucket}/t/x", b"1")
    assert store.get(f"s3://{bucket}/t/x") == b"1"
    server.faults.append(Fault("PUT", "before", "409 Conditional Request Conflict", times=100))
    with pytest.raises(StoreUnavailableError):
        store.put(f"s3://{bucket}/t/y", b"1")


def test_body_cut_short_is_read_again(server: S3Server, bucket: str) -> None:
    store = store_of(bucket)
    store.put(f"s3://{bucket}/t/x", b"0123456789")
    server.faults.append(Fault("GET", "cut", times=2))
    assert store.get(f"s3://{bucket}/t/x") == b"0123456789"


@pytest.mark.parametrize(("offset", "length"), [(0, 10), (3, 7), (3, None)])
def test_body_that_is_not_the_range_is_not_believed(
    server: S3Server, bucket: str, offset: int, length: int | None
) -> None:
    """What a proxy may make of a reply: it ends half-way, and says that this is all."""
    store = store_of(bucket)
    store.put(f"s3://{bucket}/t/x", b"0123456789")
    server.faults.append(Fault("GET", "shortened", times=2))
    found = store.get(f"s3://{bucket}/t/x", offset=offset, length=length)
    assert found == b"0123456789"[offset:]
    assert server.faults == []


def test_refused_request_is_not_tried_again_and_shows_no_secret(
    server: S3Server, bucket: str
) -> None:
    server.faults.append(Fault("GET", "before", "403 Access Denied", times=100))
    with pytest.raises(StoreUnavailableError, match="403") as caught:
        store_of(bucket).get(f"s3://{bucket}/t/x")
    assert len(server.requests) == 1
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)


def test_store_shows_no_secret_and_pickles(bucket: str) -> None:
    store = store_of(bucket)
    store.put(f"s3://{bucket}/t/x", b"1")
    assert SECRET not in repr(store)
    assert pickle.loads(pickle.dumps(store)).get(f"s3://{bucket}/t/x") == b"1"


def test_missing_bucket_is_not_found(server: S3Server) -> None:
    store = ArrowObjectStore(s3_properties(), AllowedLocations(["s3://no-such-bucket"]))
    with pytest.raises(NotFoundError, match="bucket"):
        store.put("s3://no-such-bucket/x", b"1")
    with pytest.raises(NotFoundError, match="bucket"):
        list(store.list_prefix("s3://no-such-bucket/t"))
    with pytest.raises(NotFoundError, match="bucket"):
        store.delete(["s3://no-such-bucket/x"])


def test_lists_and_deletes_go_beyond_one_page(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_objects, "_DELETE_BATCH", 7)
    store = store_of(bucket)
    names = [f"s3://{bucket}/t/{number:02}" for number in range(20)]
    for name in names:
        store.put(name, b"x")
    assert [one.location for one in store.list_prefix(f"s3://{bucket}/t")] == names
    store.delete(names[:15])
    assert [one.location for one in store.list_prefix(f"s3://{bucket}/t")] == names[15:]


@pytest.mark.parametrize("failed", [0, 1])
def test_list_goes_on_after_a_page_that_failed(server: S3Server, bucket: str, failed: int) -> None:
    """The library's list ends at an error, as if there were no more."""
    from moto.s3.models import s3_backends

    names = [f"t/{number:04}" for number in range(1_250)]
    backend = next(iter(s3_backends.values()))["global"]
    for name in names:
        backend.put_object(bucket, name, b"x")
    found = store_of(bucket).list_prefix(f"s3://{bucket}/t")
    listed = [next(found).location for _ in range(1_000 * failed)]
    server.faults.append(Fault("GET", "before", times=2))
    listed += [one.location for one in found]
    assert listed == [f"s3://{bucket}/{name}" for name in names]
    assert server.faults == []


@pytest.mark.parametrize("name", ["a//b", "a/", "/a", ""])
def test_name_that_the_library_would_change_is_refused(
    server: S3Server, bucket: str, name: str
) -> None:
    """A path of its library has no empty parts: it would be another object."""
    store = ArrowObjectStore(s3_properties(), AllowedLocations([f"s3://{bucket}"]))
    location = f"s3://{bucket}/{name}"
    for call in (store.get, store.size_bytes, lambda at: store.put(at, b"1")):
        with pytest.raises(UnsupportedError, match="empty parts"):
            call(location)
    with pytest.raises(UnsupportedError, match="empty parts"):
        store.delete([f"s3://{bucket}/fine", location])
    assert server.requests == []


def test_s3a_location_reaches_the_same_object(bucket: str) -> None:
    store = store_of(bucket)
    store.put(f"s3a://{bucket}/t/x", b"1")
    assert store.get(f"s3://{bucket}/t/x") == b"1"


def test_parquet_is_written_and_read_through_the_store(bucket: str) -> None:
    table = pa.table({"a": range(1000)})
    store = store_of(bucket)
    with store.open_output(f"s3://{bucket}/t/x.parquet") as output:
        pq.write_table(table, output, row_group_size=100)
    with store.open_input(f"s3://{bucket}/t/x.parquet") as source:
        assert pq.read_table(source) == table


def test_large_output_is_spooled_to_disk(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_files, "_SPOOL_BYTES", 100)
    store = store_of(bucket)
    with store.open_output(f"s3://{bucket}/t/x") as output:
        for _ in range(50):
            output.write(b"0123456789")
        assert output.tell() == 500
    assert store.get(f"s3://{bucket}/t/x", offset=495) == b"56789"


def test_object_above_the_limit_of_a_request_is_unsupported(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_objects, "_PUT_BYTES_MAX", 10)
    with pytest.raises(UnsupportedError):
        store_of(bucket).put(f"s3://{bucket}/t/x", b"0" * 11)


def test_exact_range_costs_one_request(server: S3Server, bucket: str) -> None:
    store = store_of(bucket)
    store.put(f"s3://{bucket}/t/x", b"0123456789")
    server.requests.clear()
    assert store.get(f"s3://{bucket}/t/x", offset=2, length=3) == b"234"
    assert len(server.requests) == 1
    with pytest.raises(CorruptDataError):
        store.get(f"s3://{bucket}/t/x", offset=9, length=3)


def test_small_file_is_opened_and_read_by_one_request(server: S3Server, bucket: str) -> None:
    store = store_of(bucket)
    store.put(f"s3://{bucket}/t/x", b"0123456789")
    store.put(f"s3://{bucket}/t/y", bytes(range(256)) * 300)
    server.requests.clear()
    with store.open_input(f"s3://{bucket}/t/x") as source:
        assert source.read() == b"0123456789"
    assert len(server.requests) == 1
    with store.open_input(f"s3://{bucket}/t/y") as source:
        assert source.read_at(4, 300 * 256 - 4) == b"\xfc\xfd\xfe\xff"
        assert len(server.requests) == 2
        assert source.read_at(4, 256) == b"\x00\x01\x02\x03"
    assert len(server.requests) == 3


def test_opening_is_tried_again_and_a_cut_tail_not_believed(server: S3Server, bucket: str) -> None:
    store = store_of(bucket)
    store.put(f"s3://{bucket}/t/x", b"0123456789")
    for fault in (Fault("GET", "shortened", times=2), Fault("GET", "before", "503 Slow Down")):
        server.faults.append(fault)
        with store.open_input(f"s3://{bucket}/t/x") as source:
            assert source.read() == b"0123456789"
    assert server.faults == []


@pytest.mark.parametrize("key", ["role-arn", "signer", "profile-name"])
def test_property_that_is_not_supported_is_named(bucket: str, key: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        store_of(bucket, **{key: "x"}).get(f"s3://{bucket}/t/x")
    assert caught.value.context["key"] == f"s3.{key}"


def test_other_scheme_is_unsupported() -> None:
    store = ArrowObjectStore({}, AllowedLocations(["hdfs://host"]))
    with pytest.raises(UnsupportedError, match="hdfs"):
        store.get("hdfs://host/x")
