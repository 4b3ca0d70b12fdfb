"""The workflows' own commands, in order, on clean machines: a small project on a CPU, with what
GitHub gives its jobs, and a small GitHub that answers.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from agent_forks import VARIABLE, interpreter, served
from builders import cpu_evidence
from lab_commands import installed_lab
from workflow_runner import GitHub, git

from stepguard.report.github import MARKER
from stepguard.storage.kept_runs import Store
from stepguard.storage.waiver_file import today
from stepguard_lab.history_store import open_store

ROOT = Path(__file__).resolve().parents[2]
CALLER, COMMENT, BASELINES, TESTS, HISTORY = (
    f".github/workflows/{name}.yml" for name in ("perf", "comment", "baselines", "tests", "history")
)
MODEL = """
import os

import torch


class Step:
    tokens_per_step = 8

    def __init__(self):
        self.weight = torch.ones(64, 64)

    def step(self):
        total = (self.weight @ self.weight).sum()
        return total


def step(*, device):
    os.makedirs(os.environ["TORCHINDUCTOR_CACHE_DIR"], exist_ok=True)  # as if it had compiled
    return Step()
"""
SYNC = ("        return total\n", "        return total.item()\n")
LINE = 1 + MODEL.lstrip().partition(SYNC[0])[0].count("\n")
CASES = """
from stepguard import Case
from stepguard.plugin import cases


@cases(Case("tiny", "tiny:step", {}, device="cpu", launches=1))
def test_step(perf, case):
    perf(case)
"""
# All jobs run on this machine, which is looked at once by each command.
LANG = "C.UTF-8"
LOOKS, FIT = ("the machine", "what reading a document needs"), set[str]()
ACCEPT = "python -m stepguard accept --evidence evidence/runs --reason '...'"
QUICK = """
# ruff: noqa: I001
from pathlib import Path

import pytest
from quick_launches import invent_pairs, remember_counts, shorten_launches

shorten_launches(pytest.MonkeyPatch())
invent_pairs(pytest.MonkeyPatch())
remember_counts(pytest.MonkeyPatch(), Path(Path(__file__).with_name("memory").read_text()))
pytest_plugins = ["stepguard.plugin"]
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """What jobs and developers call: an interpreter whose pytest and stepguard are forked, and the
    variable that names the server.
    """
    folder = tmp_path_factory.mktemp("python")
    files = [yaml.safe_load(one.read_text()) for one in ROOT.glob(".github/workflows/*.yml")]
    free = {name for file in files for name in names(file)}
    (folder / "server").mkdir()
    (folder / "installed").mkdir()
    lab = {"PYTHONPATH": os.pathsep.join(installed_lab(folder / "installed"))}
    with served({"LANG": LANG}, folder / "server", free) as name:
        yield SimpleNamespace(path=interpreter(folder / "bin"), variables={VARIABLE: name, **lab})


