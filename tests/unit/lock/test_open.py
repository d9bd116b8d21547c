from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lock
from lock import InvalidLockError, LockManager, UnsafeStoreError, default_lock_url, open_lock
from lock.local_files import LocalConditionalStore
from lock.register import SwapOutcome
from tests.support.lock_seams import RandomIds, RealClock


def opened(url: str, **options: Any) -> LockManager:
    return open_lock(url, clock=RealClock(), ids=RandomIds(), **options)


def test_all_names_are_exported() -> None:
    names = {name for name, value in vars(lock).items() if not isinstance(value, ModuleType)}
    assert lock.__all__ == sorted(name for name in names if not name.startswith("_"))


@pytest.mark.parametrize(
    ("catalog", "expected"),
    [
        ("sqlite:///warehouse/catalog.db", "sqlite:///warehouse/catalog.db.locks"),
        ("sqlite:////srv/catalog.db", "sqlite:////srv/catalog.db.locks"),
        ("sqlite+pysqlite:////srv/c.db?timeout=5", "sqlite:////srv/c.db.locks?timeout=5"),
        ("sqlite://", "memory:"),
        ("memory:", "memory:"),
        ("sqlite:///:memory:", "memory:"),
        ("sqlite:///file:x?mode=memory&uri=true", "memory:"),
        ("postgresql+psycopg2://u:p@h/d", "postgresql+psycopg2://u:p@h/d"),
        ("postgresql://h/d", "postgresql://h/d"),
        ("https://catalog.example/v1", None),
        ("", None),
    ],
)
def test_default_follows_catalog(catalog: str, expected: str | None) -> None:
    assert default_lock_url(catalog) == expected


def test_default_for_sqlite_catalog_works_beside_it(tmp_path: Path) -> None:
    url = default_lock_url(f"sqlite:///{tmp_path}/catalog.db")
    assert url is not None
    with opened(url) as manager:
        assert manager.acquire("n", task="t").token == 1
    assert [path.name for path in tmp_path.iterdir()] == ["catalog.db.locks"]


def test_memory_is_shared_by_name() -> None:
    first, same, other = (opened(f"memory:{name}") for name in ("open-a", "open-a", "open-b"))
    assert first.acquire("n", task="t").token == 1
    assert same.try_acquire("n", task="t") is None
    assert other.try_acquire("n", task="t") is not None


def test_folder_with_spaces_is_a_store(tmp_path: Path) -> None:
    manager = opened(f"file://{tmp_path}/a%20b")
    assert manager.acquire("n", task="t").token == 1
    assert (tmp_path / "a b").is_dir()
    assert repr(manager) == f"LockManager('{tmp_path}/a b')"


@pytest.mark.parametrize(
    "url",
    [
        "file://host/folder",
        "file:relative",
        "s3:///prefix",
        "s3://key:hunter2@bucket/prefix",
        "s3://bucket/prefix?secret=hunter2",
        "abfss://container:hunter2@account.dfs.core.windows.net/prefix",
        "s3://bucket/prefix",
        "redis://h",
        "bucket/prefix",
    ],
)
def test_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidLockError) as caught:
        opened(url)
    assert "hunter2" not in str(caught.value)


def test_lease_time_of_manager_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidLockError, match="lease time"):
        opened("memory:open-c", lease_ms=1)


def test_store_without_conditions_is_refused_on_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I25."""

    def grant(store: LocalConditionalStore, key: str, data: bytes) -> SwapOutcome:
        (store._folder / key).write_bytes(data)
        return SwapOutcome.DONE

    tmp_path.joinpath("locks").mkdir()
    monkeypatch.setattr(LocalConditionalStore, "put_if_absent", grant)
    with pytest.raises(UnsafeStoreError):
        opened(f"file://{tmp_path}/locks")


@pytest.mark.parametrize(
    ("url", "missing", "extra"),
    [
        ("postgresql://h/d", "psycopg", "icefold[postgres]"),
    ],
)
def test_missing_driver_names_its_extra(
    url: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, module)
    load = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return load(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InvalidLockError, match=extra.replace("[", r"\[")):
        opened(url)


def test_fail_points_are_hit_around_every_change() -> None:
    hits: list[str] = []
    manager = opened("memory:open-d", fail_point=hits.append)
    with manager.hold("n", task="t", heartbeat=False) as lease:
        lease.confirm()
    assert hits == [
        "lock.before_acquire",
        "lock.after_acquire",
        "lock.before_renew",
        "lock.after_renew",
        "lock.before_release",
        "lock.after_release",
    ]
