"""Kept files that hold the former code of a fault are read as if they held today's."""

import pytest
from inputs import failed, pairs

import stepguard.core.comparison
import stepguard.core.evidence
from stepguard.core.evidence import to_json
from stepguard.core.reasons import FORMER_CODES, Reason
from stepguard.judge.judge_pairs import judge_ab
from stepguard.judge.judge_recordings import judge

KILLED = failed("KILLED", "rank 0 was killed by SIGKILL")
BASE_KILLED = pairs(head={"launches": ()}, base={"faults": KILLED.faults, "launches": ()})
EACH = pytest.mark.parametrize(
    ("kept", "read", "verdict_of"),
    [
        (KILLED, stepguard.core.evidence.from_json, lambda found: judge(found, None)),
        (BASE_KILLED, stepguard.core.comparison.from_json, judge_ab),
    ],
    ids=["evidence", "comparison"],
)


def former(kept):
    """The file as a version wrote it in which KILLED was RANK_LOST."""
    return to_json(kept).replace(b'"KILLED"', b'"RANK_LOST"')


@EACH
def test_a_former_code_has_the_verdict_of_todays(kept, read, verdict_of, monkeypatch):
    """In evidence, and on either side of a comparison."""
    monkeypatch.setitem(FORMER_CODES, "RANK_LOST", Reason.KILLED)
    assert read(former(kept), "file") == kept
    assert verdict_of(read(former(kept), "file")).reason is Reason.KILLED


@EACH
def test_an_unknown_code_is_refused(kept, read, verdict_of):
    """A code that no version had is no evidence of this project's."""
    with pytest.raises(ValueError, match="Invalid enum value 'RANK_LOST'"):
        read(former(kept), "file")


def test_former_codes_are_none_of_todays():
    """Each stands for a reason of today, by its own name, and hides none."""
    assert not FORMER_CODES.keys() & Reason.__members__.keys()
    assert {*FORMER_CODES.values()} <= {*Reason}
