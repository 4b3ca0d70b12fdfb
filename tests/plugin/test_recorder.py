"""What of a run becomes a recording of its level, and what needs a reason."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from stepguard.plugin import recorder
from stepguard.report.commands import Commands
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict

MACHINE = MetricVerdict("step_ms", Status.SAME, Reason.MACHINE_MOVED, gated=True)


@pytest.mark.parametrize(
    ("status", "cleared"),
    [(Status.SAME, True), (Status.SLOWER, False), (Status.INCONCLUSIVE, False)],
)
def test_one_time_that_is_the_machines_clears_no_other(monkeypatch, tmp_path, status, cleared):
    """The pairs found the mean alike, and the median slower, or not decided: that is no machine's,
    and must not join the epoch as one.
    """
    asked = []

    def accept(path, evidence, reason, dry, machine_moved):
        asked.append((reason, machine_moved))

    monkeypatch.setattr(recorder, "accept", accept)
    option = SimpleNamespace(
        perf_update=True, perf_update_new=False, perf_append=False, perf_reason="it is faster"
    )
    median = MetricVerdict("step_ms_median", status, Reason.BEYOND_LIMIT, gated=True)
    verdict = Verdict("linear[a]", status, Reason.BEYOND_LIMIT, metrics=(MACHINE, median))
    case = SimpleNamespace(id="linear[a]", gates=("step_ms", "step_ms_median"))
    result = SimpleNamespace(case=case, verdict=verdict, evidence=None, baseline_path=Path("b"))
    recorder.Recorder(option, Commands(tmp_path)).record(result)
    assert asked == [("", cleared)]
