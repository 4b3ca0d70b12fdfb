"""python -m stepguard waive: writes a waiver, as large as the last measurement needs."""

import json
import math
from datetime import timedelta

import pytest

from stepguard.evidence import Block, Launch
from stepguard.storage.waivers import today

LATER = "2030-01-01T00:00:01+00:00"
WHY = ("--reason", "waits for torch", "--days", "30", "--who", "A. Author")


@pytest.fixture
def changed(shell):
    """A recorded case whose last evidence has two graph breaks more."""
    shell.keep(shell.made("a"))
    shell("accept")
    shell.keep(shell.made("a", counters={"graph_breaks": 2}, date=LATER))
    return shell


def waivers(shell):
    """What the file holds."""
    return json.loads((shell.path / "baselines/waivers.json").read_text())["waivers"]


def test_the_size_is_that_of_the_last_measurement(changed):
    """The count that was measured; afterwards the evidence is judged as passed."""
    assert changed("judge").status == 1
    done = changed("waive", "linear[a]", "graph_breaks", *WHY)
    assert done.status == 0, done.err
    until = (today() + timedelta(30)).isoformat()
    (one,) = waivers(changed)
    assert one == {
        "case": "linear[a]",
        "metric": "graph_breaks",
        "value": 2,
        "reason": "waits for torch",
        "who": "A. Author",
        "expires": until,
    }
    assert done.out.splitlines()[0] == (
        f"linear[a]: graph_breaks up to 2 until {until}, by A. Author: waits for torch"
    )
    again = changed("judge")
    assert again.status == 0
    assert f"CHANGED (waived until {until})" in again.out


def test_without_a_metric_all_that_fails_is_waived(changed):
    """Each as far as it is off, a line each; then the case passes, and there is nothing left."""
    counters = {"graph_breaks": 2, "flops_per_step": 1200}
    changed.keep(changed.made("a", counters=counters, date="2030-01-01T00:00:02+00:00"))
    done = changed("waive", "linear[a]", *WHY)
    assert done.status == 0, done.err
    sizes = {one["metric"]: one["value"] for one in waivers(changed)}
    assert sizes == {"graph_breaks": 2, "flops_per_step": 1200}
    told = done.out.splitlines()
    assert len(told) == 3 and all(line.startswith("linear[a]: ") for line in told[:2])
    assert changed("judge").status == 0
    again = changed("waive", "linear[a]", *WHY)
    assert again.status == 1 and "what fails is waived; to renew a waiver name its" in again.err


def test_what_fails_beside_a_waiver_is_waived_too(changed):
    """What is waived already keeps its own reason and day."""
    changed("waive", "linear[a]", "graph_breaks", *WHY)
    counters = {"graph_breaks": 2, "flops_per_step": 1200}
    changed.keep(changed.made("a", counters=counters, date="2030-01-01T00:00:02+00:00"))
    other = ("--reason", "another one", *WHY[2:])
    assert changed("waive", "linear[a]", *other).status == 0
    reasons = {one["metric"]: one["reason"] for one in waivers(changed)}
    assert reasons == {"graph_breaks": "waits for torch", "flops_per_step": "another one"}


def test_nothing_fails(changed):
    """A case that is `same` has nothing to waive; one that no run measured neither."""
    changed.keep(changed.made("a", date="2030-01-01T00:00:02+00:00"))
    done = changed("waive", "linear[a]", *WHY)
    assert done.status == 1 and "nothing to waive, it is same in what was measured" in done.err
    done = changed("waive", "linear[b]", *WHY)
    assert done.status == 1 and "no run measured 'linear[b]'" in done.err


def timed(shell, ms, **counters):
    """Six launches of about so many ms, of a case that gates its step time."""
    scatter = (0.0002, -0.0002, 0.0001, -0.0001, 0.0, 0.0)
    launches = []
    for index, one in enumerate(scatter, start=1):
        step_ms = ms * math.exp(one)
        wall = (4 * step_ms,)
        block = Block(4, wall, wall, (step_ms,) * 4)
        launches.append(Launch(index, (block,), 1.0, 1.0, 3, "", 9.0))
    gates = ("step_ms", "flops_per_step", "graph_breaks")
    return shell.made("a", launches=tuple(launches), gates=gates, counters=counters)


