import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException

from tableformat import errors
from tableformat.spark.stream_errors import stream_error, telling_java_is_gone

PYTHON = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised
Traceback (most recent call last):
  File "worker.py", line 1, in parse
    raise {name}("x")
{line}

\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        (
            PYTHON.format(name="x", line="tableformat.errors.InvalidInputError: bad; row=1; do it"),
            errors.InvalidInputError,
            "bad; row=1; do it",
        ),
        (
            PYTHON.format(name="x", line="tableformat.errors.FencedError: a later batch"),
            errors.FencedError,
            "a later batch",
        ),
        (
            PYTHON.format(name="x", line="MemoryError: too much"),
            errors.InternalError,
            "Spark ended the stream: MemoryError: too much",
        ),
        (
            "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node\n\tat x",
            errors.StoreUnavailableError,
            "Kafka: Timed out waiting for a node",
        ),
        (
            "Some data may have been lost because they are not available in Kafka any more",
            errors.UnsupportedError,
            "the source no longer has messages that were not read yet; start again",
        ),
        (
            "[STREAM_FAILED] ... terminated with exception: assertion failed: If startingOffsets "
            "contains specific offsets, you must specify all TopicPartitions.",
            errors.StoreUnavailableError,
            "a topic or a partition came as the stream began; start the stream again",
        ),
        (
            "[SOMETHING] of Spark\nmore",
            errors.InternalError,
            "Spark ended the stream: [SOMETHING] of Spark",
        ),
    ],
)
def test_what_ended_a_stream_is_one_line_of_the_right_class(text, kind, line):
    error = stream_error(StreamingQueryException(text))
    assert type(error) is kind
    assert str(error).startswith(line)
    assert "\n" not in str(error)


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), Py4JNetworkError("x")])
def test_java_that_is_gone_is_one_line_or_the_end_of_a_stream_that_is_stopped(error):
    """It was told as an output that cannot be written."""
    told = pytest.raises(errors.StoreUnavailableError, match="Spark has ended")
    with told, telling_java_is_gone(lambda: False):
        raise error
    with telling_java_is_gone(lambda: True):
        raise error
