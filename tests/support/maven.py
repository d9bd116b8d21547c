"""Jars from Maven Central, fetched once into `<checkout>/.cache`, whole or not at all."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache"
_MORE = ("classifier", "type")
GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Maven's local repository is not made for several processes that fill it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "maven-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch_jars(folder: Path, artifacts: Sequence[str], *, transitive: bool) -> str | None:
    """Copy jars into a folder of the cache; why not, if not.

    Args:
        folder: Where to; what is there is taken as it is.
        artifacts: `group:artifact:version`, with `:classifier` or `:classifier:type` behind or not.
        transitive: With what they need, too.

    """
    with one_at_a_time():
        if folder.exists():
            return None
        maven = shutil.which("mvn")
        if maven is None:
            return f"mvn is not installed: {artifacts[0]} cannot be fetched"
        return _fetch(maven, folder, artifacts, transitive=transitive)


def _fetch(maven: str, folder: Path, artifacts: Sequence[str], *, transitive: bool) -> str | None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
        Path(fresh, "pom.xml").write_text(_pom(artifacts, transitive=transitive))
        command = [maven, "-q", "-B", GOAL, "-DincludeScope=runtime", "-DoutputDirectory=jars"]
        done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"mvn could not fetch {artifacts[0]}: {(done.stdout + done.stderr)[-300:]}"
        for jar in Path(fresh, "jars").glob("*.jar"):
            zipfile.ZipFile(jar).close()
        Path(fresh, "jars").rename(folder)
    return None


def _pom(artifacts: Sequence[str], *, transitive: bool) -> str:
    everything = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    alone = f"<exclusions>{everything}</exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>"
        f"{''.join(f'<{name}>{one}</{name}>' for name, one in zip(_MORE, more, strict=False))}"
        f"{'' if transitive else alone}</dependency>"
        for group, artifact, version, *more in (one.split(":") for one in artifacts)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>icefold.tests</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
