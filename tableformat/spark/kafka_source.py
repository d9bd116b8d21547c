"""Change events from Apache Kafka: the connector's jars, a check of broker and topic, the stream.

Spark's Kafka connector is not part of PySpark. Its user brings four jars; what else Maven puts
beside them (Scala, Hadoop, logging) is in Spark already and would only clash, so of the files and
folders given only the jars that hold the connector's own classes are put on the class path.
"""

from __future__ import annotations

import difflib
import os
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

from tableformat.cdc.many.positions import NO_TOPIC_ID
from tableformat.errors import (
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)

# A class that each jar must hold, and the jar's name as Maven knows it. All must be there.
CONNECTOR_CLASSES = {
    "org/apache/spark/sql/kafka010/KafkaSourceProvider.class": "spark-sql-kafka-0-10_2.13",
    "org/apache/spark/kafka010/KafkaConfigUpdater.class": "spark-token-provider-kafka-0-10_2.13",
    "org/apache/kafka/clients/admin/AdminClient.class": "kafka-clients",
    "org/apache/commons/pool2/ObjectPool.class": "commons-pool2",
}
PREFIX = "kafka."
ANSWER_MS = 15_000  # how long the check waits for a broker; a healthy one answers in milliseconds
NEAR_TOPICS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """A topic to read.

    Attributes:
        servers: Bootstrap servers, `host:port,host:port`.
        topic: The topic. All changes of a key must be in one partition of it.
        starting_offsets: Where a new checkpoint begins: `earliest` or `latest`.
        batch_events: Messages per micro-batch, at most; None: all there are.
        settings: Kafka's own consumer settings (`security.protocol`, ...), with or without the
            prefix `kafka.`.
    """

    servers: str
    topic: str
    starting_offsets: str = "earliest"
    batch_events: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def client_settings(self) -> dict[str, str]:
        """Settings of a Kafka client, by Kafka's own names."""
        named = {name.removeprefix(PREFIX): text for name, text in self.settings.items()}
        return {"bootstrap.servers": self.servers} | named


def connector_class_path(given: Sequence[Path]) -> str:
    """The class path of Spark's Kafka connector, for `spark.driver.extraClassPath`.

    Args:
        given: Jars, and folders of jars.

    Returns:
        Paths joined as Java wants them; empty if `given` is, because PySpark's own folder of jars
        has the connector.

    Raises:
        NotFoundError: A path does not exist.
        InvalidInputError: Something given is no jar, or is made for another Scala.
        UnsupportedError: A part of the connector is missing; the message says which jar.
    """
    holders = _holders(_jars(given) if given else _own_jars())
    missing = [jar for name, jar in CONNECTOR_CLASSES.items() if name not in holders]
    if missing:
        raise UnsupportedError(
            "Spark has no Kafka connector" if not given else "the Kafka connector is incomplete",
            action="give the jar, or a folder with it, of org.apache.spark:"
            "spark-sql-kafka-0-10_2.13, and its dependencies; docs/kafka.md says which version for "
            f"Spark {pyspark.__version__.rpartition('.')[0]}",
            missing=", ".join(missing),
        )
    jars = dict.fromkeys(holders[name] for name in CONNECTOR_CLASSES) if given else {}
    return os.pathsep.join(str(jar.absolute()) for jar in jars)


def check_kafka(spark: SparkSession, source: KafkaSource) -> None:
    """Ask a broker for the topic, because Spark itself says neither quickly nor clearly.

    Raises:
        StoreUnavailableError: No broker answers.
        InvalidInputError: Kafka refuses a setting.
        NotFoundError: There is no such topic; the message names similar ones.
    """
    topics = _topics(spark, source)
    if source.topic in topics:
        return
    near = difflib.get_close_matches(source.topic, topics, n=NEAR_TOPICS_MAX)
    raise NotFoundError(
        f"there is no Kafka topic '{source.topic}'",
        action=f"did you mean '{near[0]}'?" if near else "create it, or name another",
        servers=source.servers,
        topics=", ".join(sorted(near or topics)[:NEAR_TOPICS_MAX]) or "none",
    )


def topic_ids(spark: SparkSession, source: KafkaSource, topics: Collection[str]) -> dict[str, str]:
    """Kafka's ids of topics, where brokers tell them (from 2.8 on).

    Raises:
        StoreUnavailableError, InvalidInputError: See `check_kafka`.
    """
    ids = {name: str(one.topicId()) for name, one in _described(spark, source, topics).items()}
    return {name: each for name, each in ids.items() if each != NO_TOPIC_ID}


