"""Staging does not grow: after a publish that covers its head, it moves to the published snapshot.

So `staging` is the target plus the unresolved tail: readable fresh by merge-on-read, and cheap to
commit to (architecture.md, decision 10). The move is a compare-and-swap on the covered head; when
a writer has staged more meanwhile, nothing happens and a later cycle trims.
"""

from __future__ import annotations

from tableformat.catalog.base import Identifier
from tableformat.commit.refs import replace_branch
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, CommitUnknownError


def trim_staging(
    environment: Environment,
    identifier: Identifier,
    *,
    staging: str,
    covered_head: int,
    published: int,
) -> bool:
    """Move `staging` from `covered_head` to the `published` snapshot, if it still is there.

    Returns:
        Whether it moved. False also when the answer was lost: either way both positions are
        right ones, the next cycle sees which it is.
    """
    environment.runtime.fail_point("resolve.before_trim")
    try:
        replace_branch(environment, identifier, staging, to=published, expected_head=covered_head)
    except (CommitConflictError, CommitUnknownError):
        return False
    environment.runtime.fail_point("resolve.after_trim")
    return True