def names(part):
    """Yield the variables that a part of a workflow file sets."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for one in inner:
        yield from names(one)
    yield from part.get("env", ()) if isinstance(part, dict) else ()


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    """Where runs find what the launches of runs before them counted."""
    return tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="module")
def origin(tmp_path_factory, memory, python):
    """The repository on GitHub: a project of one case, recorded on main, and a pull request, number
    7, that adds a sync; also as GitHub merges it.
    """
    made = tmp_path_factory.mktemp("origin")
    for name in ("constraints.txt", "Makefile", "pytest.ini", ".gitignore", ".ci/run"):
        (made / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, made / name)
    makefile = (made / "Makefile").read_text()
    assert makefile.count("-n 3") == 1
    (made / "Makefile").write_text(makefile.replace("-n 3", "-n 0"))  # for one test
    for name in (".github", "scripts"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, made / name, ignore=ignored)
    # In each clone, and without 300 files to write and to compile: test_itself.py has a real one.
    (made / "stepguard").symlink_to(ROOT / "stepguard")
    (made / "lab" / "tests").mkdir(parents=True)
    (made / "lab" / "tests" / "conftest.py").touch()
    (made / "lab" / "stepguard_lab").symlink_to(ROOT / "lab" / "stepguard_lab")
    shutil.copy(ROOT / "lab" / "pyproject.toml", made / "lab")
    helpers = ("agent_forks", "quick_launches", "quick_python", "quick_ranks")
    for name in (f"{helper}.py" for helper in helpers):
        shutil.copy(ROOT / "tests" / name, made)
    checked = 'files = ["stepguard", "lab/stepguard_lab"]'
    project = (ROOT / "pyproject.toml").read_text().replace(checked, 'files = ["tests"]', 1)
    # They are sorted as what they are in tests/: not the project's own.
    foreign = json.dumps([f"{helper}.py" for helper in helpers])
    excluded = f"[tool.ruff]\nextend-exclude = {foreign}\n"
    (made / "pyproject.toml").write_text(project.replace("[tool.ruff]\n", excluded, 1))
    (made / "tiny.py").write_text(MODEL.lstrip())
    (made / "conftest.py").write_text(QUICK.lstrip())
    (made / "memory").write_text(str(memory))
    (made / "tests").mkdir()
    (made / "tests" / "test_sum.py").write_text("def test_sum() -> None:\n    assert 1 + 1 == 2\n")
    (made / "perf_tests").mkdir()
    (made / "perf_tests" / "test_tiny.py").write_text(CASES.lstrip())
    git(made, "init", "--quiet", "-b", "main")
    commit(made, "a project")
    record = ["-m", "pytest", "-q", "perf_tests", "--perf-update-new"]
    done = command(made, python, str(python.path), *record)
    assert done.returncode == 0, done.stdout
    commit(made, "record")
    git(made, "switch", "--quiet", "-c", "slow")
    (made / "tiny.py").write_text(MODEL.lstrip().replace(*SYNC))
    commit(made, "a sync")
    git(made, "switch", "--quiet", "-c", "merged", "main")
    git(made, "merge", "--quiet", "--no-ff", "-m", "Merge pull request 7", "slow")
    git(made, "switch", "--quiet", "--detach", "main")
    git(made, "repack", "-a", "-d", "--quiet")  # each clone then links one file, not five hundred
    return made


def commit(folder, message):
    """Commit all that is there."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


def command(folder, python, *words):
    """A developer's command there, outside CI and this test."""
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": LANG} | python.variables
    return subprocess.run(words, cwd=folder, env=plain, capture_output=True, text=True, check=False)


class Api(BaseHTTPRequestHandler):
    """The part of GitHub's API that a comment and a check run need; the server has the pull
    request's head, its comments and its check runs, and notes what it was asked.
    """

    def answer(self):
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size)) if size else None
        path, _, query = self.path.partition("?")
        assert self.headers["Authorization"] == "Bearer a-token"
        self.server.asked.append(f"{self.command} {path.removeprefix('/repos/OWNER/REPO/')}")
        told = self.told(path, query, body)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    do_GET = do_POST = do_PATCH = answer

    def told(self, path, query, body):
        """What GitHub has, or has now."""
        comments = self.server.comments
        if "/check-runs" in path:
            self.server.checks.append(body)
            return {"id": 99}
        if path.endswith("/pulls"):
            return [{"number": 7, "head": {"sha": self.server.head}}] if "OWNER%3A" in query else []
        if self.command == "GET":
            return comments if "page=1" in query.split("&") else []
        if self.command == "POST":
            comments.append(said("github-actions[bot]", body["body"], len(comments)))
        else:
            comments[int(path.rpartition("/")[2])]["body"] = body["body"]
        return {}

    def log_message(self, *words):
        """Nothing."""


def said(who, body, number):
    """A comment."""
    return {"id": number, "user": {"login": who}, "body": body}


def in_a_clone(hub, python, script):
    """What somebody's clone of main answers to a script; gh gets an artifact from the hub."""
    clone = hub.folder / f"clone-{len(list(hub.folder.glob('clone-*')))}"
    git(hub.folder, "clone", "--quiet", str(hub.repository), str(clone))
    git(clone, "checkout", "--quiet", "main")
    stand_in = clone / "bin" / "gh"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\ntest "$1 $2 $3 $4" = "run download 4711 --name"\n'
        f'cp -r "{hub.folder}/artifacts/$5" "$7"\n'
    )
    stand_in.chmod(0o755)
    path = f"PATH={stand_in.parent}:{python.path.parent}:$PATH\n"
    return command(clone, python, "bash", "-e", "-c", path + script)


