"""A cause that several cases have is told once; what differs, or needs its figures, each time."""

import pytest
from builders import replace

from stepguard.core.reason_sentences import Failed, Unstable
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, Verdict
from stepguard.judge.findings import Findings, verdict_of
from stepguard.report.next_steps import Commands, next_steps
from stepguard.report.verdict_text import block, page_of, reference

ITEM = Site(".item()", "model/a.py", 88, "step", "loss.item()", count=2)
OTHER = Site(".item()", "model/a.py", 90, "step", "norm.item()", count=2)


def risen(site=ITEM, metric="host_syncs_per_step", **more):
    """A metric that rose at a site."""
    sites, status = (site,) if site else (), Status.CHANGED
    return MetricVerdict(
        metric, status, Reason.COUNTER_ROSE, 0.0, 2.0, gated=True, sites=sites, **more
    )


def case(name, *metrics, **fields):
    """A case that these metrics decide."""
    return replace(verdict_of(Findings(name, metrics)), **fields)


def broken(name, detail="ValueError: x"):
    """A case whose factory raised."""
    return Verdict(name, Status.BROKEN, Reason.RAISED, Failed(message="x"), detail)


def unstable(name, *sites):
    """A case with a counter that differs between steps, there."""
    figures = Unstable(metric="graph_breaks", why="3 in one step, 4 in the next", sites=sites)
    return Verdict(name, Status.INCONCLUSIVE, Reason.COUNT_UNSTABLE, figures)


TIME = risen(None, "step_ms")
PAIRS = {
    "the same line": (case("a", risen()), case("b", risen()), True),
    "more of it": (case("a", risen()), case("b", replace(risen(), new=9.0)), True),
    "another line": (case("a", risen()), case("b", risen(OTHER)), False),
    "another counter": (case("a", risen()), case("b", risen(metric="graph_breaks")), False),
    "one more counter": (
        case("a", risen()), case("b", risen(), risen(None, "graph_breaks")), False),
    "a time, too": (case("a", risen(), TIME), case("b", risen(), TIME), False),
    "no line": (case("a", risen(None)), case("b", risen(None)), False),
    "the same traceback": (broken("a"), broken("b"), True),
    "another traceback": (broken("a"), broken("b", "KeyError: x"), False),
    "the same unstable line": (unstable("a", ITEM), unstable("b", ITEM), True),
    "another unstable line": (unstable("a", ITEM), unstable("b", OTHER), False),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "same"), PAIRS.values(), ids=PAIRS)
def test_the_same_cause_is_told_once(first, second, same):
    """The second case refers to the first, which is told in full however often it is asked for."""
    shown = {}
    assert reference(first, shown) == reference(first, shown) == ""
    assert reference(second, shown) == ("the same cause as in a, above" if same else "")


def test_a_block_that_refers_still_names_its_case():
    """Its headline, the reference, and what to do, which names the case."""
    steps = next_steps(case("b", risen()), "e.json", Commands())
    found = block(page_of(case("b", risen()), steps), "as in a")
    head, reference, step = found.splitlines()
    assert head.startswith("b: CHANGED: host_syncs_per_step 0 -> 2") and reference == "  as in a"
    assert step == "  accept: python -m stepguard accept b --reason '...'"
