"""python -m stepguard history: a real repository, in which a case was recorded commit by commit."""

import json
import random
import subprocess
from pathlib import Path

import pytest
from git_repositories import commit, git

from stepguard.cli.main import main
from stepguard.core.evidence import Block, Launch
from stepguard.core.fingerprint import Fingerprint
from stepguard_lab.history_table import BARS, PLAIN_BARS, sparkline

ROOT = Path(__file__).resolve().parents[3]
CASE = "linear[nano]"
STEP = 40  # the first point of the slower level
SEED = 47


def launches(ms):
    """A launch at so many milliseconds a step."""
    block = Block(steps=4, wall_ms=(4 * ms,), events_ms=(4 * ms,), step_ms=(ms,) * 4)
    return (
        Launch(1, (block,), compile_s=1.0, warmup_s=1.0, warmup_steps=3, steady="", wall_s=9.0),
    )


def keep(shell, number, ms, head, **changes):
    """One run's evidence, of the commit and of a day of its own."""
    date = f"2030-{1 + number // 28:02d}-{1 + number % 28:02d}T00:00:00+00:00"
    evidence = shell.made(launches=launches(ms), date=date, commit=head, **changes)
    shell.keep(evidence)


@pytest.fixture
def repository(shell):
    """A repository without a history yet."""
    git(shell.path, "init", "-q")
    (shell.path / ".gitignore").write_text(".stepguard/\n")
    (shell.path / "pytest.ini").write_text("[pytest]\n")
    commit(shell.path, "first", model="width = 1\n")
    return shell


def committed(root, count):
    """Make as many commits, by one process. Their hashes, oldest first."""
    stream = ""
    for number in range(count):
        text = f"width = {number}\n"
        stream += f"commit refs/heads/main\ncommitter a <a@b> {number} +0000\ndata 0\n"
        stream += "from refs/heads/main^0\n" if number == 0 else ""
        stream += f"M 644 inline model.py\ndata {len(text)}\n{text}"
    command = ["git", "-C", str(root), "fast-import", "--quiet"]
    subprocess.run(command, input=stream, text=True, check=True)
    git(root, "reset", "-q", "--hard", "main")
    return git(root, "log", "--reverse", "--format=%H").split()[-count:]


def series(shell, points=60, step_pct=10.0, sd_pct=1.5):
    """Keep a run at each of as many commits; a step comes at the commit STEP. The commits."""
    draw, commits = random.Random(SEED), committed(shell.path, points)
    for number, head in enumerate(commits):
        ms = 10.0 * (1 + step_pct / 100 * (number >= STEP)) * (1 + draw.gauss(0, sd_pct / 100))
        keep(shell, number, ms, head)
    return commits


@pytest.fixture
def sixty(repository, monkeypatch):
    """Sixty commits, and a run of each: more than a checkout usually keeps."""
    monkeypatch.setattr("stepguard.storage.kept_runs.KEPT_RUNS", 100)
    return repository, series(repository)


def test_a_step_is_found_at_its_commit(sixty):
    """And nothing else is; the anchor, a commit before it, is named as the faster one."""
    pytest.importorskip("ruptures")
    shell, commits = sixty
    git(shell.path, "tag", "v1", commits[20])
    done = shell("history", CASE, "step_ms", "--json", "-")
    assert done.status == 0, done.err
    (found,) = json.loads(done.out.splitlines()[-1])["series"]
    (change,) = found["changes"]
    assert change["commit"] == commits[STEP] and len(found["points"]) == 60
    assert 100 * (change["after"] / change["before"] - 1) == pytest.approx(10.0, abs=2.0)
    assert "60 measurements imported" in done.out
    assert f"{commits[STEP - 1][:12]}..{commits[STEP][:12]}" in done.out
    assert ": nothing else changed" in done.out
    assert found["creep_pct"] == pytest.approx(10.0, abs=2.0) and not found["crept"]
    assert f"since v1 ({commits[20][:12]}): +" in done.out  # a CPU's margin is 20 %
    assert "imported" not in shell("history", CASE, "step_ms").out  # a second time nothing is new