@pytest.fixture
def api(origin):
    """GitHub's API, on loopback: two people have commented, one as if they were us."""
    server = HTTPServer(("127.0.0.1", 0), Api)
    server.checks = []
    server.asked, server.head = [], git(origin, "rev-parse", "slow")
    server.comments = [said("somebody", f"{MARKER}\nnot ours", 0), said("other", "hm", 1)]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hub(origin, tmp_path, api, python):
    """GitHub, where a CPU takes the GPU's place."""
    url = f"http://127.0.0.1:{api.server_port}"
    jobs = {"python": python.path, "variables": python.variables}
    jobs |= {"replaced": {"PYTHON": str(python.path), "GPUS": "0"}}
    return GitHub(origin, tmp_path, url, looks=LOOKS, fit=FIT, **jobs)


def pull_request(hub, repository="OWNER/REPO", head="slow", merged="merged", base="main"):
    """The run that a pull request starts, at GitHub's merge of it. ``base`` is what its event says
    main was: GitHub does not update it when main moves, and merges with main as it is.
    """
    sha = {name: git(hub.repository, "rev-parse", name) for name in (base, head, merged)}
    head = {"ref": head, "sha": sha[head], "repo": {"full_name": repository}}
    base = {"ref": "main", "sha": sha[base]}
    pull = {"number": 7, "head": head, "base": base}
    return hub.event("pull_request", sha[merged], "refs/pull/7/merge", pull_request=pull)


def comment_on(hub, started, owner="OWNER"):
    """The run of the comment's workflow that follows; the jobs."""
    head = started["event"]["pull_request"]["head"]
    ended = {
        "id": 4711,
        "event": started["event_name"],
        "conclusion": "failure",
        "head_branch": head["ref"],
        "head_sha": head["sha"],
        "head_repository": {"full_name": f"{owner}/REPO", "owner": {"login": owner}},
    }
    main = git(hub.repository, "rev-parse", "main")
    follows = hub.event("workflow_run", main, "refs/heads/main", workflow_run=ended)
    return hub.run(COMMENT, follows, at="main")


def test_a_pull_request_that_adds_a_sync(hub, api, python):
    """Measured from its merge, red, the line named; one comment, which the next run replaces and
    whose commands work.
    """
    started = pull_request(hub)
    jobs = hub.run(CALLER, started, at="merged")
    measure, gate = jobs["perf / measure"], jobs["perf / gate"]
    assert (measure.result, gate.result) == ("failure", "failure"), measure.log + gate.log
    assert measure.summary.startswith("**Performance failed:** 1 CHANGED"), measure.log
    assert "keep it" not in measure.ran and not hub.caches
    assert "step[tiny]" in (hub.artifacts["perf-evidence"] / "perf.html").read_text()
    assert f"\n::error file=tiny.py,line={LINE},title=step[tiny]::step[tiny]: CHANGED" in gate.log
    for _ in range(2):
        (job,) = comment_on(hub, started).values()
        assert job.result == "success", job.log
    assert [one for one in api.asked if not one.startswith("GET")] == [
        "POST issues/7/comments",
        "POST check-runs",
        "PATCH issues/comments/2",
        "POST check-runs",
    ]
    for check in api.checks:
        assert (check["head_sha"], check["conclusion"]) == (api.head, "failure")
        (item,) = check["output"]["annotations"]
        assert (item["path"], item["start_line"], item["title"]) == ("tiny.py", LINE, "step[tiny]")
    assert [one["body"] for one in api.comments[:2]] == [f"{MARKER}\nnot ours", "hm"]
    (body,) = (one["body"] for one in api.comments[2:])
    assert body.startswith(f"{MARKER}\n**Performance failed:** 1 CHANGED")
    assert f"tiny.py:{LINE}" in body
    (look_closer,) = re.findall(r"```sh\n(.*?)```", body, re.DOTALL)
    assert "the pull request adds a waiver" in body
    looked = in_a_clone(hub, python, look_closer)
    assert "step[tiny]: CHANGED" in looked.stdout, looked.stderr
    # What a branch measured in pairs is nothing to accept; what main measured is.
    fetch = "gh run download 4711 --name perf-evidence --dir evidence\n"
    refused = in_a_clone(hub, python, fetch + ACCEPT)
    assert refused.returncode == 1 and "no evidence.json" in refused.stderr


