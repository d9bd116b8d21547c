"""Debezium's transaction metadata, live: `icefold run --cut transaction` shows whole transfers."""

from __future__ import annotations

import json
import re

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.pipeline.cuts import run_cuts
from tests.support.pipeline import Pipeline
from tests.support.pipeline_bank import Bank

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.xdist_group("pipeline"),
]


def test_every_cut_of_a_live_bank_holds_all_the_money(pipeline: Pipeline) -> None:
    if pipeline.connect.process is None:
        pipeline.connect.start()
    counts = run_cuts(pipeline, Bank(), seconds=8, kills=["stop"])
    assert counts["stop kills"] == 1
    assert counts["cuts"] > 1
    ids = {event["id"] for event in boundaries(pipeline)}
    assert len(ids) > counts["transactions"]
    assert all(re.fullmatch(r"\d+:\d+", one) for one in ids)


def boundaries(pipeline: Pipeline) -> list[dict[str, str]]:
    """What the transaction topic holds."""
    consumer = Consumer({"bootstrap.servers": pipeline.servers, "group.id": "bank"})
    place = TopicPartition("bank.transaction", 0, 0)
    _, end = consumer.get_watermark_offsets(place, timeout=30)
    consumer.assign([place])
    found: list[dict[str, str]] = []
    while len(found) < end:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        found.append(json.loads(message.value() or b"{}")["payload"])
    consumer.close()
    return found
