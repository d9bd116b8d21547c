"""Who does the work of a cycle, and where the index is kept for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from resolver.engine import Engine, EngineName
from resolver.index_keeper import LocalIndexKeeper, Progress, index_folder
from resolver.open_indexes import OpenIndexes
from resolver.shared_keeper import (
    INDEX_CACHE,
    SharedIndexKeeper,
    cache_name,
    configured_root,
    default_root,
    index_depot,
)
from tableformat import InvalidInputError, Table, UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Keeper = LocalIndexKeeper | SharedIndexKeeper
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit has started a JVM for this process


@dataclass(frozen=True, slots=True)
class Workers:
    """The engine, and what it means for the place of the index."""

    engine: Engine
    is_cluster: bool = False
    executor_cache: Callable[[str], Path] | None = None

    @staticmethod
    def of(table: Table, name: EngineName, spark: SparkSession | None) -> Workers:
        """For an engine's name: see `resolve`."""
        is_loaded = spark is not None or "pyspark" in sys.modules or SUBMITTED in os.environ
        if name == "local" or (name == "auto" and not is_loaded):
            return Workers(Engine(name=name))
        try:
            from resolver import spark_runner
        except ImportError as error:
            if name == "auto":
                return Workers(Engine(name=name))
            raise UnsupportedError(
                "the engine spark needs PySpark", action="pip install 'icefold[spark]'"
            ) from error
        session = spark_runner.open_session(
            spark, is_submitted=SUBMITTED in os.environ, start=name == "spark"
        )
        if session is None:
            return Workers(Engine(name=name))
        environment = table.environment
        try:
            runner = spark_runner.SparkRunner(session, environment.store)
        except UnsupportedError:
            if name == "spark":
                raise
            return Workers(Engine(name=name))  # a store in this process: nothing to choose
        configured = environment.catalog.properties.get(INDEX_CACHE)
        return Workers(
            Engine(name=name, spark=runner),
            spark_runner.is_cluster(session),
            partial(spark_runner.executor_cache, configured),
        )

    def open_keeper(
        self,
        table: Table,
        target: str,
        *,
        directory: str | os.PathLike[str] | None = None,
        location: str | None = None,
        rebuild: bool = False,
        progress: Progress | None = None,
        indexes: OpenIndexes | None = None,
    ) -> Keeper:
        """What brings the index of `target` along, in a local folder or in shared storage.

        Close it. The arguments are those of `resolve`.
        """
        environment, state = table.environment, table.state
        if directory is not None and location is not None:
            raise InvalidInputError(
                "an index is in a local folder or in shared storage, not in both",
                index_directory=directory,
                index_location=location,
            )
        root = None if directory is not None else location or configured_root(environment)
        if root is None and directory is None and self.is_cluster:
            root = default_root(environment)
        if root is None:
            folder = (
                index_folder(environment, state, target) if directory is None else Path(directory)
            )
            return LocalIndexKeeper(
                environment, folder, rebuild=rebuild, progress=progress, indexes=indexes
            )
        depot = index_depot(environment, root, state, target)
        cache: Callable[[], Path] = Path  # without executors nobody asks
        if self.executor_cache is not None:
            cache = partial(self.executor_cache, cache_name(depot.root))
        return SharedIndexKeeper(
            environment, depot, self.engine, cache, rebuild=rebuild, progress=progress
        )
