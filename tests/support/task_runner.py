"""A cluster's runner without a cluster."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path

from pyspark import cloudpickle

from resolver.engine import Engine
from resolver.runner import LocalRunner
from resolver.workers import Workers


class TaskRunner(LocalRunner):
    """Tasks, items, parts and answers travel pickled, as on Spark.

    Attributes:
        runs: How often each task runs; the last answer counts.
    """

    name = "spark"

    def __init__(self) -> None:
        super().__init__(2)
        self.runs = 1
        self.shuffled: list[int] = []  # shards of each shuffle
        self.sizes_bytes: list[int] = []  # of what comes back to the driver
        self.tasks: list[str] = []

    def run(self, task, items):
        self.tasks.append(getattr(task, "func", task).__name__)
        return [self._ask(task, item) for item in items]

    def shuffle(self, split, items, merge, shard_count, *, more=()):
        self.shuffled.append(shard_count)
        parts = defaultdict(list)
        for item in items:
            for shard, part in self._sent(list)(self._sent(split)(self._sent(item))):
                parts[shard].append(self._sent(part))
        for shard, part in more:
            parts[shard].append(self._sent(part))
        return [self._ask(merge, shard, parts[shard]) for shard in range(shard_count)]

    def _ask(self, task, *items):
        for _ in range(self.runs):
            *sent, last = map(self._sent, items)
            answer = self._sent(task)(*sent, iter(last) if isinstance(last, list) else last)
        data = cloudpickle.dumps(answer)
        self.sizes_bytes.append(len(data))
        return pickle.loads(data)

    @staticmethod
    def _sent(value):
        return pickle.loads(cloudpickle.dumps(value))


def on_tasks(monkeypatch, folder: Path) -> TaskRunner:
    """Let `resolve` work with tasks; executors keep copies of an index in `folder`."""
    runner = TaskRunner()

    def workers(table, name, spark):
        if name == "local":
            return Workers(Engine(name="local"))
        return Workers(Engine(name=name, spark=runner), executor_cache=folder.joinpath)

    monkeypatch.setattr(Workers, "of", staticmethod(workers))
    return runner
