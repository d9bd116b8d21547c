"""The XML API of Google Cloud Storage, as far as an object store needs it, in memory.

No emulator that can be installed has it whole: gcp-storage-emulator and fake-gcs-server know
preconditions in the JSON API only. So this is our own reading of Google's reference: generations,
`x-goog-if-generation-match`, metadata, ranges, lists. It knows no credentials.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from tests.support.s3_server import S3Server, serve

_buckets = itertools.count(1)
_PAGE = 1000


@dataclass
class _Object:
    data: bytes
    generation: int
    metadata: list[tuple[str, str]]
    stored_s: float = field(default_factory=time.time)

    @property
    def stored(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(self.stored_s))

    def headers(self) -> list[tuple[str, str]]:
        return [
            ("ETag", f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'),
            ("x-goog-generation", str(self.generation)),
            ("Last-Modified", formatdate(self.stored_s, usegmt=True)),
            *self.metadata,
        ]


@dataclass
class Gcs:
    """Buckets of objects; one request at a time."""

    buckets: dict[str, dict[str, _Object]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    generations: Iterator[int] = field(default_factory=lambda: itertools.count(10**15))

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"].encode("latin-1").decode()
        bucket, _, key = path.removeprefix("/").partition("/")
        with self.lock:
            objects = self.buckets.get(bucket)
            if objects is None:
                status, headers, body = _error(404, "NoSuchBucket")
            elif not key:
                status, headers, body = self.listed(objects, environ["QUERY_STRING"])
            else:
                act = getattr(self, environ["REQUEST_METHOD"].lower())
                status, headers, body = act(objects, key, environ)
        shown = b"" if environ["REQUEST_METHOD"] == "HEAD" else body
        start(f"{status} Status", [*headers, ("Content-Length", str(len(body)))])
        return [shown]

    def put(self, objects: dict[str, _Object], key: str, environ: dict[str, Any]) -> Any:
        data = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        wanted, found = environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH"), objects.get(key)
        if wanted is not None and int(wanted) != (found.generation if found else 0):
            return _error(412, "PreconditionFailed")
        metadata = [
            ("x-goog-meta-" + name.removeprefix("HTTP_X_GOOG_META_").lower(), value)
            for name, value in environ.items()
            if name.startswith("HTTP_X_GOOG_META_")
        ]
        objects[key] = _Object(data, next(self.generations), metadata)
        return 200, objects[key].headers(), b""

    def get(self, objects: dict[str, _Object], key: str, environ: dict[str, Any]) -> Any:
        found = objects.get(key)
        if found is None:
            return _error(404, "NoSuchKey")
        size = len(found.data)
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", environ.get("HTTP_RANGE", ""))
        if asked is None:
            return 200, found.headers(), found.data
        if asked[1]:
            first, last = int(asked[1]), min(int(asked[2] or size), size - 1)
        else:
            first, last = max(size - int(asked[2]), 0), size - 1
        if first >= size:
            return _error(416, "InvalidRange")
        where = ("Content-Range", f"bytes {first}-{last}/{size}")
        return 206, [*found.headers(), where], found.data[first : last + 1]

    head = get

    def delete(self, objects: dict[str, _Object], key: str, environ: dict[str, Any]) -> Any:
        return (204, [], b"") if objects.pop(key, None) else _error(404, "NoSuchKey")

    def listed(self, objects: dict[str, _Object], query: str) -> Any:
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        after = max(asked.get("start-after", ""), asked.get("continuation-token", ""))
        names = [key for key in sorted(objects) if key.startswith(asked.get("prefix", ""))]
        names = [key for key in names if key > after]
        page, rest = names[:_PAGE], names[_PAGE:]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key].data)}</Size>"
            f"<LastModified>{objects[key].stored}</LastModified><ETag>x</ETag></Contents>"
            for key in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest else ""
        body = f"<ListBucketResult>{contents}{more}</ListBucketResult>"
        return 200, [("Content-Type", "application/xml")], body.encode()


def _error(status: int, code: str) -> Any:
    return status, [], f"<Error><Code>{code}</Code></Error>".encode()


@functools.cache
def gcs_server() -> tuple[S3Server, Gcs]:
    """The server of this test run, and what it holds."""
    gcs = Gcs()
    return serve(gcs, threaded=True), gcs


def gcs_properties() -> dict[str, str]:
    """Catalog properties that reach the server."""
    return {"gcs.service.host": gcs_server()[0].endpoint, "gcs.oauth2.token": "testing"}


def fresh_gcs_bucket() -> str:
    """A new, empty bucket."""
    name = f"bucket-{next(_buckets)}"
    gcs_server()[1].buckets[name] = {}
    return name
