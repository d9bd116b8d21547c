"""What obstore's client of an S3 bucket answers: a dict, conditions, errors on demand."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
)


@dataclass
class FakeBucket:
    """`ignores` may name `create` and `match`. `answers`: of the next puts, before any effect."""

    ignores: tuple[str, ...] = ()
    answers: list[int] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        data = self.objects.get(key)
        if data is None:
            raise refusal(404, "NoSuchKey")
        meta = {"size": len(data), "e_tag": _tag(data), "version": None}
        return SimpleNamespace(meta=meta, bytes=lambda: data)

    def put(self, key: str, data: bytes, *, mode: Any) -> None:
        if self.answers:
            raise refusal(self.answers.pop(), "Injected")
        found = self.objects.get(key)
        if mode == "create":
            is_refused = found is not None and "create" not in self.ignores
        else:
            is_true = found is not None and _tag(found) == mode["e_tag"]
            is_refused = not is_true and "match" not in self.ignores
        if is_refused:
            raise refusal(412, "PreconditionFailed", is_create=mode == "create")
        self.objects[key] = data

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


def refusal(status: int, code: str, *, is_create: bool = False) -> Exception:
    """The library's error for a server's answer."""
    classes = {404: FileNotFoundError, 409: AlreadyExistsError, 403: PermissionDeniedError}
    classes[412] = AlreadyExistsError if is_create else PreconditionError
    text = (
        f"Server returned non-2xx status code: {status} Words: <Error><Code>{code}</Code></Error>"
    )
    return classes.get(status, GenericError)(text)  # type: ignore[no-any-return]


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
