"""What a command that was just started has in memory: none of what only some catalogs need."""

from __future__ import annotations

import subprocess
import sys

# Each takes 5 to 35 MiB and up to 0.4 s of CPU. pandas is what Arrow looks for as soon as it makes
# its first array from Python values; none is made by an import.
HEAVY = ("pandas", "sqlalchemy", "pyiceberg.catalog", "requests", "sqlglot", "pyspark",
         "confluent_kafka.schema_registry", "fastavro", "duckdb")  # fmt: skip
PROBE = f"""
import sys
import maintenance.cli.main
print(*[name for name in {HEAVY} if name in sys.modules])
"""


def test_command_line_is_imported_without_what_only_some_catalogs_need() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