def test_a_run_against_a_revision_counts_if_it_is_the_newest(changed):
    """Step time and counter as far as they were off beside that revision, whatever an older run
    says of a baseline; a newer run against the baseline counts instead.
    """
    changed.keep_comparison(timed(changed, 10.31, graph_breaks=5), timed(changed, 10.0))
    done = changed("waive", "linear[a]", *WHY)
    assert done.status == 0, done.err
    assert {one["metric"]: one.get("limit_pct", one.get("value")) for one in waivers(changed)} == {
        "step_ms": 4.0,
        "graph_breaks": 5,
    }
    changed.keep(changed.made("a", date="2030-01-01T00:00:03+00:00"))
    done = changed("waive", "linear[a]", "graph_breaks", *WHY)
    assert done.status == 1 and "graph_breaks is same in what was measured last;" in done.err


def test_a_confirmation_counts_as_its_evidence(changed):
    """A run folder with both: the evidence is what the verdict was about."""
    path = changed.keep_comparison(timed(changed, 10.3), timed(changed, 10.0))
    evidence = changed.keep(changed.made("a", counters={"graph_breaks": 3}))[0]
    evidence.rename(path.parent / "evidence.json")
    assert changed("waive", "linear[a]", *WHY).status == 0
    assert [(one["metric"], one["value"]) for one in waivers(changed)] == [("graph_breaks", 3)]


def test_a_case_without_any_baseline(shell):
    """Judged against a revision alone: waived as any other, and no misspelling is."""
    shell.keep_comparison(timed(shell, 10.0, graph_breaks=5), timed(shell, 10.0))
    done = shell("waive", "linear[a]", *WHY)
    assert done.status == 0, done.err
    assert [one["value"] for one in waivers(shell)] == [5]
    assert shell("waive", "linear[b]", "graph_breaks", "--value", "2", *WHY).status == 2


def test_what_the_other_revision_holds_is_needed_too(changed):
    """3 % slower than a main that is waived up to 35 %: 39.05 % and some room, not 4 %."""
    both = timed(changed, 10.3), timed(changed, 10.0)
    changed.keep_comparison(*both, waived_pct={"step_ms": 35.0})
    assert changed("waive", "linear[a]", *WHY).status == 0
    assert [one["limit_pct"] for one in waivers(changed)] == [40.0]
    changed.keep_comparison(*both, waivers_problem="a conflict")
    done = changed("waive", "linear[a]", *WHY)
    assert done.status == 1 and "main's own cannot be read (a conflict)" in done.err


def test_what_is_too_large_is_accepted_and_not_waived(changed):
    """286 % slower, or a size of 60 %: said in words, and nothing is written."""
    changed.keep_comparison(timed(changed, 38.6), timed(changed, 10.0))
    for size in ((), ("step_ms",), ("step_ms", "--limit-pct", "60")):
        done = changed("waive", "linear[a]", *size, *WHY)
        assert done.status in (1, 2)
        assert " % of step_ms: at most 50 % can be waived; what is larger is the new l" in done.err
    assert not (changed.path / "baselines/waivers.json").exists()
    changed.keep_comparison(timed(changed, 14.98), timed(changed, 10.0))
    assert changed("waive", "linear[a]", *WHY).status == 0
    assert [one["limit_pct"] for one in waivers(changed)] == [50.0]


def test_a_count_that_is_too_large_is_not_waived(changed):
    """Beyond what a value can be the waiver would cover nothing."""
    counters = {"graph_breaks": 1000}
    changed.keep(changed.made("a", counters=counters, date="2030-01-01T00:00:02+00:00"))
    done = changed("waive", "linear[a]", *WHY)
    assert done.status == 1
    assert "no waiver of graph_breaks covers it: TOO WIDE, at most 100: " in done.err
    assert not (changed.path / "baselines/waivers.json").exists()


