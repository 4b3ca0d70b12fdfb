"""python -m stepguard waive: writes a waiver, as large as the last measurement needs."""

import json
from datetime import timedelta

import pytest

from stepguard.host.waivers import today

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
        (("linear[b]", "graph_breaks", "--value", "2", *WHY), "no baseline here has this case"),
        (("linear[a]", "breaks", "--value", "2", *WHY), "'breaks' is no metric"),
        (("linear[a]", "graph_breaks", "--limit-pct", "2", *WHY), "needs a value"),
        (("linear[a]", "graph_breaks", "--value", "2", *WHY[:2], "--days", "91"), "1 to 90"),
        (("linear[a]", "graph_breaks", "--value", "2", *WHY[:2], "--days", "0"), "1 to 90"),
        (("linear[a]", "graph_breaks", "--value", "2", "--days", "9"), "--reason"),
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
