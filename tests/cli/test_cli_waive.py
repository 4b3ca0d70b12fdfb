"""python -m stepguard waive: writes a waiver of one metric, as large as it is said."""

import json
from datetime import timedelta

import pytest

from stepguard.storage.baseline_files import today

LATER = "2030-01-01T00:00:01+00:00"
SIZE = ("graph_breaks", "--value", "2")
WHY = ("--reason", "waits for torch", "--days", "30", "--who", "A. Author")


@pytest.fixture
def changed(shell):
    """A recorded case whose last evidence has two graph breaks more."""
    shell.record(shell.made("a"))
    shell.keep(shell.made("a", counters={"graph_breaks": 2}, date=LATER))
    return shell


def waivers(shell):
    """What the file holds."""
    return json.loads((shell.path / "baselines/waivers.json").read_text())["waivers"]


def test_a_waiver_is_written(changed):
    """As it was said; afterwards the evidence is judged as passed."""
    assert changed("judge").status == 1
    done = changed("waive", "linear[a]", *SIZE, *WHY)
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


def test_all_that_failed_is_waived_as_it_was_measured(shell):
    """Each counter that rose, at its own value, and none that fell; what is waived stays as it is;
    then the case passes, and the command says that there is nothing left to waive.
    """
    more = {"graph_breaks": 2, "unique_graphs": 3, "operator_calls_per_step": 90}
    shell.record(shell.made("a"))
    shell.keep(shell.made("a", counters=more, date=LATER), shell.made("b"))
    shell("waive", "linear[a]", "graph_breaks", "--value", "2", *WHY)
    done = shell("waive", "linear[a]", *WHY[:2], "--days", "9", "--who", "B. Author")
    assert done.status == 0, done.err
    sizes = {one["metric"]: (one["value"], one["who"]) for one in waivers(shell)}
    assert sizes == {
        "graph_breaks": (2, "A. Author"),
        "unique_graphs": (3, "B. Author"),
        "operator_calls_per_step": (90, "B. Author"),
    }
    assert shell("judge", "linear[a]").status == 0
    for case, words in (
        ("linear[a]", "it passes, so there is nothing to waive"),
        ("linear[c]", "nothing was measured of linear[c] (did you mean linear[b] or linear[a]?)"),
    ):
        done = shell("waive", case, *WHY)
        assert done.status == 1 and words in done.err, case


def test_what_pairs_alone_say_is_waived(shell):
    """Against another revision no evidence is kept; that of CI is read where it lies."""
    head, base = (shell.made("a", counters={"graph_breaks": breaks}) for breaks in (2, 0))
    shell.record(base)
    shell.keep_comparison(head, base).parent.rename(shell.path / "artifacts")
    assert "it passes" in shell("waive", "linear[a]", *WHY).err
    done = shell("waive", "linear[a]", *WHY, "--evidence", "artifacts")
    assert done.status == 0, done.err
    assert [(one["metric"], one["value"]) for one in waivers(shell)] == [("graph_breaks", 2)]


def test_judge_names_a_waiver_of_no_case(changed):
    """It judges what it was given, and says that nobody knows the waiver's case."""
    changed("waive", "linear[a]", *SIZE, *WHY)
    path = changed.path / "baselines/waivers.json"
    path.write_text(path.read_text().replace("linear[a]", "linear[typo]"))
    done = changed("judge")
    assert done.status == 1
    assert "baselines/waivers.json: no baseline or kept run has 'linear[typo]'" in done.err


def test_what_is_removed_has_to_be_there(changed):
    """Else the answer names what there is, and the file stays; of two one goes."""
    changed("waive", "linear[a]", *SIZE, *WHY)
    changed("waive", "linear[a]", "flops_per_step", "--value", "2", *WHY)
    before = waivers(changed)
    done = changed("waive", "linear[a]", "recompiles", "--remove")
    assert done.status == 1 and waivers(changed) == before
    assert "no waiver of linear[a] recompiles; it has: linear[a] flops_per_step" in done.err
    changed("waive", "linear[a]", "flops_per_step", "--remove")
    assert [one["metric"] for one in waivers(changed)] == ["graph_breaks"]


def test_what_was_waived_at_once_is_removed_at_once(changed):
    """All of the case, and of no other one."""
    path = changed.path / "baselines" / "waivers.json"
    changed("waive", "linear[a]", *SIZE, *WHY)
    changed("waive", "linear[a]", "flops_per_step", "--value", "2", *WHY)
    document = json.loads(path.read_text())
    document["waivers"].append(document["waivers"][0] | {"case": "linear[b]"})
    path.write_text(json.dumps(document))
    removed = changed("waive", "linear[a]", "--remove")
    assert removed.status == 0 and "linear[a]: waivers removed from" in removed.out
    assert [one["case"] for one in waivers(changed)] == ["linear[b]"]
    again = changed("waive", "linear[a]", "--remove")
    assert again.status == 1 and "no waiver of linear[a]; it has: linear[b]" in again.err


@pytest.mark.parametrize(("arguments", "words"), [
    (("linear[b]", *SIZE, *WHY), "no run that is kept here has this case"),
    (("linear[a]", "breaks", "--value", "2", *WHY), "'breaks' is no metric"),
    (("linear[a]", "graph_breaks", "--limit-pct", "2", *WHY), "needs a value"),
    (("linear[a]", "graph_breaks", "--value", "-2", *WHY), "a count is not negative"),
    (("linear[a]", *SIZE, *WHY[:2], "--days", "91"), "1 to 90"),
    (("linear[a]", *SIZE, *WHY[:2], "--days", "0"), "1 to 90"),
    (("linear[a]", *SIZE, "--days", "9"), "--reason"),
    (("linear[a]", *SIZE, "--reason", "...", *WHY[2:]), "reason is"),
    (("linear[a]", "graph_breaks", *WHY), "a METRIC and one of --limit-pct --value go together"),
    (("linear[a]", "--value", "2", *WHY), "a METRIC and one of --limit-pct --value go together"),
    (("linear[a]", *WHY[:2]), "--days is missing"),
    (("linear[a]", "step_ms", "--limit-pct", "60", *WHY),
     "60 % of step_ms: more than 0 and at most 50 % can be waived; accept a larger"),
    (("linear[a]", "step_ms", "--limit-pct", "nan", *WHY), "more than 0 and at most 50 %"),
])  # fmt: skip
def test_a_waiver_that_is_wrong_is_bad_usage(changed, arguments, words):
    """Status 2, and nothing is written."""
    done = changed("waive", *arguments)
    assert done.status == 2
    assert words in done.err
    assert not (changed.path / "baselines/waivers.json").exists()


def test_git_says_who(changed, monkeypatch):
    """Without --who it is git's user; where git knows none, --who is asked for."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    done = changed("waive", "linear[a]", *SIZE, *WHY[:4])
    assert done.status == 2
    assert "--who" in done.err
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "B. Author")
    assert changed("waive", "linear[a]", *SIZE, *WHY[:4]).status == 0
    assert waivers(changed)[0]["who"] == "B. Author"
