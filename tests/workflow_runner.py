"""Runs workflow files as GitHub does: their commands, in order, each job on a clean machine.

A job gets a folder of its own and no environment but what GitHub gives it. Actions are played: a
checkout is a clone of the repository, an artifact or a cache a folder. Expressions are those that
the workflows use.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
TOKENS = re.compile(r"'[^']*'|&&|\|\||[!=]=|!|[()]|[\w.-]+\(\)|[\w.-]+|\s+")
RUN_ID, ATTEMPT = 4711, 1


@dataclass
class Job:
    """What became of a job."""

    result: str
    log: str = ""
    summary: str = ""
    ran: list[str] = field(default_factory=list)  # its steps, by name or action


@dataclass
class GitHub:
    """A repository on GitHub, with what its runs leave there."""

    repository: Path  # bare, or with a work tree
    folder: Path
    api_url: str = ""
    commands: Path | None = None  # a folder with stand-ins for gh and others
    python: Path = Path(sys.executable)  # which the jobs call
    variables: dict[str, str] = field(default_factory=dict)  # of all jobs
    replaced: dict[str, str] = field(default_factory=dict)  # in the environments of jobs
    artifacts: dict[str, Path] = field(default_factory=dict)
    caches: dict[str, Path] = field(default_factory=dict)
    # Names of steps that look at the machine, and the lines of those that have found it fit.
    looks: tuple[str, ...] = ()
    fit: set[str] = field(default_factory=set)

    def event(self, name: str, sha: str, ref: str, **event: Any) -> dict[str, Any]:
        """Return the context of a run that an event starts."""
        event = {"repository": {"default_branch": "main"}} | event
        pull = event.get("pull_request", {})
        return {
            "event_name": name,
            "event": event,
            "sha": sha,
            "ref": ref,
            "ref_name": ref.removeprefix("refs/heads/").removeprefix("refs/"),
            "base_ref": pull.get("base", {}).get("ref", ""),
            "head_ref": pull.get("head", {}).get("ref", ""),
            "repository": "OWNER/REPO",
            "run_id": RUN_ID,
            "run_attempt": ATTEMPT,
            "server_url": "https://github.example",
            "token": "a-token",
        }

    def run(
        self, path: str, github: dict[str, Any], at: str, only: str = "", **contexts: Any
    ) -> dict[str, Job]:
        """Run a workflow file as it is at a revision, or one job of it; return its jobs by name,
        those of a called workflow under "caller / called".
        """
        file = yaml.safe_load(git(self.repository, "show", f"{at}:{path}"))
        jobs: dict[str, Job] = {}
        for name, job in file["jobs"].items():
            if only and name != only:
                continue
            job["env"] = file.get("env", {}) | job.get("env", {})
            needs = [job["needs"]] if "needs" in job else []
            known = {one: {"result": jobs[one].result} for one in needs}
            ready = all(jobs[one].result == "success" for one in needs)
            context = {"github": github, "needs": known} | contexts
            if not _holds(job.get("if"), context, ready):
                jobs[name] = Job("skipped")
            elif "uses" in job:
                called, _, revision = job["uses"].removeprefix("OWNER/REPO/").partition("@")
                found = self.run(called, github, at=revision)
                jobs |= {f"{name} / {inner}": one for inner, one in found.items()}
            else:
                jobs[name] = _Machine(self, github, context, job, name).run()
        return jobs


class _Machine:
    """A clean machine, for one job."""

    def __init__(self, hub: GitHub, github: Any, context: Any, job: Any, name: str) -> None:
        self.hub, self.github, self.job = hub, github, job
        count = len(list(hub.folder.glob("machine-*")))
        self.folder = hub.folder / f"machine-{count}-{name}"
        self.workspace, self.temp = self.folder / "workspace", self.folder / "temp"
        self.home = self.folder / "home"
        for made in (self.workspace, self.temp, self.home):
            made.mkdir(parents=True)
        self.context = context | {"runner": {"temp": str(self.temp)}, "vars": {}, "steps": {}}
        self.summary, self.log, self.ran = self.folder / "summary.md", "", []

    def run(self) -> Job:
        good = True
        for step in self.job["steps"]:
            if not _holds(step.get("if"), self.context, good):
                continue
            self.ran.append(step.get("name") or step["uses"])
            done = self._action(step) if "uses" in step else self._script(step)
            outcome = {"outcome": "success" if done else "failure"}
            self.context["steps"] |= {step["id"]: outcome} if "id" in step else {}
            good = good and (done or step.get("continue-on-error") is True)
        summary = self.summary.read_text() if self.summary.exists() else ""
        summary = re.sub(r"<!--.*?-->\s*", "", summary)  # which GitHub does not show
        return Job("success" if good else "failure", self.log, summary, self.ran)

    def _script(self, step: Any) -> bool:
        """Run a script as `bash -e`, in the job's folder; what looks at the machine once."""
        looks = set(step["run"].splitlines()) if step.get("name") in self.hub.looks else set()
        if looks and looks <= self.hub.fit:
            return True
        script = self.temp / "script.sh"
        script.write_text(step["run"])
        default = self.job.get("defaults", {}).get("run", {}).get("working-directory", ".")
        done = subprocess.run(
            ["bash", "-e", script],
            cwd=self.workspace / filled(step.get("working-directory", default), self.context),
            env=self._environment(step),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.log += done.stdout
        if done.returncode == 0:
            self.hub.fit.update(looks)
        return done.returncode == 0

    def _environment(self, step: Any) -> dict[str, str]:
        event = self.temp / "event.json"
        event.write_text(json.dumps(self.github["event"]))
        names = "sha ref ref_name base_ref head_ref repository run_id run_attempt event_name"
        given = {f"GITHUB_{name.upper()}": str(self.github[name]) for name in names.split()}
        own = self.job.get("env", {}) | step.get("env", {})
        filled_in = {name: filled(str(value), self.context) for name, value in own.items()}
        commands = [str(self.hub.commands)] if self.hub.commands else []
        return {
            "PATH": os.pathsep.join([*commands, str(self.hub.python.parent), "/usr/bin:/bin"]),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_API_URL": self.hub.api_url,
            "GITHUB_SERVER_URL": self.github["server_url"],
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(self.temp),
            "RUNNER_OS": "Linux",
            **given,
            **self.hub.variables,
            **{k: self.hub.replaced.get(k, v) for k, v in filled_in.items()},
        }

    def _action(self, step: Any) -> bool:
        name = step["uses"].partition("@")[0].removeprefix("actions/")
        inputs = {k: filled(str(v), self.context) for k, v in step.get("with", {}).items()}
        return bool(getattr(self, "_" + re.sub(r"\W", "_", name))(inputs))

    def _checkout(self, inputs: dict[str, str]) -> bool:
        target = self.workspace / inputs.get("path", ".")
        git(self.folder, "clone", "--quiet", "--no-checkout", str(self.hub.repository), str(target))
        git(target, "fetch", "--quiet", "origin", inputs.get("ref") or self.github["sha"])
        git(target, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        return True

    def _setup_python(self, inputs: dict[str, str]) -> bool:
        """The packages are there, so that setup.sh finds its work done."""
        python = self.workspace / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(self.hub.python)
        torch = _pin_of_torch(self.hub.repository)
        for what in ("perf", "test"):
            (self.workspace / ".venv" / f".stepguard-{what}").write_text(torch)
        return True

    def _upload_artifact(self, inputs: dict[str, str]) -> bool:
        """Files keep their paths below the folder that all the given paths are in."""
        named = [self.workspace / line.strip() for line in inputs["path"].split("\n") if line]
        found = [one for path in named for one in self.workspace.glob(_within(self, path))]
        if not found:
            return inputs["if-no-files-found"] == "ignore"
        above = Path(os.path.commonpath([str(path.parent) for path in named]))
        kept = self.hub.folder / "artifacts" / inputs["name"]
        shutil.rmtree(kept, ignore_errors=True)
        for path in found:
            target = kept / path.relative_to(above)
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
        self.hub.artifacts[inputs["name"]] = kept
        return True

    def _download_artifact(self, inputs: dict[str, str]) -> bool:
        kept = self.hub.artifacts.get(inputs["name"])
        if kept:
            shutil.copytree(kept, self.workspace / inputs["path"], dirs_exist_ok=True)
        return kept is not None

    def _cache_restore(self, inputs: dict[str, str]) -> bool:
        for key, kept in reversed(self.hub.caches.items()):
            if key.startswith(inputs["restore-keys"]):
                shutil.copytree(kept, self.workspace / inputs["path"])
                break
        return True

    def _cache_save(self, inputs: dict[str, str]) -> bool:
        kept = self.hub.folder / "caches" / inputs["key"]
        shutil.copytree(self.workspace / inputs["path"], kept)
        self.hub.caches[inputs["key"]] = kept
        return True


@functools.cache
def _pin_of_torch(repository: Path) -> str:
    """Return what main installs, which no revision changes."""
    pins = [sys.executable, repository / "scripts" / "requirements.py", "pins"]
    said = subprocess.check_output(pins, cwd=repository, text=True).splitlines()
    (torch,) = [line for line in said if line.startswith("torch==")]
    return torch


def _within(machine: _Machine, path: Path) -> str:
    return str(path.relative_to(machine.workspace))


def git(folder: Path, *arguments: str) -> str:
    """What git says in a folder."""
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    command = ["git", *who, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _holds(condition: Any, context: dict[str, Any], good: bool) -> bool:
    """Whether an `if` holds; without a status function it asks for success, too."""
    text = "success()" if condition is None else str(condition)
    value = bool(evaluate(text, context, good))
    return value if re.search(r"\b(always|success|failure)\(\)", text) else value and good


def filled(text: str, context: dict[str, Any]) -> str:
    """The text with its expressions replaced by their values."""
    return EXPRESSION.sub(lambda found: _shown(evaluate(found[1], context)), text)


def _shown(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def evaluate(text: str, context: dict[str, Any], good: bool = True) -> Any:
    """The value of an expression of names, texts, comparisons and status functions."""
    words = {"&&": " and ", "||": " or ", "!": " not ", "always()": "True", "success()": "good"}
    words |= {"failure()": "(not good)", "==": "==", "!=": "!=", "(": "(", ")": ")"}
    assert "".join(TOKENS.findall(text)) == text, text
    python = ""
    for token in TOKENS.findall(text.strip()):
        if token.isspace() or token.startswith("'") or token in words:
            python += words.get(token, token)
        else:
            python += f"look({token!r})"
    names = {"look": lambda name: _look(name, context), "good": good}
    return eval(python.replace("\n", " "), {"__builtins__": {}}, names)


def _look(name: str, context: dict[str, Any]) -> Any:
    """A name's value; what an event lacks is None, but a context that nobody gave is an error."""
    if name in ("true", "false"):
        return name == "true"
    first, *rest = name.split(".")
    value: Any = context[first]
    for part in rest:
        value = value.get(part) if isinstance(value, dict) else None
    return value
