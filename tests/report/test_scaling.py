"""The scaling efficiency of two cases of a run."""

from pathlib import Path

import pytest
from builders import evidence

from stepguard import Case
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, Verdict
from stepguard.measure.suite import Result
from stepguard.report.terminal_summary import scaling_lines


def measured(name, tokens_per_s, *, batch=64, **fields):
    """A case of that name, which trains so many tokens a second; None if nobody knows."""
    case = Case(name, "model.workloads:train_step", {"batch": batch}, **fields)
    known = (Status.SAME, Reason.NOT_JUDGED, None, tokens_per_s)
    metrics = (MetricVerdict("tokens_per_s", *known),) if tokens_per_s else ()
    verdict = Verdict(case.id, Status.SAME, Reason.EQUAL, metrics=metrics)
    return Result(case, evidence(), verdict, Path(), Path())


ONE, TWO = measured("one", 1000.0), measured("two", 1946.0, world_size=2)
LINE = "scaling efficiency of train_step[two]: 97.3 % of train_step[one] (tokens/s per rank)"


@pytest.mark.parametrize(("results", "lines"), [
    ([ONE, TWO], [LINE]),
    ([TWO, ONE, measured("again", 900.0)], [LINE]),
    ([TWO], []),
    ([ONE, measured("other", 900.0, world_size=2, batch=32)], []),
    ([ONE, measured("unknown", None, world_size=2)], []),
    ([measured("unknown", None), TWO], []),
    ([measured("a", 9.0, device="cpu"), measured("b", 9.0, device="cpu", world_size=2)], []),
])  # fmt: skip
def test_it_is_said_of_the_same_case_on_one_gpu_and_on_several(results, lines):
    """The first such case counts. Without tokens there is no pace to compare."""
    assert list(scaling_lines(results)) == lines
