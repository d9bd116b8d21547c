"""What the delete events of a source can be trusted for: an option that all keyed formats share."""

from __future__ import annotations

from tableformat.cdc.options import Option, OptionKind

DELETES = "deletes"
KEY_ONLY, WHOLE_ROW = "key", "row"
KEY_ONLY_REASON = f"the delete holds its key only, not the row ({DELETES}={WHOLE_ROW})"

DELETES_OPTION = Option(
    name=DELETES,
    kind=OptionKind.CHOICE,
    choices=(KEY_ONLY, WHOLE_ROW),
    default=KEY_ONLY,
    help="what deletes hold: the key only, or the whole old row (Debezium: replica identity FULL), "
    "which lets IMMUTABLE columns confine a delete to one partition",
)
