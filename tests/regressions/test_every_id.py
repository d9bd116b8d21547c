"""The regression list of the reliability design: no id without a test of its name."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.goals import goal

IDS = {
    # A. Delete resolution
    "r01", "r02", "r03", "r04", "r06", "r07", "r08", "r09", "r10", "r12", "r13", "r14", "r15",
    "r16", "r18",
    # B. Keys and schema
    "r20", "r21", "r22", "r24", "r25", "r26", "r27", "r28", "r29", "r31",
    # C. Compaction against deletes
    "r32", "r33", "r35", "r36", "r38", "r39", "r41", "r42",
    # D. Deletion vectors
    "r43", "r44", "r45", "r47", "r48", "r49", "r50", "r51", "r52", "r54", "r55",
    # E. Unknown outcomes
    "r56", "r58", "r59", "r60", "r61", "r62", "r63",
    # F. Locks and zombies
    "r65", "r66", "r67", "r69", "r70", "r71", "r72", "r73", "r74",
    # G. Maintenance, metadata, time, index
    "r75", "r77", "r78", "r79", "r80", "r81", "r82", "r83", "r84", "r86", "r87",
    # From peers
    "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9",
}  # fmt: skip
NAME = re.compile(r"^def test_(r\d\d|p\d)_\w", re.MULTILINE)


def test_every_id_of_the_regression_list_has_a_test_named_after_it():
    folder = Path(__file__).parent
    found = {name for path in folder.glob("test_*.py") for name in NAME.findall(path.read_text())}
    assert found == IDS
    goal("G21", ids=len(IDS))
