"""Which engine runs a stream, and why. Pure."""

from __future__ import annotations

from enum import StrEnum

# Messages that wait: more than some minutes of one core's work.
LOCAL_LAG_MAX = 20_000_000


class Engine(StrEnum):
    """What runs a stream."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


def choose_engine(
    *, lag: int, has_session: bool, ends_with_transactions: bool, no_spark: str | None
) -> tuple[Engine, str]:
    """The engine of `auto`, and why.

    Args:
        lag: Messages that are not staged.
        has_session: A Spark session is active in this process.
        ends_with_transactions: Batches shall end where transactions of the source end.
        no_spark: Why Spark cannot be had; None: it can.
    """
    if ends_with_transactions:
        return Engine.LOCAL, "batches end with transactions"
    if has_session:
        return Engine.SPARK, "a Spark session is active"
    waiting = f"{lag:,} messages wait"
    if lag <= LOCAL_LAG_MAX:
        return Engine.LOCAL, f"{waiting}, no more than {LOCAL_LAG_MAX:,}"
    if no_spark is not None:
        return Engine.LOCAL, f"{waiting}, and there is no Spark for them: {no_spark}"
    return Engine.SPARK, f"{waiting}, more than {LOCAL_LAG_MAX:,}"
