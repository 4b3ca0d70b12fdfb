"""The decision rule that measure_ab() puts into a comparison, before and without any pair."""

import pytest

import stepguard.measure.pair_run
from stepguard import Case
from stepguard.core.evidence import Evidence, Fault
from stepguard.core.margins import Margins, Prior
from stepguard.core.reasons import Reason
from stepguard.judge.ab.calibration import NOT_CALIBRATED, DecisionRule
from stepguard.machine.git.revision import Revision
from stepguard.measure.pair_run import PairsWanted, measure_ab
from stepguard.measure.workers import Bench


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """What is measured of a case on a machine that is unfit at once."""

    def refuse(*arguments):
        return None, Fault(Reason.FOREIGN_PROCESS, "planted", "", "preflight")

    def measure(case, **options):
        bench = Bench(tmp_path, tmp_path, tmp_path, (), Revision("f" * 40), "pytest")
        wanted = PairsWanted(1.0, lambda found: True, **options)
        return measure_ab(case, (bench, bench), "main", print, wanted)

    monkeypatch.setattr(stepguard.measure.pair_run, "watch", refuse)
    return measure


def test_without_a_rule_the_cases_margins_hold(measured):
    """And it is said that nothing was calibrated."""
    for case, margins in (
        (Case("a", "b:c"), Margins(0.2, 0.5)),
        (Case("a", "b:c", margins_pct=(1.0, 3.0)), Margins(1.0, 3.0)),
        (Case("a", "b:c", device="cpu"), Margins(5.0, 20.0)),
    ):
        found = measured(case)
        assert (found.margins, found.prior, found.why) == (margins, Prior(), NOT_CALIBRATED)
        assert Margins(*found.head.margins_pct) == margins


def test_the_rule_is_asked_for_with_heads_evidence(measured):
    """They decide by what HEAD's side is: its case, its software."""
    asked = []

    def rule_for(evidence):
        asked.append(evidence)
        return DecisionRule(Margins(1.0, 2.0), Prior(0.3, 3.0), "planted")

    found = measured(Case("a", "b:c"), rule_for=rule_for)
    assert (found.margins, found.prior, found.why) == (
        Margins(1.0, 2.0),
        Prior(0.3, 3.0),
        "planted",
    )
    assert all(isinstance(one, Evidence) and one.case_id == "c[a]" for one in asked) and asked


def test_a_rule_that_widens_is_not_the_cases_own(measured):
    """What the evidence says of the case's margins is what the case declares: a calibration may
    widen those that judge, and no gate has to know of it.
    """
    rule = DecisionRule(Margins(0.2, 2.0), Prior(1.4, 4.0), "planted")
    found = measured(Case("a", "b:c"), rule_for=lambda evidence: rule)
    assert found.margins == Margins(0.2, 2.0)
    assert found.head.margins_pct == found.base.margins_pct == (0.2, 0.5)