def partition_bounds(
    spark: SparkSession, source: KafkaSource, places: Collection[tuple[str, int]]
) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """Where partitions begin, and where they end, now.

    Raises:
        StoreUnavailableError, InvalidInputError: See `check_kafka`.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - as in `_ask`
    at = {place: jvm.org.apache.kafka.common.TopicPartition(*place) for place in places}

    def bounds(spec: Any) -> dict[tuple[str, int], int]:
        wanted = jvm.java.util.HashMap()
        for each in at.values():
            wanted.put(each, spec)
        found = _ask(spark, source, lambda client: client.listOffsets(wanted).all().get())
        return {place: int(found.get(each).offset()) for place, each in at.items()}

    of = jvm.org.apache.kafka.clients.admin.OffsetSpec
    return bounds(of.earliest()), bounds(of.latest())


def topic_partitions(spark: SparkSession, source: KafkaSource) -> dict[str, int]:
    """All topics, with their number of partitions; `source.topic` is not looked at.

    Raises:
        StoreUnavailableError, InvalidInputError: See `check_kafka`.
    """
    described = _described(spark, source, _topics(spark, source))
    return {name: int(one.partitions().size()) for name, one in described.items()}


def kafka_events(spark: SparkSession, source: KafkaSource) -> DataFrame:
    """The topic's messages as a stream for `write_stream`.

    Raises:
        UnsupportedError: The session has no Kafka connector.
        InvalidInputError: Spark refuses a setting.
    """
    reader = (
        spark.readStream.format("kafka")
        .option("subscribe", source.topic)
        .option("startingOffsets", source.starting_offsets)
        .options(**{PREFIX + name: text for name, text in source.client_settings.items()})
    )
    if source.batch_events is not None:
        reader = reader.option("maxOffsetsPerTrigger", source.batch_events)
    try:
        return reader.load()
    except AnalysisException as error:
        raise UnsupportedError(
            "this Spark session has no Kafka connector",
            action="start it with the connector's jars on spark.driver.extraClassPath or "
            "spark.jars.packages",
        ) from error
    except IllegalArgumentException as error:
        raise InvalidInputError(f"Spark refuses a Kafka setting: {_line(str(error))}") from error


def _jars(given: Iterable[Path]) -> list[Path]:
    jars: list[Path] = []
    for path in given:
        if path.is_dir():
            jars += sorted(path.glob("*.jar"))
        elif path.is_file():
            jars.append(path)
        else:
            raise NotFoundError("no such jar or folder", file=path)
    return jars


def _own_jars() -> list[Path]:
    folder = Path(pyspark.__file__).parent / "jars"
    return [
        jar for jar in sorted(folder.glob("*.jar")) if "kafka" in jar.name or "pool2" in jar.name
    ]


def _holders(jars: Sequence[Path]) -> dict[str, Path]:
    """Which jar holds which of `CONNECTOR_CLASSES`."""
    holders: dict[str, Path] = {}
    for jar in jars:
        try:
            with zipfile.ZipFile(jar) as archive:
                found = CONNECTOR_CLASSES.keys() & set(archive.namelist())
        except (OSError, zipfile.BadZipFile) as error:
            raise InvalidInputError(f"not a readable jar: {error}", file=jar) from error
        if found and "_2.12" in jar.name:
            raise InvalidInputError(
                "the jar is made for Scala 2.12, PySpark runs on 2.13", file=jar
            )
        for name in found:
            holders.setdefault(name, jar)
    return holders


def _described(spark: SparkSession, source: KafkaSource, topics: Collection[str]) -> dict[str, Any]:
    """What Kafka's client says of topics: Java objects."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - as in `_ask`
    wanted = jvm.java.util.ArrayList()
    for name in topics:
        wanted.add(name)
    found = _ask(spark, source, lambda client: client.describeTopics(wanted).allTopicNames().get())
    return {name: found.get(name) for name in topics}


def _topics(spark: SparkSession, source: KafkaSource) -> list[str]:
    return [str(name) for name in _ask(spark, source, lambda c: c.listTopics().names().get())]


def _ask(spark: SparkSession, source: KafkaSource, question: Callable[[Any], Any]) -> Any:
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the only way to Kafka's own client
    settings = jvm.java.util.Properties()
    for name, text in (_waits(source.settings) | source.client_settings).items():
        settings.put(name, text)
    try:
        client = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            return question(client)
        finally:
            client.close()
    except Py4JJavaError as error:
        raise _client_error(error, source) from error
    except Py4JError as error:
        raise UnsupportedError("this Spark session has no Kafka client") from error


def _waits(given: Mapping[str, str]) -> dict[str, str]:
    """How long the client waits, unless the user says; one request no longer than all of them."""
    name = "default.api.timeout.ms"
    text = given.get(name, given.get(PREFIX + name, str(ANSWER_MS)))
    return {name: text, "request.timeout.ms": text}


def _client_error(
    error: Py4JJavaError, source: KafkaSource
) -> StoreUnavailableError | InvalidInputError:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    reason = _line(str(cause.getMessage()))
    name = cause.getClass().getSimpleName()
    if "Config" in name or name in ("IllegalArgumentException", "LoginException"):
        return InvalidInputError(f"Kafka refuses a setting: {reason}", servers=source.servers)
    if "Auth" in name:
        return InvalidInputError(f"Kafka refuses the login: {reason}", servers=source.servers)
    return StoreUnavailableError(
        f"no Kafka broker answers: {reason}",
        action="check the address, and that the broker runs",
        servers=source.servers,
    )


def _line(text: str) -> str:
    return text.strip().split("\n", 1)[0]
