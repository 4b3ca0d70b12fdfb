"""The margins that measure_ab() puts into a comparison, before and without any pair."""

import pytest

import stepguard.measure.pair_run
from stepguard import Case
from stepguard.core.evidence import Fault
from stepguard.core.margins import Margins
from stepguard.core.reasons import Reason
from stepguard.machine.git.revision import Revision
from stepguard.measure.case_workers import Bench
from stepguard.measure.pair_run import PairsWanted, measure_ab


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """What is measured of a case on a machine that is unfit at once."""

    def refuse(*arguments):
        return None, Fault(Reason.FOREIGN_PROCESS, "planted", "", "preflight")

    def measure(case):
        bench = Bench(tmp_path, tmp_path, tmp_path, (), Revision("f" * 40), "pytest")
        wanted = PairsWanted(1.0, lambda found: True)
        return measure_ab(case, (bench, bench), "main", print, wanted)

    monkeypatch.setattr(stepguard.measure.pair_run, "watch", refuse)
    return measure


def test_the_cases_margins_judge(measured):
    """Its own, or those of its device; and the evidence of both sides keeps them."""
    for case, margins in (
        (Case("a", "b:c"), Margins(0.2, 0.5)),
        (Case("a", "b:c", margins_pct=(1.0, 3.0)), Margins(1.0, 3.0)),
        (Case("a", "b:c", device="cpu"), Margins(5.0, 20.0)),
    ):
        found = measured(case)
        assert found.margins == margins
        assert Margins(*found.head.margins_pct) == margins
