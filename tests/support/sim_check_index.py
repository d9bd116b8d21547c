"""An index of main's head names its live rows (I5, I19)."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.sim_history import History
from tests.support.table_checker import read_metadata


class IndexChecks(History):
    """What an index must hold."""

    def check_index(self, entries: Iterable[tuple[bytes, str, int]]) -> None:
        """An index of main's head names its live rows by keys, one to one (I5, I19).

        Rows that a vector has deleted may be in it as well.
        """
        head = self.refs["main"]
        metadata = read_metadata(self.read, self.location)
        snapshot = next(s for s in metadata["snapshots"] if s["snapshot-id"] == head)
        view = self.view(metadata, snapshot, self.main[head].schema)
        keys = {place: view.identities[row_id][0][0] for place, row_id in view.places.items()}
        found = {(path, position): key for key, path, position in entries}
        lacks = keys.keys() - found.keys()
        surplus = found.keys() - keys.keys() - view.dead
        assert not lacks, f"the index lacks {lacks}"
        assert not surplus, f"the index names what is no row of main {surplus}"
        pairs = {(found[at], key) for at, key in keys.items()}
        assert len(pairs) == len({each for each, _ in pairs}) == len({key for _, key in pairs})
