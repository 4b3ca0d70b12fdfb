"""The scripts of workflow steps that decide something, each run alone: in a small repository, with
stand-ins for Python and gh that note what they were asked.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from git_repositories import commit, git, repository

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
# Notes its words, writes the page that --perf-report names, and ends with the status in $STATUS.
STAND_IN = """#!{python}
import os, sys
print(*sys.argv[1:], file=open({asked!r}, "a"))
for word in sys.argv:
    if word.startswith("--perf-report="):
        os.makedirs(".stepguard", exist_ok=True)
        open(word.partition("=")[2], "w").write("the page\\n")
sys.exit(int(os.environ.get("STATUS", "0")))
"""
# The runs of main that GitHub knows; 4710 is of a tag that was called main, and is gone.
GH = """#!/bin/sh
case "$*" in
  "run list --workflow perf.yml --branch main --event push "*)
    printf '%s\\n' "4711 {main}" "4710 {tag}" ;;
  "run download "*) mkdir -p "$7" ;;
  *) exit 1 ;;
esac
"""


def job(workflow, name):
    """Return a job of a workflow file."""
    return yaml.safe_load((WORKFLOWS / f"{workflow}.yml").read_text())["jobs"][name]


class Machine:
    """A checkout of the repository, in which scripts of steps run."""

    def __init__(self, folder):
        self.folder = folder
        self.work, self.bin = folder / "work", folder / "bin"
        self.bin.mkdir()
        self.put("python", STAND_IN.format(python=sys.executable, asked=str(folder / "asked")))

    def put(self, name, text):
        """Put a program on PATH."""
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run(self, workflow, name, step, **variables):
        """Run a step's script as GitHub does; return its status and what it printed."""
        (script,) = (one["run"] for one in job(workflow, name)["steps"] if one.get("name") == step)
        for file in ("asked", "summary.md"):
            (self.folder / file).unlink(missing_ok=True)
        own = {"PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHON": str(self.bin / "python")}
        own |= {"GPUS": "1", "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md")}
        own |= {"RUNNER_TEMP": str(self.folder)}
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=self.work,
            env=os.environ | own | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def asked(self):
        """Return the words of each call of a stand-in, a line a call."""
        path = self.folder / "asked"
        return path.read_text() if path.exists() else ""

    def summary(self):
        """Return what the step added to the job's summary."""
        path = self.folder / "summary.md"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def machine(tmp_path):
    """A clone of main, two commits; "merged" merges "slow" into it, "stacked" into "slow"."""
    root = repository(tmp_path / "work")
    (root / "baselines").mkdir()
    (root / "baselines" / "cpu.json").write_text("{}")
    commit(root, "main")
    git(root, "switch", "-q", "-c", "slow")
    commit(root, "slow", slow="")
    git(root, "switch", "-q", "-c", "merged", "main")
    git(root, "merge", "-q", "--no-ff", "-m", "Merge", "slow")
    onto = ["-p", "slow", "-p", "merged"]
    git(root, "branch", "stacked", git(root, "commit-tree", "slow^{tree}", *onto, "-m", "Merge"))
    git(root, "switch", "-q", "main")
    return Machine(tmp_path)


def test_a_pull_request_is_judged_by_the_first_parent_of_its_merge(machine):
    """Which main has, whatever the event says of the base, and whatever main gained since."""
    parent = git(machine.work, "rev-parse", "main")
    git(machine.work, "clone", "-q", "-b", "merged", ".", "merged")
    commit(machine.work, "later")
    status, said = machine.run("measure", "gate", "the commit that it is merged into")
    assert status == 0, said
    assert git(machine.work, "rev-parse", "HEAD") == parent
    assert not (machine.work / "merged").exists()


def test_what_is_merged_into_another_branch_is_red(machine):
    """Its green would stay when it is retargeted to main."""
    git(machine.work, "clone", "-q", "-b", "stacked", ".", "merged")
    status, said = machine.run("measure", "gate", "the commit that it is merged into")
    assert status == 1 and "::error::It goes into a commit that main does not have" in said


@pytest.mark.parametrize(("event", "result", "status", "red"), [
    ("pull_request", "success", "0", False),
    ("merge_group", "success", "0", False),
    ("push", "success", "0", False),
    ("pull_request", "success", "1", True),
    ("pull_request", "failure", "0", True),
    ("push", "cancelled", "0", True),
    ("pull_request", "skipped", "0", True),
])  # fmt: skip
def test_the_gate_asks_of_the_document_what_the_event_asks(machine, event, result, status, red):
    """Beside the commit that is checked out, but for a commit of main. It is red if the document
    or the job that measured is; a fork, which is not measured, is told why.
    """
    here, head = git(machine.work, "rev-parse", "HEAD"), "f" * 40
    given = {"RESULT": result, "COMMIT": "c" * 40, "EVENT": event, "STATUS": status}
    given["HEAD"] = head if event == "pull_request" else ""
    code, said = machine.run("measure", "gate", "gate", **given)
    assert (code != 0) is red
    if result == "skipped":
        assert "::error::A fork is not measured" in said and not machine.asked()
        return
    words = f"-m stepguard gate {machine.folder}/measured/perf.json --commit {'c' * 40} --gpus 1"
    words += f" --against {here}" if event != "push" else ""
    words += f" --head {head}" if event == "pull_request" else ""
    assert machine.asked() == f"{words}\n"


