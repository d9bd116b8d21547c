"""Whether a table can be resolved, and whether there is a reason not to begin."""

from __future__ import annotations

import logging
from functools import lru_cache

from resolver.lost_snapshots import unpublished_snapshots
from resolver.moved_staging import dropped_staging
from tableformat import InvalidInputError, NotFoundError
from tableformat.catalog.base import TableState
from tableformat.commit.request import check_writable
from tableformat.spec.names import LOAD, MAIN_BRANCH, STAGING_BRANCH

logger = logging.getLogger("icefold.resolver")


def is_held_by_load(state: TableState, target: str) -> bool:
    """Whether nothing is published because rows are loaded (`tableformat.cdc.load`)."""
    is_held = target == MAIN_BRANCH and LOAD in state.metadata.properties
    if is_held:
        _tell_held(state.name, state.metadata.properties[LOAD])
    return is_held


@lru_cache(maxsize=1_000)
def _tell_held(name: str, load: str) -> None:
    """Once per load: a scheduler comes every second."""
    del load
    logger.warning("%s: nothing is published until its load is through", name)


def was_never_staged(
    state: TableState, staging: str, target: str, *, is_known: bool = False
) -> bool:
    """Whether the default staging branch does not exist yet: a scheduled job may come too early.

    `is_known`: another name is meant as well, for other tables have such a branch.

    Raises:
        NotFoundError: It is gone, and what was staged on it and not published is still there.
    """
    is_meant = is_known or staging == STAGING_BRANCH
    if not is_meant or state.ref(staging) is not None:
        return False
    dropped = unpublished_snapshots(state, staging=staging, target=target)
    if dropped:
        raise dropped_staging(state, staging, dropped)
    return True


def check_resolvable(state: TableState, staging: str, target: str) -> None:
    """Refuse a table that cannot be resolved, and branches that are none; see `resolve`."""
    check_writable(state.metadata, table=state.name)
    state.required_key_ids("resolve")
    for branch in (staging, target):
        ref = state.ref(branch)
        if not branch or (ref is not None and ref.snapshot_ref_type.value != "branch"):
            raise InvalidInputError("not a branch", table=state.name, branch=repr(branch))
    if target != MAIN_BRANCH and state.ref(target) is None:
        raise NotFoundError(
            "there is no such branch",
            table=state.name,
            branch=target,
            action="create it first; only main may begin with a publish",
        )
    if state.head(staging) is None and staging != STAGING_BRANCH:
        raise NotFoundError(
            "there is no staging branch" if staging != target else "there is no such branch",
            table=state.name,
            branch=staging,
            action="stage something first, or name another branch with --staging",
        )