def test_a_pull_request_that_waives_its_sync(hub):
    """Green, by the gate's own reading of the commit, and the run's summary has the reason."""
    origin = hub.repository
    git(origin, "branch", "--force", "declared", "slow")
    clone = hub.folder / "author"
    git(hub.folder, "clone", "--quiet", "--branch", "declared", str(origin), str(clone))
    whose = {"case": "step[tiny]", "reason": "read on purpose", "who": "A. Author"}
    whose["expires"] = str(today() + timedelta(days=9))
    operators = {"operator_calls_per_step": 3, "compiled_operator_calls_per_step": 11}
    costs = {"sync_candidates_per_step": 1} | operators
    waivers = [whose | {"metric": name, "value": value} for name, value in costs.items()]
    (clone / "baselines").mkdir(exist_ok=True)
    (clone / "baselines/waivers.json").write_text(json.dumps({"schema": 1, "waivers": waivers}))
    git(clone, "add", "baselines")
    git(clone, "commit", "--quiet", "-m", "declare")
    git(clone, "push", "--quiet", "origin", "declared")
    git(clone, "switch", "--quiet", "-c", "declared-merged", "origin/main")
    git(clone, "merge", "--quiet", "--no-ff", "-m", "Merge pull request 7", "declared")
    git(clone, "push", "--quiet", "origin", "declared-merged")
    started = pull_request(hub, head="declared", merged="declared-merged")
    jobs = hub.run(CALLER, started, at="declared-merged")
    measure, gate = jobs["perf / measure"], jobs["perf / gate"]
    assert (measure.result, gate.result) == ("success", "success"), measure.log + gate.log
    assert "read on purpose" in measure.summary
    assert "declared here: step[tiny] operator_calls_per_step " in gate.log


def test_what_main_gained_meanwhile_hides_no_loss(hub):
    """A sync that main lost since the pull request was opened, and that comes back with it, is red:
    the commit that judges is that of the merge, not the one that the event names.
    """
    jobs = hub.run(CALLER, pull_request(hub, base="slow"), at="merged")
    measure, gate = jobs["perf / measure"], jobs["perf / gate"]
    assert (measure.result, gate.result) == ("failure", "failure"), measure.log + gate.log
    assert "step[tiny]: CHANGED" in gate.log and "1 CHANGED" in measure.summary


def test_what_is_merged_into_another_branch_is_not_green(hub):
    """A pull request on a slow branch: its green would stay when it is retargeted to main."""
    stacked, onto = git(hub.repository, "rev-parse", "slow^{tree}"), ["-p", "slow", "-p", "merged"]
    merge = git(hub.repository, "commit-tree", stacked, *onto, "-m", "Merge pull request 7")
    git(hub.repository, "branch", "--force", "stacked", merge)
    jobs = hub.run(CALLER, pull_request(hub, merged="stacked", base="slow"), at="merged")
    assert jobs["perf / gate"].result == "failure", jobs["perf / gate"].log
    assert "::error::It goes into a commit that main does not have" in jobs["perf / gate"].log


def test_a_merge_group(hub):
    """Judged beside the commit that the queue puts it on, which main need not have yet."""
    sha = {name: git(hub.repository, "rev-parse", name) for name in ("slow", "merged", "main")}
    again = git(hub.repository, "commit-tree", "merged^{tree}", "-p", "merged", "-m", "again")
    git(hub.repository, "branch", "--force", "queued", again)
    for group, base, result in ((again, "merged", "success"), (sha["merged"], "main", "failure")):
        queued = {"base_sha": sha[base], "head_sha": group}
        started = hub.event("merge_group", group, "refs/heads/queue/main", merge_group=queued)
        jobs = hub.run(CALLER, started, at="main")
        results = {name: job.result for name, job in jobs.items()}
        assert results == {"perf / measure": result, "perf / gate": result}, jobs


