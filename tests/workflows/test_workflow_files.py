"""The workflow files: what two linters say of them, and what no linter knows."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from stepguard.cli.init import OWN_FILES

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"].removeprefix("https://github.com/")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent
LINTERS = {
    "actionlint": ["actionlint", "-no-color"],
    "zizmor": ["zizmor", "--offline", "--no-progress", "--color=never", ".github", "action.yml"],
}
PLANTED = """
on: pull_request_target
jobs:
  title:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
        with:
          ref: ${{ github.event.pull_request.head.sha }}
      - run: make perf ARGS="${{ github.event.pull_request.title }}"
"""


def lint(linter, folder):
    """What a linter of this interpreter's environment says of a repository."""
    command, *arguments = LINTERS[linter]
    return subprocess.run(
        [BIN / command, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def repository(tmp_path):
    """A copy of the workflows in a repository of their own."""
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    shutil.copy(ROOT / "action.yml", tmp_path)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


@pytest.mark.parametrize("linter", LINTERS)
def test_linters_find_nothing(linter, repository):
    """And they find what is planted: a title that reaches make, in a workflow that can write."""
    clean = lint(linter, repository)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    (repository / ".github" / "workflows" / "planted.yml").write_text(PLANTED)
    found = lint(linter, repository)
    assert found.returncode != 0 and "planted.yml" in found.stdout


def steps(path):
    """Every step of a workflow's jobs."""
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step for job in jobs for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_file_may_not_have(path):
    """Nothing that GitHub fills in is part of a script: a name reaches a shell as a variable, and
    make not at all. Actions are commits, with the release that a commit is. Nobody may write unless
    a job says so, and no checkout leaves a token behind.
    """
    text = path.read_text()
    assert yaml.safe_load(text)["permissions"] in ({}, {"contents": "read"})
    for used, comment in re.findall(r"uses: (\S+)(.*)", text):
        own = used == f"{REPOSITORY}/.github/workflows/measure.yml@main"
        pinned = re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40}", used)
        assert own or (pinned and re.fullmatch(r" # v\d+\.\d+\.\d+", comment)), used
    for step in steps(path):
        script = step.get("run", "")
        assert "${{" not in script, script
        assert not re.search(r"make .*\$", script), script
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def triggers(path):
    """What starts a workflow; YAML takes the word "on" for true."""
    return yaml.safe_load(path.read_text())[True]


def test_what_guards_main_guards_a_merge_queue_and_every_commit():
    """Both run for merge groups, and no commit of main is dropped for a later one."""
    for name in ("perf", "tests"):
        path = ROOT / ".github" / "workflows" / f"{name}.yml"
        assert set(triggers(path)) == {"push", "pull_request", "merge_group"}
        group = yaml.safe_load(path.read_text())["concurrency"]
        only = "github.event_name == 'pull_request'"
        assert group["group"].endswith(f"${{{{ {only} && github.ref || github.sha }}}}")
        assert group["cancel-in-progress"] == f"${{{{ {only} }}}}"


def test_the_leg_of_pages_is_short():
    """Five minutes, without torch; it runs the tests of the site, which no other leg can."""
    (job,) = yaml.safe_load((ROOT / ".github/workflows/docs.yml").read_text())["jobs"].values()
    assert job["timeout-minutes"] <= 5
    assert any("tests/test_docs_site.py" in step.get("run", "") for step in job["steps"])
    for what in ("docs", "browser"):
        listed = [sys.executable, ROOT / "scripts" / "requirements.py", "list", what]
        assert "torch" not in subprocess.check_output(listed, text=True)


def test_the_gpu_is_main_s_alone():
    """Jobs on the GPU stand in the two files that the runner group accepts, and install nothing."""
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            if "self-hosted" not in str(job.get("runs-on")):
                continue
            assert path.name in ("measure.yml", "baselines.yml"), f"{path.name}: {name}"
            assert job["runs-on"]["group"] == "perf"
            assert f"/.github/workflows/{path.name}@" in (ROOT / "docs" / "ci.md").read_text()
            scripts = " ".join(step.get("run", "") for step in job["steps"])
            assert not re.search(r"pip|setup\.sh|\bmake\b", scripts)


def test_the_number_of_gpus_is_a_variable_of_the_repository():
    """One for both files, so that what is recorded is what is measured; each command has it."""
    for name in ("measure", "baselines"):
        text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
        file = yaml.safe_load(text)
        given = file.get("env") or file["jobs"]["measure"]["env"]
        assert given["GPUS"] == "${{ vars.PERF_GPUS || '1' }}"
        assert len(re.findall(r'gpus[= ]"\$GPUS"', text)) == 2


def test_owners_have_files():
    """Every path of CODEOWNERS is there, the workflows' among them, or would be read by pytest or
    make in place of the one that is.
    """
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    owned = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert "/.github/" in owned and len(owned) == len(set(owned))
    names = (*OWN_FILES, "pyproject.toml", "tox.ini", "setup.cfg", "GNUmakefile", "makefile")
    settings = {f"/{name}" for name in names}
    assert settings <= {*owned}
    for path in {*owned} - settings:
        assert (ROOT / path.strip("/")).is_dir() == path.endswith("/"), path
        assert (ROOT / path.strip("/")).exists(), path


ALONE = """
import importlib.metadata, sys
from importlib.abc import MetaPathFinder

packages = importlib.metadata.packages_distributions()
allowed = {name.lower() for name in sys.argv.pop(1).split(",")}


class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        homes = {home.lower() for home in packages.get(name.partition(".")[0], ())}
        if homes and not homes & allowed:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)


sys.meta_path.insert(0, Missing())
from stepguard.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize("command", ["gate", "comment"])
def test_what_is_installed_for_the_gate_is_enough(command):
    """The hosted jobs install no torch and no pytest, only what requirements.py lists for them."""
    listed = subprocess.check_output(
        [sys.executable, "scripts/requirements.py", "list", "gate"], cwd=ROOT, text=True
    )
    names = ",".join(line.partition(">=")[0] for line in listed.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", ALONE, names, command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and f"stepguard {command}" in done.stdout, done.stderr
