"""The topic in which a source tells where its transactions end, `PREFIX.transaction`.

Debezium makes it with the first transaction after the snapshot (`provide.transaction.metadata`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tableformat.cdc.debezium_options import FLATTENED
from tableformat.cdc.many.positions import Place
from tableformat.cdc.many.routing import TRANSACTIONS, Routing
from tableformat.cdc.many.stream_tables import StreamTables
from tableformat.cdc.many.transactions import TransactionCut
from tableformat.errors import InvalidInputError


def transaction_prefix(
    tables: StreamTables, topics: Mapping[str, int], routing: Routing, *, may_wait: bool
) -> str | None:
    """What the name of a stream's transaction topic begins with.

    Args:
        tables: Of the stream.
        topics: All topics, with how many partitions each has.
        routing: Which topics the stream takes.
        may_wait: The transaction topic may still come.

    Returns:
        None: it may still come.

    Raises:
        InvalidInputError: Events do not say which transaction they are of; or there is no one
            transaction topic of one partition beside all topics.
    """
    for name, table in tables.tables.items():
        if getattr(table.options.choice.values, "layout", None) == FLATTENED:
            raise InvalidInputError(
                "flattened events do not say which transaction they are of",
                action="use Debezium's envelope, or --cut batch",
                table=name,
            )
    rows = routing.route(topics).table_of  # a table may be called so, too
    prefix = _prefix(tables.table_of, topics.keys() - rows, may_wait=may_wait)
    if prefix is not None and topics[prefix + TRANSACTIONS] != 1:
        raise InvalidInputError(
            "the transaction topic must have one partition", topic=prefix + TRANSACTIONS
        )
    return prefix


def _prefix(taken: Collection[str], others: Collection[str], *, may_wait: bool) -> str | None:
    """What the transaction topic's name begins with; None: it may still come."""
    prefixes = [name.removesuffix(TRANSACTIONS) for name in others if name.endswith(TRANSACTIONS)]
    fit = [p for p in prefixes if all(topic.startswith(f"{p}.") for topic in taken)]
    if fit:
        return max(fit, key=len)
    # One topic beside all of them is possible only if all names begin alike.
    begins = {topic.rpartition(".")[0].partition(".")[0] for topic in taken}
    if may_wait and len(begins) <= 1 and "" not in begins:
        return None
    raise InvalidInputError(
        "the source does not tell its transactions: there is no one topic "
        "PREFIX.transaction beside all topics",
        action="set provide.transaction.metadata=true in Debezium's connector (the topic "
        "comes with the first transaction after the snapshot), or use --cut batch",
    )


def boundaries_place(cut: TransactionCut) -> Place:
    """The partition of the transaction topic."""
    return cut.prefix + TRANSACTIONS, 0


def boundaries_staged(tables: StreamTables, place: Place) -> int:
    """Where batches have ended in the transaction topic; -1: none has."""
    return max((each.offsets.get(place, -1) for each in tables.recorded.values()), default=-1)


def is_cut_otherwise(tables: StreamTables, place: Place) -> bool:
    """Whether there is a newest batch, and it says nothing of the transaction topic."""
    newest = [e for e in tables.recorded.values() if e.batch == tables.number - 1 >= 0]
    return bool(newest) and not any(place in each.offsets for each in newest)