def test_a_commit_of_main(hub, memory, python):
    """Green, and what it compiled is kept for others."""
    for note in memory.iterdir():
        note.unlink()  # to be launched
    main = git(hub.repository, "rev-parse", "main")
    jobs = hub.run(CALLER, hub.event("push", main, "refs/heads/main"), at="main")
    logs = "".join(job.log for job in jobs.values())
    assert {name: job.result for name, job in jobs.items()} == {
        "perf / measure": "success",
        "perf / gate": "success",
    }, logs
    assert jobs["perf / measure"].summary.startswith("**Performance passed:** 1 same")
    assert "the gate passes: 1 case, all that " in jobs["perf / gate"].log
    assert set(hub.caches) == {f"compile-{main}"}
    accept = "gh run download 4711 --name perf-evidence --dir evidence\n" + ACCEPT
    done = in_a_clone(hub, python, accept)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fork_is_not_measured(hub, api):
    """Whatever its own workflow says: the job is skipped, the gate red, the comment says why."""
    started = pull_request(hub, "somebody/REPO")
    jobs = hub.run(CALLER, started, at="merged")
    assert {name: job.result for name, job in jobs.items()} == {
        "perf / measure": "skipped",
        "perf / gate": "failure",
    }
    assert "::error::A fork is not measured" in jobs["perf / gate"].log
    api.head = started["event"]["pull_request"]["head"]["sha"]
    (job,) = comment_on(hub, started).values()
    assert job.result == "success", job.log
    assert "A pull request of a fork is not measured" in api.comments[-1]["body"]


def test_an_older_run_says_nothing(hub, api):
    """A run that ends after its commit was pushed over does not replace the newer one's comment."""
    api.head = "f" * 40
    (job,) = comment_on(hub, pull_request(hub)).values()
    assert job.result == "success", job.log
    assert "pushed over" in job.log and len(api.comments) == 2


def test_new_baselines_are_proposed(hub):
    """Of main, where the sync was merged: measured, accepted with the reason, on a branch of their
    own; and the reason stays a text.
    """
    hub.commands = hub.folder / "bin"
    hub.commands.mkdir()
    asked = hub.folder / "asked"
    gh = f'#!{sys.executable}\nimport sys\nprint(sys.argv[1:], file=open("{asked}", "a"))\n'
    (hub.commands / "gh").write_text(gh)
    (hub.commands / "gh").chmod(0o755)
    reason = "the loss is $(touch planted) read `id` on purpose"
    merged = git(hub.repository, "rev-parse", "merged")
    started = hub.event("workflow_dispatch", merged, "refs/heads/main")
    jobs = hub.run(BASELINES, started, at="merged", inputs={"reason": reason})
    assert {name: job.result for name, job in jobs.items()} == {
        "measure": "success",
        "propose": "success",
    }, "".join(job.log for job in jobs.values())
    branch = "baselines/4711"
    assert git(hub.repository, "log", "-1", "--format=%s", branch) == f"Baselines: {reason}"
    changed = git(hub.repository, "diff", "--name-only", f"{branch}~1", branch)
    assert changed == "baselines/cpu.json"
    recorded = json.loads(git(hub.repository, "show", f"{branch}:baselines/cpu.json"))
    epoch = recorded["cases"]["step[tiny]"]["epochs"][-1]
    assert (epoch["reason"], epoch["recordings"][0]["commit"]) == (reason, merged)
    words = ["pr", "create", "--title", f"Baselines: {reason}"]
    assert f"{words}"[:-1] in asked.read_text() and not list(hub.folder.rglob("planted"))


@pytest.mark.parametrize("tagged", ["main~1", "main", ""])
def test_a_night(hub, tagged):
    """Measured, and beside the newest tag; what is `same` would be proposed, but counters alone say
    nothing new. Without a tag and with a young history, or where main is that tag, the summary says
    that it compared nothing.
    """
    main = git(hub.repository, "rev-parse", "main")
    if tagged:
        git(hub.repository, "tag", "v1", tagged)
    started = hub.event("schedule", main, "refs/heads/main")
    jobs = hub.run(BASELINES, started, at="main", inputs={})
    if tagged:
        git(hub.repository, "tag", "--delete", "v1")
    measure, propose = jobs["measure"], jobs["propose"]
    assert (measure.result, propose.result) == ("success", "success"), measure.log + propose.log
    assert "accept" not in measure.ran and "beside the anchor" in measure.ran
    assert "already hold what was measured" in propose.summary
    if tagged == "main~1":
        assert "Beside v1:" in measure.summary and "1 same" in measure.summary
    elif tagged:
        assert "Main is v1, its newest tag, and was compared with nothing." in measure.summary
    else:
        assert "No tag and no commit of a month ago" in measure.summary


