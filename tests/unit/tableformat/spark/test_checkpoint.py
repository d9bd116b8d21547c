"""A stream's checkpoint knows whose it is; a wrong one is refused before Spark starts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tableformat.cdc.batch_commit import BatchId
from tableformat.errors import InvalidInputError, StoreUnavailableError
from tableformat.spark.checkpoint import (
    CheckpointedStream,
    check_checkpoint,
    claim_checkpoint,
    note_batch,
    noted_batch,
)

MINE = CheckpointedStream(table="a.b", table_uuid="u1", branch="staging", topic="orders")


def sparks(folder, *sources: object, batch: int = 10) -> None:
    """A log of offsets as Spark writes it."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "9").write_text('v1\n{}\n{"older":{"0":1}}\n')
    (folder / "offsets" / f".{batch}.crc").write_text("x")
    lines = ["v1", json.dumps({"batchWatermarkMs": 0}), *map(json.dumps, sources)]
    (folder / "offsets" / str(batch)).write_text("\n".join(lines))


def test_checking_a_folder_that_is_not_there_makes_nothing(tmp_path) -> None:
    check_checkpoint(tmp_path / "new", MINE)
    assert not list(tmp_path.iterdir())


def test_its_own_stream_may_come_back(tmp_path) -> None:
    for _ in range(2):
        check_checkpoint(tmp_path / "c", MINE)
        claim_checkpoint(tmp_path / "c", MINE).close()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(MINE, topic="payments"), "belongs to Kafka topic 'orders'"),
        (replace(MINE, topic=None, folder="/x"), "belongs to Kafka topic 'orders'"),
        (replace(MINE, branch="staging2"), "belongs to branch 'staging'"),
        (replace(MINE, table="a.c", table_uuid="u2"), r"belongs to a\.b"),
        (replace(MINE, table_uuid="u2"), "belongs to an earlier table of this name"),
    ],
)
def test_another_stream_is_refused_in_one_line(tmp_path, other, says) -> None:
    claim_checkpoint(tmp_path, MINE).close()
    for refuse in (check_checkpoint, claim_checkpoint):
        with pytest.raises(InvalidInputError, match=says) as caught:
            refuse(tmp_path, other)
        assert "\n" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)


def test_a_topic_with_another_id_is_refused_where_the_one_before_is_known(tmp_path) -> None:
    claim_checkpoint(tmp_path, MINE).close()  # brokers that tell no ids, or an older version
    claim_checkpoint(tmp_path, MINE, {"orders": "A"}).close()
    claim_checkpoint(tmp_path, MINE).close()
    for ids in ({"orders": "B"}, {"orders": "B", "payments": "C"}):
        with pytest.raises(InvalidInputError, match="'orders' was deleted and made anew") as caught:
            claim_checkpoint(tmp_path, MINE, ids)
        assert "\n" not in str(caught.value)
    claim_checkpoint(tmp_path, MINE, {"orders": "A"}).close()
    (tmp_path / "icefold.topics").unlink()  # as the line says
    claim_checkpoint(tmp_path, MINE, {"orders": "B"}).close()


def test_a_renamed_table_keeps_its_checkpoint(tmp_path) -> None:
    claim_checkpoint(tmp_path, MINE).close()
    check_checkpoint(tmp_path, replace(MINE, table="a.renamed"))


def test_a_folder_that_was_made_by_spark_alone_tells_its_topic(tmp_path) -> None:
    sparks(tmp_path, {"payments": {"0": 5, "1": 7}})
    with pytest.raises(InvalidInputError, match="belongs to Kafka topic 'payments'"):
        check_checkpoint(tmp_path, MINE)
    check_checkpoint(tmp_path, replace(MINE, topic="payments"))
    with pytest.raises(InvalidInputError, match="Kafka topic 'payments'"):
        check_checkpoint(tmp_path, replace(MINE, topic=None, folder="/x"))


def test_the_checkpoint_of_a_query_on_files_is_no_topics(tmp_path) -> None:
    sparks(tmp_path, {"logOffset": 3})
    with pytest.raises(InvalidInputError, match="another source than Kafka"):
        check_checkpoint(tmp_path, MINE)
    check_checkpoint(tmp_path, replace(MINE, topic=None, folder="/x"))


def test_a_stream_whose_source_is_not_known_is_told_by_its_table(tmp_path) -> None:
    claim_checkpoint(tmp_path, replace(MINE, topic=None)).close()
    check_checkpoint(tmp_path, MINE)
    with pytest.raises(InvalidInputError, match=r"belongs to a\.b"):
        check_checkpoint(tmp_path, replace(MINE, table="a.c", table_uuid="u2"))
    sparks(tmp_path / "kafka", {"payments": {"0": 5}})
    check_checkpoint(tmp_path / "kafka", replace(MINE, topic=None))


def test_several_topics_are_one_source(tmp_path) -> None:
    sparks(tmp_path, {"orders": {"0": 5}, "payments": {"0": 7}})
    check_checkpoint(tmp_path, replace(MINE, topic="orders,payments"))
    with pytest.raises(InvalidInputError, match="belongs to Kafka topic 'orders'"):
        check_checkpoint(tmp_path, MINE)


HOLDER = """
import sys
from pathlib import Path
from tableformat.spark.checkpoint import CheckpointedStream, claim_checkpoint
stream = CheckpointedStream(table="a.b", table_uuid="u1", branch="staging", topic="orders")
with claim_checkpoint(Path(sys.argv[1]), stream):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_two_processes_on_one_checkpoint_are_refused_until_the_first_is_gone(tmp_path) -> None:
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InvalidInputError, match="another process or query runs"):
            check_checkpoint(tmp_path, MINE)
        with pytest.raises(InvalidInputError, match="another process or query runs"):
            claim_checkpoint(tmp_path, MINE)
        holder.kill()
    check_checkpoint(tmp_path, MINE)


def test_damaged_identity_is_told(tmp_path) -> None:
    for text in ("", "[]", '{"table": 1}'):
        (tmp_path / "icefold.json").write_text(text)
        with pytest.raises(InvalidInputError, match=r"icefold\.json cannot be read"):
            check_checkpoint(tmp_path, MINE)


def test_folder_that_cannot_be_made_is_told(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError, match="checkpoint cannot be used"):
        claim_checkpoint(tmp_path / "file" / "c", MINE)


def test_last_batch_of_its_query_is_kept_and_a_torn_note_says_nothing(tmp_path) -> None:
    checkpoint = tmp_path.as_uri()
    assert noted_batch(checkpoint, "q") is None
    for number in (3, 4):
        note_batch(checkpoint, BatchId("q", number))
    assert noted_batch(str(tmp_path), "q") == BatchId("q", 4)
    assert noted_batch(checkpoint, "other") is None
    for text in ("", "[]", '{"query_id": "q"}', '{"query_id": "q", "number": -1}'):
        (tmp_path / "icefold.batch").write_text(text)
        assert noted_batch(checkpoint, "q") is None
    note_batch("s3a://bucket/checkpoint", BatchId("q", 5))
    assert noted_batch("s3a://bucket/checkpoint", "q") is None
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        note_batch(str(tmp_path / "missing"), BatchId("q", 5))
