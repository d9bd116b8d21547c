"""From matches that die to the cheapest way of removing them from the index."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from resolver.index.base import Entries, Matches
from resolver.keys import EncodedKeys


def removals(
    keys: EncodedKeys, matches: Matches, gone: npt.NDArray[np.bool_]
) -> tuple[tuple[EncodedKeys, ...], tuple[Entries, ...]]:
    """What to give to `IndexChanges.removed_keys` and `IndexChanges.removed`.

    A key that keeps no row is removed as a whole, which reads nothing in `prepare`; the lookup has
    shown that it has no other rows. Only keys that keep a row (the delete did not reach its
    partition, say) are removed row by row. Keys without a match are given as well: if rows are put
    under them, `prepare` need not look them up again.

    Args:
        keys: The keys that were looked up, distinct.
        matches: The answer.
        gone: Shape `(len(matches),)`: which of the rows die.
    """
    keeps_a_row = np.zeros(len(keys), dtype=np.bool_)
    keeps_a_row[matches.key_ordinal[~gone]] = True
    removed_keys = keys.take(~keeps_a_row)
    single = gone & keeps_a_row[matches.key_ordinal]
    removed = Entries(
        keys.take(matches.key_ordinal[single]), matches.file_id[single], matches.position[single]
    )
    return (removed_keys,) if len(removed_keys) else (), (removed,) if len(removed) else ()