GH = """#!/bin/bash
# The runs of main that GitHub knows, and their artifacts: one of perf, and of history the last one.
# 4710 is of a tag that was called main, and is gone.
case "$*" in
  "run list --workflow perf.yml --branch main --event push "*)
    printf '%s\n' "4711 {main}" "4710 {tag}" ;;
  "run list --workflow history.yml --branch main --event workflow_run "*)
    if [ -d {kept}/perf-history ]; then echo 4712; fi ;;
  "api repos/OWNER/REPO/actions/runs/4712/artifacts "*) echo 1 ;;
  "run download 471"[012]" --name perf-"*) mkdir -p "$7" && cp -r {kept}/"$5"/. "$7" ;;
  *) echo "gh $*" >&2; exit 1 ;;
esac
"""
PYTHON = """#!/bin/bash
# The packages are there.
if [ "$1 $2" = "-m pip" ]; then exit 0; fi
exec {python} "$@"
"""


def test_main_s_history_goes_from_run_to_run(hub):
    """Of each commit of main one more point, in a file that the run before it left; it comes from
    runs of main alone, and not from a tag, or from a branch elsewhere, that is called main.
    """
    pytest.importorskip("ruptures")
    hub.commands = hub.folder / "bin"
    hub.commands.mkdir()
    kept = hub.folder / "artifacts"
    main = git(hub.repository, "rev-parse", "main")
    tag = git(hub.repository, "commit-tree", "-m", "mine", "-p", main, "main^{tree}")
    for name, text in (("gh", GH), ("python", PYTHON)):
        made = text.format(kept=kept, python=hub.python, main=main, tag=tag)
        (hub.commands / name).write_text(made)
        (hub.commands / name).chmod(0o755)
    ended = {"event": "push", "head_repository": {"full_name": "OWNER/REPO"}}
    started = hub.event("workflow_run", main, "refs/heads/main", workflow_run=ended)
    for number in (1, 2):
        date = f"2030-01-0{number}T00:00:00+00:00"
        run = kept / "perf-evidence" / "runs" / f"{number}"
        Store(hub.folder).keep(run, "step", cpu_evidence(commit=main, date=date))
        (job,) = hub.run(HISTORY, started, at="main").values()
        assert job.result == "success", job.log
        assert ("No history is kept" in job.log) == (number == 1)
        assert "run 4710 is of no commit of main" in job.log
        assert (
            "forward[nano-cpu]" in job.summary and "step[tiny]" not in job.summary.splitlines()[0]
        )
    with open_store(kept / "perf-history" / "history.sqlite") as store:
        dates = [one.date for one in store.measurements("forward[nano-cpu]")]
    assert dates == ["2030-01-01T00:00:00+00:00", "2030-01-02T00:00:00+00:00"]
    assert (kept / "perf-history" / "history.html").is_file()
    for other in ({"event": "pull_request"}, {"head_repository": {"full_name": "fork/REPO"}}):
        foreign = hub.event("workflow_run", main, "refs/heads/main", workflow_run=ended | other)
        assert {job.result for job in hub.run(HISTORY, foreign, at="main").values()} == {"skipped"}


def test_the_projects_own_tests_and_the_smoke_cases(hub):
    """Linters, tests and the smoke case, whose page is the summary."""
    main = git(hub.repository, "rev-parse", "main")
    event = hub.event("push", main, "refs/heads/main")
    (job,) = hub.run(TESTS, event, at="main", only="tests").values()
    assert job.result == "success", job.log
    assert "set-up: installing" not in job.log
    assert "Success: no issues found in 1 source file" in job.log
    assert "1 passed" in job.log and job.summary.startswith("**Performance passed:** 1 same")
