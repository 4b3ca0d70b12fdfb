"""The JUnit document: <failure> for a regression, <error> for what could not decide, properties."""

import xml.etree.ElementTree as ElementTree

import pytest

from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason


@pytest.fixture
def testcases(gate):
    """The <testcase> elements, by case name, of a run with every kind of outcome."""
    names = ("same", "faster", "changed", "broken", "new")
    cases = {name: gate.cpu(name) for name in names}
    gate.suite(*cases.values())
    gate.record(*(cases[name] for name in names if name != "new"))
    gate.will_measure(cases["faster"], counters={"generated_kernels": 6})
    gate.will_measure(cases["changed"], counters={"flops_per_step": 2000})
    fault = Fault(
        Reason.RAISED, "rank 0 in block: ValueError: planted", "the trace", "launch 1, block"
    )
    gate.will_measure(cases["broken"], faults=(fault,), launches=())
    result = gate.run("--junitxml=junit.xml")
    assert result.ret == 1
    tree = ElementTree.parse(gate.path / "junit.xml")
    suite = tree.getroot().find("testsuite")
    assert (suite.get("failures"), suite.get("errors")) == ("1", "2")
    return {e.get("name").partition("[")[2].strip("]"): e for e in tree.iter("testcase")}


def properties(element):
    """A test's properties by name."""
    return {p.get("name"): p.get("value") for p in element.iter("property")}


def test_a_regression_is_a_failure(testcases):
    """CHANGED is a <failure> whose text names the counter, old -> new and the command."""
    element = testcases["changed"]
    assert element.find("error") is None
    text = element.find("failure").text
    assert "flops_per_step 1,000 -> 2,000" in text
    assert "python -m stepguard accept 'linear[changed]'" in text


@pytest.mark.parametrize("name", ["broken", "new"])
def test_what_could_not_decide_is_an_error(testcases, name):
    """BROKEN and NO BASELINE are <error>, never <failure>, and never a bare pass."""
    element = testcases[name]
    assert element.find("failure") is None
    assert element.find("error") is not None


def test_every_case_carries_its_verdict_and_metrics(testcases):
    """Properties hold the verdict's word and the metrics, each once."""
    words = {name: properties(element)["perf_verdict"] for name, element in testcases.items()}
    assert words == {
        "same": "same",
        "faster": "FASTER",
        "changed": "CHANGED",
        "broken": "BROKEN",
        "new": "NO BASELINE",
    }
    assert properties(testcases["changed"])["flops_per_step"] == "2000"
    assert float(properties(testcases["same"])["step_ms"]) == pytest.approx(10.0)
    judged = properties(testcases["changed"])
    assert (judged["perf_baseline"], judged["flops_per_step.baseline"]) == ("cpu.json", "1000")
    assert judged["flops_per_step.unit"] == "FLOP" and judged["step_ms.unit"] == "ms"
    names = [p.get("name") for p in testcases["same"].iter("property")]
    assert len(names) == len(set(names))
