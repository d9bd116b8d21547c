"""The client of Kafka, as far as no broker is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("confluent_kafka")


@pytest.mark.slow
def test_client_has_nothing_to_import_when_it_is_asked() -> None:
    """It would do so from C, where a signal's exception becomes an ImportError."""
    program = (
        "import sys, tableformat.cdc.many.kafka_consumer; "
        "sys.exit('confluent_kafka.admin' not in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
