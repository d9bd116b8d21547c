"""The object store on S3 beside PyArrow's: small reads, large writes and reads, lists, Parquet.

moto serves on loopback, in a process of its own. Each figure is the best of `--rounds`; both take
turns, so that what else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import requests
from pyarrow.fs import FileSelector, S3FileSystem

from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations
from tests.support.ports import free_port

SMALL, SMALL_BYTES, LARGE_BYTES, THREADS = 200, 4_096, 64 << 20, 8
ROOT = "bench/t"


@contextmanager
def moto() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        while server.poll() is None:
            try:
                requests.put(f"{endpoint}/bench", timeout=5).raise_for_status()
                break
            except requests.ConnectionError:
                time.sleep(0.1)
        yield endpoint
    finally:
        server.kill()
        server.wait()


class Ours:
    """The store, as the rest of icefold uses it."""

    def __init__(self, endpoint: str) -> None:
        properties = {
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": "testing",
            "s3.secret-access-key": "testing",
        }
        self.store = ArrowObjectStore(properties, AllowedLocations(["s3://bench"]))

    def read(self, name: str) -> bytes:
        return self.store.get(f"s3://{name}")

    def read_range(self, name: str) -> bytes:
        return self.store.get(f"s3://{name}", offset=SMALL_BYTES // 4, length=SMALL_BYTES // 2)

    def write(self, name: str, data: bytes) -> None:
        with self.store.open_output(f"s3://{name}") as sink:
            sink.write(data)

    def names(self) -> int:
        return len(list(self.store.list_prefix(f"s3://{ROOT}/small")))

    def open(self, name: str) -> pa.NativeFile:
        return self.store.open_input(f"s3://{name}")


class Arrow(Ours):
    """PyArrow's own file system on the same server."""

    def __init__(self, endpoint: str) -> None:
        self.files = S3FileSystem(
            access_key="testing", secret_key="testing", region="us-east-1",
            endpoint_override=endpoint,
        )  # fmt: skip

    def read(self, name: str) -> bytes:
        with self.files.open_input_stream(name) as source:
            return source.read()

    def read_range(self, name: str) -> bytes:
        with self.files.open_input_file(name) as source:
            return source.read_at(SMALL_BYTES // 2, SMALL_BYTES // 4)

    def write(self, name: str, data: bytes) -> None:
        with self.files.open_output_stream(name) as sink:
            sink.write(data)

    def names(self) -> int:
        return len(self.files.get_file_info(FileSelector(f"{ROOT}/small")))

    def open(self, name: str) -> pa.NativeFile:
        return self.files.open_input_file(name)


def small_names() -> list[str]:
    return [f"{ROOT}/small/{number:05}" for number in range(SMALL)]


def in_threads(act: Callable[[str], object]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(act, small_names()))


def cases(serial: Iterator[int]) -> dict[str, Callable[[Ours], object]]:
    large = os.urandom(LARGE_BYTES)

    def each(act: Callable[[str], object]) -> None:
        for name in small_names():
            act(name)

    def parquet(side: Ours) -> None:
        with side.open(f"{ROOT}/table.parquet") as source:
            pq.ParquetFile(source).read(columns=["c1", "c4", "c9"])

    return {
        f"read {SMALL} x {SMALL_BYTES >> 10} KiB": lambda side: each(side.read),
        f"read {SMALL} ranges": lambda side: each(side.read_range),
        f"read {SMALL}, {THREADS} threads": lambda side: in_threads(side.read),
        f"write {LARGE_BYTES >> 20} MiB": lambda s: s.write(f"{ROOT}/large-{next(serial)}", large),
        f"read {LARGE_BYTES >> 20} MiB": lambda side: side.read(f"{ROOT}/large-0"),
        f"list {SMALL}": lambda side: side.names(),
        "3 of 10 columns of Parquet": parquet,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with moto() as endpoint:
        sides = {"obstore": Ours(endpoint), "arrow": Arrow(endpoint)}
        ours = sides["obstore"]
        for name in small_names():
            ours.write(name, os.urandom(SMALL_BYTES))
        ours.write(f"{ROOT}/large-0", os.urandom(LARGE_BYTES))
        table = pa.table(
            {f"c{number}": np.random.default_rng(1).random(500_000) for number in range(10)}
        )
        with ours.store.open_output(f"s3://{ROOT}/table.parquet") as sink:
            pq.write_table(table, sink, row_group_size=100_000)
        print(f"{'':26} {'obstore ms':>11} {'arrow ms':>11}   load {os.getloadavg()[0]:.1f}")
        for what, act in cases(iter(range(1, 10_000))).items():
            best = dict.fromkeys(sides, float("inf"))
            for _ in range(options.rounds):
                for name, side in sides.items():
                    began = time.perf_counter()
                    act(side)
                    best[name] = min(best[name], 1e3 * (time.perf_counter() - began))
            print(f"{what:26} {best['obstore']:11.1f} {best['arrow']:11.1f}", flush=True)


if __name__ == "__main__":
    main()
