"""Fetches what other engines and servers need into `<checkout>/.cache`, all of it at once.

And lays out the classes of Spark and of other servers there (`spark_archive.py`, `jvm_server.py`).

`scripts/test` runs it beside the static checks: it waits for the network, they do not, and no
test's time goes on it. What cannot be had is said by the tests that it is for, which skip.
"""

import contextlib
import subprocess
from concurrent.futures import ThreadPoolExecutor

from tests.support.apicurio import make_apicurio_archive, missing_apicurio
from tests.support.azurite import missing_azurite
from tests.support.debezium import make_class_archives, missing_debezium
from tests.support.java_iceberg import missing_java_iceberg
from tests.support.kafka import connector_path, missing_kafka
from tests.support.nessie import make_nessie_archive, missing_nessie
from tests.support.rest_catalog import missing_rest_server
from tests.support.spark_archive import make_archive
from tests.support.trino import missing_trino

FETCHES = (
    missing_java_iceberg,
    missing_azurite,
    missing_trino,
    missing_kafka,
    missing_debezium,
    missing_nessie,
    missing_apicurio,
    missing_rest_server,
)
ARCHIVES = (  # where there is Java for a broker
    (missing_debezium, make_class_archives),
    (missing_apicurio, make_apicurio_archive),
    (missing_nessie, make_nessie_archive),
)


def main() -> None:
    with ThreadPoolExecutor(len(FETCHES)) as threads:
        started = [threads.submit(fetch) for fetch in FETCHES]
        make_archive()
        for running in started:
            running.result()
    if missing_kafka() is None:
        make_archive(connector_path())
        for missing, make in ARCHIVES:
            if missing() is None:
                with contextlib.suppress(OSError, RuntimeError, subprocess.SubprocessError):
                    make()


if __name__ == "__main__":
    main()
