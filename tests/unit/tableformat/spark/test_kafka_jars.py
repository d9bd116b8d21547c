"""The connector's jars are found, and what is wrong with them is said, before Spark starts."""

import os
import zipfile
from pathlib import Path

import pytest

from tableformat import InvalidInputError, NotFoundError, UnsupportedError
from tableformat.spark.kafka_source import CONNECTOR_CLASSES, connector_class_path


@pytest.fixture
def jars(tmp_path):
    folder = tmp_path / "jars"
    folder.mkdir()
    for name, jar in CONNECTOR_CLASSES.items():
        write_jar(folder / f"{jar}-1.jar", name)
    write_jar(folder / "scala-library-2.13.jar", "scala/Option.class")
    return folder


def write_jar(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def test_class_path_has_the_connectors_own_jars_only(jars):
    path = connector_class_path([jars])
    names = {Path(jar).name for jar in path.split(os.pathsep)}
    assert names == {f"{jar}-1.jar" for jar in CONNECTOR_CLASSES.values()}
    assert connector_class_path(sorted(jars.glob("*.jar"), reverse=True)) == path


def test_one_jar_with_everything_is_enough(tmp_path):
    whole = write_jar(tmp_path / "assembly.jar", *CONNECTOR_CLASSES)
    assert connector_class_path([whole]) == str(whole)


@pytest.mark.parametrize("jar", CONNECTOR_CLASSES.values())
def test_missing_jar_is_named(jars, jar):
    (jars / f"{jar}-1.jar").unlink()
    with pytest.raises(UnsupportedError, match=f"incomplete; missing={jar}; give"):
        connector_class_path([jars])


def test_no_jar_given_says_which_to_give():
    with pytest.raises(
        UnsupportedError, match=r"Spark has no Kafka connector.*spark-sql-kafka-0-10"
    ):
        connector_class_path([])


def test_path_that_is_no_jar_is_named(jars, tmp_path):
    with pytest.raises(NotFoundError, match=r"no such jar or folder; file=.*nowhere\.jar"):
        connector_class_path([tmp_path / "nowhere.jar"])
    (jars / "broken.jar").write_text("not a jar")
    with pytest.raises(InvalidInputError, match=r"not a readable jar.*broken\.jar"):
        connector_class_path([jars])


def test_jar_for_another_scala_is_refused(jars):
    [(name, _), *_] = CONNECTOR_CLASSES.items()
    write_jar(jars / "spark-sql-kafka-0-10_2.12-3.jar", name)
    with pytest.raises(InvalidInputError, match=r"made for Scala 2\.12"):
        connector_class_path([jars])