def test_a_metric_that_the_case_does_not_gate(changed):
    """Refused, with a size or without: such a waiver would be stale from its first day."""
    for size in ((), ("--limit-pct", "5")):
        done = changed("waive", "linear[a]", "step_ms", *size, *WHY)
        assert done.status == 2
        assert "it does not gate step_ms; it gates: flops_per_step, " in done.err
    changed.keep_comparison(timed(changed, 10.3), timed(changed, 10.0))
    assert changed("waive", "linear[a]", "step_ms_median", "--limit-pct", "5", *WHY).status == 0
    assert changed("waive", "linear[a]", "recompiles", "--value", "5", *WHY).status == 2


def test_judge_names_a_waiver_of_no_case(changed):
    """It judges what it was given, and says that nobody knows the waiver's case."""
    changed("waive", "linear[a]", *WHY)
    path = changed.path / "baselines/waivers.json"
    path.write_text(path.read_text().replace("linear[a]", "linear[typo]"))
    done = changed("judge")
    assert done.status == 1
    assert "baselines/waivers.json: no baseline or kept run has 'linear[typo]'" in done.err


def test_a_comparison_can_be_named(changed):
    """--evidence takes a folder or the file itself; `same` there says against what."""
    path = changed.keep_comparison(timed(changed, 10.3), timed(changed, 10.0))
    changed.keep(changed.made("a"))
    for named in (path, path.parents[1]):
        (changed.path / "baselines/waivers.json").unlink(missing_ok=True)
        assert changed("waive", "linear[a]", "--evidence", str(named), *WHY).status == 0
    assert [one["metric"] for one in waivers(changed)] == ["step_ms"]
    path = changed.keep_comparison(timed(changed, 10.0), timed(changed, 10.0))
    done = changed("waive", "linear[a]", "--evidence", str(path), *WHY)
    assert done.status == 1 and "measured last against main (aaaaaaaaaaaa)" in done.err


def test_judge_tells_a_stale_waiver(changed):
    """The case is `same` in newer evidence: passed, and the waiver should go."""
    changed("waive", "linear[a]", "graph_breaks", *WHY)
    changed.keep(changed.made("a", date="2030-01-01T00:00:02+00:00"))
    done = changed("judge")
    assert done.status == 0
    assert "linear[a]: waiver stale, graph_breaks is same; take it out: " in done.out


def test_a_size_can_be_given(changed):
    """And a second waiver of the metric takes the place of the first."""
    for value in ("7", "5"):
        assert changed("waive", "linear[a]", "graph_breaks", "--value", value, *WHY).status == 0
    assert [one["value"] for one in waivers(changed)] == [5]


def test_there_is_nothing_to_waive(changed):
    """A metric that is `same` needs no waiver, and no size can be had from it."""
    done = changed("waive", "linear[a]", "recompiles", *WHY)
    assert done.status == 1
    assert "nothing to waive, recompiles is same" in done.err and "--value N" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("linear[b]", "graph_breaks", "--value", "2", *WHY),
            "no run that is kept here has this case",
        ),
        (("linear[a]", "breaks", "--value", "2", *WHY), "'breaks' is no metric"),
        (("linear[a]", "graph_breaks", "--limit-pct", "2", *WHY), "needs a value"),
        (("linear[a]", "graph_breaks", "--value", "2", *WHY[:2], "--days", "91"), "1 to 90"),
        (("linear[a]", "graph_breaks", "--value", "2", *WHY[:2], "--days", "0"), "1 to 90"),
        (("linear[a]", "graph_breaks", "--value", "2", "--days", "9"), "--reason"),
        (("linear[a]", "--value", "2", *WHY), "a size is that of one metric"),
        (("linear[a]", "graph_breaks", "--value", "2", "--reason", "...", *WHY[2:]), "reason is"),
    ],
)
def test_a_waiver_that_is_wrong_is_bad_usage(changed, arguments, words):
    """Status 2, and nothing is written."""
    done = changed("waive", *arguments)
    assert done.status == 2
    assert words in done.err
    assert not (changed.path / "baselines/waivers.json").exists()


def test_git_says_who(changed, monkeypatch):
    """Without --who it is git's user; where git knows none, --who is asked for."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    done = changed("waive", "linear[a]", "graph_breaks", *WHY[:4])
    assert done.status == 2
    assert "--who" in done.err
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "B. Author")
    assert changed("waive", "linear[a]", "graph_breaks", *WHY[:4]).status == 0
    assert waivers(changed)[0]["who"] == "B. Author"
