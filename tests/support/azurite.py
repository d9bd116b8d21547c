"""Azure Blob Storage for tests: Azurite on loopback, started at first use.

It is an npm package: `azurite-blob` on the PATH, or fetched once into `<checkout>/.cache/azurite`.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import fcntl
import functools
import hashlib
import hmac
import itertools
import shutil
import subprocess
import time
from email.utils import formatdate
from pathlib import Path

import pytest
import requests

from tests.support.ports import free_port

VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
# The key that every Azurite has: it is in Microsoft's documentation.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_CACHE = Path(__file__).parents[2] / ".cache" / "azurite"
_FETCH_MAX_S = 300
_containers = itertools.count(1)


@functools.cache
def azurite() -> str:
    """Host and port of the server of this test run; skips where it cannot be had."""
    port = free_port()
    server = subprocess.Popen(
        [
            _program(), "--blobPort", str(port), "--inMemoryPersistence", "--silent",
            "--skipApiVersionCheck", "--disableTelemetry",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    atexit.register(server.kill)
    for _ in range(600):
        with contextlib.suppress(requests.ConnectionError):
            requests.get(f"http://127.0.0.1:{port}/{ACCOUNT}", timeout=5)
            return f"127.0.0.1:{port}"
        time.sleep(0.1)
    raise RuntimeError("Azurite was started and does not answer")


def azure_properties() -> dict[str, str]:
    """Catalog properties that reach the server."""
    return {
        "adls.account-name": ACCOUNT,
        "adls.account-key": KEY,
        "adls.blob-storage-authority": azurite(),
        "adls.blob-storage-scheme": "http",
    }


def fresh_container() -> str:
    """A new, empty container, as the authority of a location."""
    name = f"container-{next(_containers)}"
    create_container(name)
    return f"{name}@{ACCOUNT}.dfs.core.windows.net"


def create_container(name: str) -> None:
    """One request, signed by hand: obstore makes no containers."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    named = "\n".join(f"{key}:{value}" for key, value in sorted(headers.items()))
    lines = "\n" * 12
    text = f"PUT{lines}{named}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"http://{azurite()}/{ACCOUNT}/{name}?restype=container"
    reply = requests.put(url, headers=headers, timeout=10)
    assert reply.status_code in {201, 409}, reply.text


def _program() -> str:
    missing = missing_azurite()
    if missing is not None:
        pytest.skip(missing)
    return shutil.which("azurite-blob") or str(_CACHE / "node_modules" / ".bin" / "azurite-blob")


def missing_azurite() -> str | None:
    """Why there is no Azurite; fetches it where it is not installed."""
    if shutil.which("azurite-blob") is not None:
        return None
    npm = shutil.which("npm")
    if npm is None:
        return "no Azurite: neither azurite-blob nor npm is on the PATH"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (_CACHE / "complete").exists():
            command = [npm, "install", "--prefix", str(_CACHE), f"azurite@{VERSION}"]
            try:
                done = subprocess.run(
                    command, cwd=_CACHE, capture_output=True, text=True, check=False,
                    timeout=_FETCH_MAX_S,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return f"no Azurite: npm did not fetch it within {_FETCH_MAX_S} s"
            if done.returncode:
                return f"no Azurite: npm could not fetch it: {done.stderr[-200:]}"
            (_CACHE / "complete").touch()
    return None