def test_what_came_along_with_a_step_is_named(repository):
    """Another torch at its own point, and a counter at its commit."""
    for number, head in enumerate(committed(repository.path, 16)):
        torch = "2.13.0" if number < 8 else "2.15.0"
        counters = {"graph_breaks": 0 if number < 12 else 1}
        slower = 10.0 if number < 8 else 11.0
        keep(repository, number, slower + 0.01 * (number % 3), head,
             fingerprint=Fingerprint("x86_64", "", torch=torch),
             counts=repository.made(counters=counters).counts)  # fmt: skip
    done = repository("history", CASE, "graph_breaks")
    assert "level 0 -> 1 at " in done.out
    assert ": nothing else changed" in done.out
    done = repository("history", CASE, "step_ms")
    assert "environment: torch 2.13.0 -> 2.15.0" in done.out
    done = repository("history", CASE, "graph_breaks", "--top", "1")
    assert ", environment: torch 2.13.0 -> 2.15.0\n" in done.out  # where no level changed, too
    overview = repository("history").out
    assert "graph_breaks" in overview and "unique_graphs" not in overview  # it never moved


def test_a_branchs_measurements_are_no_history(repository):
    """Nor those of uncommitted code, or of a case that failed; how many is said."""
    head = git(repository.path, "rev-parse", "HEAD")
    keep(repository, 0, 10.0, head)
    keep(repository, 1, 10.0, "b" * 40)
    keep(repository, 2, 10.0, head, dirty=("model.py",))
    done = repository("history", CASE, "step_ms", "--json", "-")
    (found,) = json.loads(done.out.splitlines()[-1])["series"]
    assert [one["commit"] for one in found["points"]] == [head]
    assert "left out: 1, of a commit that HEAD's history does not have" in done.out
    assert "left out: 1, of code that is in no commit" in done.out
    assert found["unsearched"] == "1 point, 12 are needed"


def test_the_projects_own_recordings_are_a_history(tmp_path, capsys):
    """Every version of the baseline files in git: several cards, each with what it measured; a
    second call reads none of them again.
    """
    if not (ROOT / ".git").exists():
        pytest.skip("no git history here")
    target, page = tmp_path / "history.sqlite", tmp_path / "history.html"
    call = ["history", "--store", str(target), "--json", "-", "--html", str(page)]
    call += ["--baselines", str(ROOT / "baselines")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main(call) == 0
        first = capsys.readouterr().out.splitlines()
        assert main(call) == 0
        second = capsys.readouterr().out.splitlines()
    found = json.loads(first[-1])["series"]
    assert first[-1] == second[-1] and not any("imported" in line for line in second)
    timed = [one for one in found if one["metric"] == "step_ms"]
    assert len({one["card"] for one in timed}) >= 10
    assert {one["machine"] for one in timed} >= {"NVIDIA H200", "NVIDIA H100 80GB HBM3"}
    text = page.read_text()
    several = sum(len(one["points"]) > 1 for one in found)  # those of one point are rows
    assert text.startswith("<!DOCTYPE html>") and text.count("<figure>") == several < len(found)
    assert "<script" not in text and "http:" not in text and "https:" not in text


@pytest.mark.parametrize(("arguments", "said"), [
    (["a", "step_mss"], "'step_mss' is no metric (did you mean step_ms"),
    (["--evidence", "nowhere"], "--evidence nowhere: no such folder"),
    (["--json", "taken.py"], "--json taken.py: is a file that may be yours"),
])  # fmt: skip
def test_bad_usage(shell, arguments, said):
    """It is refused before anything is imported."""
    (shell.path / "taken.py").write_text("mine")
    done = shell("history", *arguments)
    assert done.status == 2 and said in done.err
    assert not (shell.path / ".stepguard").exists()


def test_an_empty_history_says_what_fills_it(repository):
    """Of a case that nobody measured, too."""
    done = repository("history")
    assert done.status == 1 and "the history has no measurement; record first" in done.err
    keep(repository, 0, 10.0, git(repository.path, "rev-parse", "HEAD"))
    assert "no measurement of linear[other]" in repository("history", "linear[other]").err
    assert "has none of it, but of CPU" in repository("history", "--card", "GPU-9").err
    assert "no revision" in repository("history", "--anchor", "v9").err


def test_names_cannot_steer_the_page(repository):
    """A case's name and a level's reason are text, whatever they hold."""
    evil = "</title><script>alert(1)</script>"
    head = git(repository.path, "rev-parse", "HEAD")
    keep(repository, 0, 10.0, head, case_id=f"linear[{evil}]")
    assert repository("history", "--html", "page.html").status == 0
    text = (repository.path / "page.html").read_text()
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text


def test_a_sparkline_has_a_bar_for_each_value():
    """The lowest is the least, the highest the largest; equal values are all low."""
    assert sparkline([1, 2, 3]) == BARS[0] + BARS[4] + BARS[7]
    assert sparkline([1, 1], PLAIN_BARS) == "__"
    assert sparkline(range(100), width=3) == BARS[0] + BARS[4] + BARS[7]