def test_which_jobs_run():
    """A fork is measured by no job, and the gate always runs: a skipped check counts as passed. The
    history takes runs of this repository's main alone.
    """
    assert job("measure", "measure")["if"] == (
        "github.event_name != 'pull_request' || "
        "github.event.pull_request.head.repo.full_name == github.repository"
    )
    assert job("measure", "gate")["if"] == "always()"
    assert job("history", "history")["if"] == (
        "github.event.workflow_run.event == 'push' && "
        "github.event.workflow_run.head_repository.full_name == github.repository"
    )


@pytest.mark.parametrize(
    ("pull", "queued", "base"), [("7", "", "main"), ("", "slow", "slow"), ("", "", "")]
)
def test_a_change_is_measured_beside_what_it_is_merged_into(machine, pull, queued, base):
    """By that commit's baselines and in pairs with it; a commit of main by its own recordings."""
    git(machine.work, "switch", "-q", "merged")
    sha = {name: git(machine.work, "rev-parse", name) for name in ("main", "slow")} | {"": ""}
    given = {"PULL": pull, "BASE": sha[queued]}
    assert machine.run("measure", "measure", "measure", **given)[0] == 0
    asked = machine.asked()
    assert "-m pytest perf_tests --perf-strict --perf-require-gpus=1 " in asked
    beside = f"--perf-base={sha[base]} --perf-against={sha[base]} --perf-budget=30 "
    assert beside in asked if base else "--perf-base" not in asked and "against" not in asked


@pytest.mark.parametrize("tagged", ["main~1", "main", ""])
def test_a_night_is_measured_beside_the_newest_tag(machine, tagged):
    """Without one and with a young history, or where main is that tag, the summary says that
    nothing was compared.
    """
    if tagged:
        git(machine.work, "tag", "v1", tagged)
    status, said = machine.run("baselines", "measure", "beside the anchor", STATUS="3")
    if tagged == "main~1":
        assert status == 3, said
        assert "--perf-against=v1 " in machine.asked()
        assert machine.summary() == "Beside v1:\n\nthe page\n"
        return
    assert status == 0 and not machine.asked(), said
    nothing = "Main is v1, its newest tag" if tagged else "No tag and no commit of a month ago"
    assert machine.summary().startswith(nothing)


@pytest.mark.parametrize("changed", [True, False])
def test_new_baselines_are_proposed_on_a_branch_of_their_own(machine, changed):
    """With the reason, which stays a text; where nothing is new, nothing is proposed."""
    origin = machine.folder / "origin"
    git(machine.folder, "clone", "-q", "--bare", str(machine.work), str(origin))
    git(machine.work, "remote", "add", "origin", str(origin))
    machine.put("gh", (machine.bin / "python").read_text())
    if changed:
        (machine.work / "baselines" / "cpu.json").write_text("{ }")
    reason = "the loss is $(touch planted) read `id` on purpose"
    given = {"REASON": reason, "RUN_ID": "4711", "BRANCH": "", "RUN_URL": "its page"}
    status, said = machine.run("baselines", "propose", "open a pull request", **given)
    assert status == 0, said
    if changed:
        branch = "baselines/4711"
        assert git(origin, "log", "-1", "--format=%s", branch) == f"Baselines: {reason}"
        assert git(origin, "diff", "--name-only", f"{branch}~1", branch) == "baselines/cpu.json"
        assert f"pr create --title Baselines: {reason} " in machine.asked()
        assert not (machine.work / "planted").exists()
    else:
        assert "already hold what was measured" in machine.summary() and not machine.asked()


def test_the_history_takes_commits_of_main_alone(machine):
    """A run of a tag that is called main is left out."""
    here = {"main": git(machine.work, "rev-parse", "main")}
    tree = ["-m", "mine", "-p", "main", "main^{tree}"]
    machine.put("gh", GH.format(tag=git(machine.work, "commit-tree", *tree), **here))
    status, said = machine.run("history", "history", "what main measured since")
    assert (status, said) == (0, "run 4710 is of no commit of main\n")
    assert [path.name for path in (machine.folder / "evidence").iterdir()] == ["4711"]
