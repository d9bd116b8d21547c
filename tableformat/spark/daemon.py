"""Spark's daemon of Python workers with our modules loaded: the workers, its forks, share them.

Each would load them for itself otherwise: a second before the first task after a quiet minute.
Sessions that icefold makes name it as `spark.python.daemon.module`.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401 - shared, as are the next two
from pyspark.daemon import manager

import tableformat.cdc.registry.decoder
import tableformat.spark.change_frame  # noqa: F401

if __name__ == "__main__":
    manager()
