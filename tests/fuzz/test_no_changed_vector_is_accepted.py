"""G13: no deletion vector with one bit or one byte changed is accepted, alone or in its file."""

import random
from itertools import product

import numpy as np
import pytest

from tableformat.codec.puffin.deletion_vector import (
    build_positions,
    decode_deletion_vector,
    encode_deletion_vector,
)
from tableformat.codec.puffin.dv_file import (
    DeletionVector,
    read_deletion_vectors,
    write_deletion_vectors,
)
from tableformat.errors import CorruptDataError
from tests.support.goals import goal
from tests.support.manifests import data_file
from tests.support.memory_store import MemoryObjectStore

BLOBS = 120
ROWS = 1 << 20


def positions_of(number):
    """A few or many, near or far, runs or not; over one key or two."""
    rng = np.random.default_rng(number)
    count = int(rng.choice([0, 1, 2, 5, 20, 60]))
    spread = int(rng.choice([10, 100, 70_000, ROWS]))
    ordinals = rng.integers(0, spread, count)
    if number % 4 == 0:
        ordinals = np.arange(ordinals.min(initial=0), ordinals.min(initial=0) + 400)
    if number % 10 == 3:
        ordinals = np.append(ordinals, (1 << 32) + number)
    return build_positions(ordinals)


def blob(number):
    return encode_deletion_vector(positions_of(number))


def is_accepted(data):
    try:
        decode_deletion_vector(bytes(data), location="x")
    except CorruptDataError:
        return False
    return True


def accepted_changes(data, changes):
    """Those of `(place, xor)` that are accepted."""
    changed = bytearray(data)
    found, count = [], 0
    for place, xor in changes:
        count += 1
        changed[place] ^= xor
        if is_accepted(changed):
            found.append((place, xor))
        changed[place] ^= xor
    goal("G13", decodes=count)
    return found


@pytest.mark.parametrize("first", range(0, BLOBS, 30))
def test_blob_with_any_bit_flipped_is_refused(first):
    for number in range(first, first + 30):
        data = blob(number)
        assert is_accepted(data)
        bits = [1 << bit for bit in range(8)]
        assert accepted_changes(data, product(range(len(data)), bits)) == []


@pytest.mark.parametrize("first", range(0, BLOBS, 30))
def test_blob_with_any_byte_changed_is_refused(first):
    for number in range(first, first + 30):
        data = blob(number)
        assert accepted_changes(data, product(range(len(data)), range(1, 256))) == []


def test_blob_that_is_cut_or_longer_is_refused():
    for number in range(BLOBS):
        data = blob(number)
        assert not any(is_accepted(data[:stop]) for stop in range(len(data)))
        assert not any(is_accepted(data + more) for more in (b"\0", data, data[-4:]))


def test_puffin_file_with_any_bit_flipped_gives_an_error_or_the_same_positions():
    store = MemoryObjectStore()
    vectors = [
        DeletionVector(data_file(f"f{number}", record_count=1 << 33), positions_of(number))
        for number in (2, 3, 4)
    ]
    entries = write_deletion_vectors(
        store, vectors, location_for=lambda: "memory://dvs.puffin", placement="packed"
    )
    expected = [vector.positions for vector in vectors if vector.positions]
    whole = store.get("memory://dvs.puffin")
    rng = random.Random(5)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.randrange(8)
        other = MemoryObjectStore()
        other.put("memory://dvs.puffin", bytes(changed))
        try:
            found = read_deletion_vectors(other, [(entry, None) for entry in entries])
        except CorruptDataError:
            continue
        assert found == expected
