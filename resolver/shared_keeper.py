"""Keeps a primary-key index in shared storage in step with the head of a target branch.

The newest version is looked for each time: another process may have moved the index, and what it
left is as good as what this one knew. Missing, damaged, for another table or key, or bound to a
snapshot that is gone: built afresh, as the next version.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import quote

from resolver.engine import Engine
from resolver.index.base import IndexBinding, PrimaryKeyIndex
from resolver.index.build import BuildOptions
from resolver.index.depot import IndexDepot
from resolver.index.shared import IndexMovedError, SharedIndex, Workplace
from resolver.index.shared_build import OpenedShared, build_shared, open_shared
from resolver.index_keeper import (
    MANIFEST_NOTES,
    Progress,
    TargetHead,
    bring_to_head,
    index_folder,
    note_seen,
    user_cache,
)
from resolver.runner import LocalRunner, Runner
from resolver.target import LiveFiles
from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import recall_manifests
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError

logger = logging.getLogger("icefold.resolver")

INDEX_LOCATION = "index-location"
INDEX_CACHE = "index-cache-directory"
WAREHOUSE_FOLDER = ".icefold/shared-index"
MOVED_ATTEMPTS_MAX = 3


def configured_root(environment: Environment) -> str | None:
    """The catalog property `index-location`: where shared indexes are kept."""
    return environment.catalog.properties.get(INDEX_LOCATION)


def default_root(environment: Environment) -> str:
    """Where shared indexes are kept when nothing is configured: beside the tables.

    Raises:
        InvalidInputError: The catalog's warehouse is a name, not a place.
    """
    warehouse = environment.catalog.properties.get("warehouse", "")
    if ":/" not in warehouse:
        raise InvalidInputError(
            "there is no place for an index that executors share",
            action=f"set the catalog property {INDEX_LOCATION!r} to a folder that all reach",
            warehouse=repr(warehouse),
        )
    return f"{warehouse.rstrip('/')}/{WAREHOUSE_FOLDER}"


def index_depot(environment: Environment, root: str, state: TableState, target: str) -> IndexDepot:
    """The index of one branch of one table; by table uuid, as `index_keeper.index_folder`."""
    branch = quote(target, safe="")
    return IndexDepot(environment.store, f"{root.rstrip('/')}/{state.metadata.table_uuid}/{branch}")


def own_cache_folder(properties: Mapping[str, str], depot: IndexDepot) -> Path:
    """Where this process keeps copies of an index: the configured folder, or the user's cache."""
    configured = properties.get(INDEX_CACHE)
    base = Path(configured) if configured else user_cache() / "index-cache"
    return base.absolute() / cache_name(depot.root)


def cache_name(root: str) -> str:
    """The name of an index's folder in a cache."""
    return hashlib.sha256(root.encode()).hexdigest()[:24]


def notes_folder(environment: Environment, state: TableState, target: str) -> Path:
    """Where this machine keeps what it has seen in manifests: beside the index, or its copies."""
    root = configured_root(environment)
    if root is None:
        return index_folder(environment, state, target)
    depot = index_depot(environment, root, state, target)
    return own_cache_folder(environment.catalog.properties, depot)


def open_here(environment: Environment, depot: IndexDepot, wanted: IndexBinding) -> OpenedShared:
    """Open an index with all work in this process, to look at it."""
    own = own_cache_folder(environment.catalog.properties, depot)
    here = Workplace(runner=LocalRunner(), cache=partial(Path, str(own)), own_cache=own)
    return open_shared(depot, wanted, here, environment.runtime)


@dataclass(slots=True)
class SharedIndexKeeper:
    """`IndexKeeper` over shared storage. Close it.

    Attributes:
        environment: Where data files are read.
        depot: Shared storage.
        engine: Runs the work; asked anew for each step.
        executor_cache: Gives the cache folder of the index on an executor. Pickles.
        rebuild: Build afresh once, whatever is there.
        progress: Told how far a build is.
    """

    environment: Environment
    depot: IndexDepot
    engine: Engine
    executor_cache: Callable[[], Path]
    rebuild: bool = False
    progress: Progress | None = None
    _index: SharedIndex | None = field(default=None, init=False)
    _runner: Runner | None = field(default=None, init=False)
    _live: LiveFiles | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        recall_manifests(self.environment.store, self._own_cache / MANIFEST_NOTES)

    def close(self) -> None:
        """Close the index; for a later process, note what was read."""
        if self._index is not None:
            note_seen(self.environment, self._own_cache, self._live)
            self._index.close()
            self._index = None

    def at_head(
        self, state: TableState, target: str, live: LiveFiles, *, rebuild: bool = False
    ) -> tuple[PrimaryKeyIndex, str]:
        """See `IndexKeeper`.

        Raises:
            IndexMovedError: Other processes kept moving the index.
        """
        self.rebuild = self.rebuild or rebuild
        self._live = live
        head = TargetHead.of(self.environment, state, target, live)
        for _ in range(MOVED_ATTEMPTS_MAX - 1):
            try:
                return self._at_head(head)
            except IndexMovedError as error:
                logger.info("%s", error)
                self.close()
        return self._at_head(head)

    def _at_head(self, head: TargetHead) -> tuple[PrimaryKeyIndex, str]:
        index = None if self.rebuild else self._newest(head.wanted)
        return bring_to_head(head, index, self._build, name=self.depot.root)

    def _newest(self, wanted: IndexBinding) -> SharedIndex | None:
        known = self._index
        runner = self.engine.runner
        if (
            known is not None
            and self._runner is runner
            and known.version.number == self.depot.newest_number()
        ):
            return known
        self.close()
        runtime = self.environment.runtime
        opened = open_shared(self.depot, wanted, self._workplace(runner), runtime)
        if opened.index is None:
            logger.info("index %s: %s", self.depot.root, opened.detail)
        self._index, self._runner = opened.index, runner
        return opened.index

    def _build(self, head: TargetHead) -> SharedIndex:
        self.close()
        sources = head.sources()
        rows = sum(source.record_count for source in sources)
        runner = self.engine.runner_for_rows(rows, head.state.metadata.properties)
        built = build_shared(
            self.depot,
            head.wanted,
            head.reader.key,
            sources,
            self._workplace(runner),
            runtime=self.environment.runtime,
            options=BuildOptions.of_table(head.state.metadata.location),
            progress=self.progress,
        )
        self.rebuild = False
        self._index, self._runner = built, runner
        return built

    def _workplace(self, runner: Runner) -> Workplace:
        own = self._own_cache
        on_task = partial(Path, str(own)) if runner.name == "local" else self.executor_cache
        return Workplace(runner=runner, cache=on_task, own_cache=own)

    @property
    def _own_cache(self) -> Path:
        return own_cache_folder(self.environment.catalog.properties, self.depot)
