from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tableformat.cached import cached_property


class File:
    def __init__(self, read):
        self._read = read
        self.reads = 0

    @cached_property
    def content(self):
        """What is in it."""
        self.reads += 1
        return self._read()


def test_value_is_computed_at_the_first_look():
    file = File(object)

    assert file.reads == 0
    assert file.content is file.content
    assert file.reads == 1
    assert File.content.__doc__ == "What is in it."


def test_failure_is_not_kept():
    content = []
    file = File(content.pop)

    with pytest.raises(IndexError):
        _ = file.content
    content.append("rows")
    assert file.content == "rows"


def test_instances_do_not_wait_for_each_other():
    both = Barrier(2, timeout=20)  # seconds; passes when both are reading
    files = [File(both.wait), File(both.wait)]

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda file: file.content, files)) == [0, 1]


def test_threads_see_one_value():
    both = Barrier(2, timeout=20)

    def read():
        both.wait()
        return object()

    file = File(read)
    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(lambda _: file.content, range(2)))
    assert seen[0] is seen[1] is file.content
