"""What every object store promises (store/base.py), run on each of them."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tableformat.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
)
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.base import ObjectStore
from tableformat.store.locations import AllowedLocations, canonical_location
from tests.support.bucket_servers import bucket_of
from tests.support.memory_store import MemoryObjectStore


class Place:
    """A store, and a folder in it that is the only allowed one."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self.store = store
        self.folder = folder

    def at(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def names(self, prefix: str = "") -> list[str]:
        listed = self.store.list_prefix(f"{self.folder}{prefix}")
        base = canonical_location(self.folder) + "/"
        return sorted(canonical_location(one.location).removeprefix(base) for one in listed)


AZURE = pytest.param("azure", marks=pytest.mark.services)


@pytest.fixture(params=["local", "memory", "s3", "gcs", AZURE])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "local":
        folder = f"file://{tmp_path}/wh/tbl"
        yield Place(ArrowObjectStore({}, AllowedLocations([folder])), folder)
    elif request.param == "memory":
        folder = "memory://warehouse/tbl"
        yield Place(MemoryObjectStore(allowed=AllowedLocations([folder])), folder)
    else:
        properties, root = bucket_of(request.param)
        folder = f"{root}/tbl"
        yield Place(ArrowObjectStore(properties, AllowedLocations([folder])), folder)


def test_put_then_get_gives_the_bytes(place: Place) -> None:
    place.store.put(place.at("a/b=1/x.bin"), b"0123456789")
    assert place.store.get(place.at("a/b=1/x.bin")) == b"0123456789"
    assert place.store.size_bytes(place.at("a/b=1/x.bin")) == 10


def test_get_of_a_range_gives_exactly_that(place: Place) -> None:
    place.store.put(place.at("x"), memoryview(b"0123456789"))
    assert place.store.get(place.at("x"), offset=3, length=4) == b"3456"
    assert place.store.get(place.at("x"), offset=8) == b"89"
    assert place.store.get(place.at("x"), offset=10) == b""
    assert place.store.get(place.at("x"), offset=2, length=0) == b""


@pytest.mark.parametrize(("offset", "length"), [(8, 3), (11, 1), (11, None), (0, 11)])
def test_get_beyond_the_end_is_corrupt_data(place: Place, offset: int, length: int | None) -> None:
    place.store.put(place.at("x"), b"0123456789")
    with pytest.raises(CorruptDataError) as caught:
        place.store.get(place.at("x"), offset=offset, length=length)
    assert "x" in caught.value.context["location"]


def test_empty_object_is_an_object(place: Place) -> None:
    place.store.put(place.at("empty"), b"")
    assert place.store.get(place.at("empty")) == b""
    assert place.names() == ["empty"]


def test_put_of_a_taken_name_is_refused_and_changes_nothing(place: Place) -> None:
    place.store.put(place.at("x"), b"first")
    with pytest.raises(AlreadyExistsError):
        place.store.put(place.at("x"), b"second")
    assert place.store.get(place.at("x")) == b"first"
    assert place.names() == ["x"]


def test_missing_object_is_not_found(place: Place) -> None:
    for call in (place.store.get, place.store.size_bytes, place.store.open_input):
        with pytest.raises(NotFoundError):
            call(place.at("missing"))


def test_open_input_reads_at_random(place: Place) -> None:
    place.store.put(place.at("x"), b"0123456789")
    with place.store.open_input(place.at("x")) as source:
        assert source.size() == 10
        source.seek(7)
        assert source.read(2) == b"78"


@pytest.mark.parametrize("size", [0, 1, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 200_000])
def test_an_open_file_gives_its_own_bytes_wherever_it_is_read(place: Place, size: int) -> None:
    data = random.Random(size).randbytes(size)
    place.store.put(place.at("x"), data)
    with place.store.open_input(place.at("x")) as source:
        assert source.size() == size
        for start in (size - (64 << 10) - 3, size - (64 << 10), size - 5, 0):
            source.seek(max(start, 0))
            assert source.read(9) == data[max(start, 0) :][:9]
        source.seek(0)
        assert source.read() == data


def test_output_appears_only_when_closed(place: Place) -> None:
    output = place.store.open_output(place.at("d/x"))
    output.write(b"01234")
    output.write(b"56789")
    with pytest.raises(NotFoundError):
        place.store.get(place.at("d/x"))
    output.close()
    output.close()
    assert place.store.get(place.at("d/x")) == b"0123456789"


def test_output_of_a_failed_block_never_appears(place: Place) -> None:
    def write_half() -> None:
        with place.store.open_output(place.at("x")) as output:
            output.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert place.names() == []


def test_forgotten_output_never_appears(place: Place) -> None:
    output = place.store.open_output(place.at("x"))
    output.write(b"half")
    del output
    assert place.names() == []


def test_output_to_a_taken_name_fails_at_close(place: Place) -> None:
    place.store.put(place.at("x"), b"first")
    output = place.store.open_output(place.at("x"))
    output.write(b"second")
    with pytest.raises(AlreadyExistsError):
        output.close()
    assert place.store.get(place.at("x")) == b"first"
    assert place.names() == ["x"]


def test_list_goes_deep_and_stays_in_its_folder(place: Place) -> None:
    for name in ("tbl/a", "tbl/d/e/f", "tbl2/a", "tb", "tbl/d.x"):
        place.store.put(place.at(name), name.encode())
    assert place.names("/tbl") == ["tbl/a", "tbl/d.x", "tbl/d/e/f"]
    assert place.names("/tbl/") == ["tbl/a", "tbl/d.x", "tbl/d/e/f"]
    assert place.names("/nothing") == []


def test_listed_object_has_its_size_and_a_recent_time(place: Place) -> None:
    place.store.put(place.at("x"), b"12345")
    (found,) = place.store.list_prefix(place.folder)
    assert found.size_bytes == 5
    assert found.modified_ms > 1_600_000_000_000
    assert place.store.get(found.location) == b"12345"


def test_delete_removes_and_forgives_missing_ones(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.store.put(place.at(name), b"x")
    place.store.delete([place.at("a"), place.at("missing"), place.at("c"), place.at("a")])
    assert place.names() == ["b"]
    place.store.delete([])


def test_deleted_name_can_be_put_again(place: Place) -> None:
    place.store.put(place.at("x"), b"1")
    place.store.delete([place.at("x")])
    place.store.put(place.at("x"), b"2")
    assert place.store.get(place.at("x")) == b"2"


@pytest.mark.parametrize("name", ["../tbl2/x", "a/../../x", "%2e%2e/x"])
def test_location_that_climbs_out_is_refused_for_every_operation(place: Place, name: str) -> None:
    location = f"{place.folder}/{name}"
    _refuses_everything(place, location)


def test_location_outside_is_refused_for_every_operation(place: Place) -> None:
    for location in (f"{place.folder}2/x", "/etc/hostname", "file:///etc/hostname", "s3://other/x"):
        _refuses_everything(place, location)


def _refuses_everything(place: Place, location: str) -> None:
    store = place.store
    store_calls = (
        lambda: store.get(location),
        lambda: store.size_bytes(location),
        lambda: store.open_input(location),
        lambda: store.open_output(location),
        lambda: store.put(location, b"x"),
        lambda: list(store.list_prefix(location)),
        lambda: store.delete([location]),
    )
    for call in store_calls:
        with pytest.raises(InvalidInputError):
            call()


def test_delete_with_one_location_outside_removes_nothing(place: Place) -> None:
    place.store.put(place.at("x"), b"1")
    with pytest.raises(InvalidInputError):
        place.store.delete([place.at("x"), "/etc/hostname"])
    assert place.names() == ["x"]


@pytest.mark.parametrize(
    "place", ["local", "s3", "gcs", AZURE], indirect=True
)  # what workers are sent
def test_pickled_store_still_works(place: Place) -> None:
    place.store.put(place.at("x"), b"1")
    copy = pickle.loads(pickle.dumps(place.store))
    assert copy.get(place.at("x")) == b"1"
    with pytest.raises(InvalidInputError):
        copy.get("/etc/hostname")
