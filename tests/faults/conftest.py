"""Runs of the gate whose workers fail for real, and what must be left after them: nothing.

Every run has a temporary directory of its own, which its launches' scratch folders lie in: that is
how their processes are told from those of other runs on the same machine.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from interrupts import heed_interrupts
from leftovers import leftovers, processes

ROOT = Path(__file__).resolve().parents[2]
TESTS = Path(__file__).resolve().parents[1]
LIMIT_S = 1800.0  # of a run, on a machine that is busy with something else

INNER_CONFTEST = """
import json, os, time, types
import pytest
import stepguard.launch.worker_group
import stepguard.launch.worker_group as launch
from leaping_clock import LeapingClock
from leftovers import leftovers
from short_launches import shorten_launches
from stepguard.measure.case_workers import Ahead

pytest_plugins = ["stepguard.plugin"]
TOKENS = []
AHEAD = []

def begin(self, specs, environment, plain=Ahead.begin):
    AHEAD[:], watched = [self], CLOCK.token
    plain(self, specs, environment)
    CLOCK.watch(watched)  # the launch that runs, not the one that waits

def take(self, spec, environment, plain=Ahead.take):
    group = plain(self, spec, environment)
    if group:
        CLOCK.watch(group.token)
    return group

Ahead.begin, Ahead.take = begin, take

def token_hex(size, plain=launch.secrets.token_hex):
    TOKENS.append(plain(size))
    CLOCK.watch(TOKENS[-1])
    return TOKENS[-1]

launch.secrets = types.SimpleNamespace(token_hex=token_hex)
CLOCK = LeapingClock()
if not os.environ.get("HANGS_ON"):  # else the run is to be there until its test ends it
    launch.time = stepguard.launch.worker_group.time = CLOCK
shorten_launches(pytest.MonkeyPatch())

def pytest_runtest_logfinish(nodeid):
    held = next(iter(AHEAD[0]._groups), None) if AHEAD else None  # of the next test
    tokens = [token for token in TOKENS if not held or token != held.token]
    line = {"test": nodeid, "at": time.monotonic(), "tokens": tokens}
    line["leftovers"] = leftovers(os.environ["TMPDIR"], tokens, held._scratch.name if held else "")
    TOKENS[:] = [held.token] if held else []
    with open("aftermath.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")
"""


class GateRun:
    """pytest with the plugin as a process of its own, in a folder of its own."""

    def __init__(self, folder: Path, cases: str, *options: str, **variables: str) -> None:
        self.folder, self.tmpdir = folder, folder / "tmp"
        self.tmpdir.mkdir(parents=True)
        (folder / "conftest.py").write_text(INNER_CONFTEST)
        (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
        (folder / "factories.py").write_text((TESTS / "factories.py").read_text())
        (folder / "sleeper.py").write_text("from factories import fail\n\nfail('hang')\n")
        (folder / "broken.py").write_text("import torch\n\ndef factory(*, device:\n    pass\n")
        (folder / "test_faulty.py").write_text(
            "from stepguard import Case\nfrom stepguard.plugin import cases\n\n\n"
            f"@cases(\n{cases})\ndef test_step(perf, case):\n    perf(case)\n"
        )
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        paths = [str(ROOT), str(TESTS), *filter(None, [env.get("PYTHONPATH")])]
        env |= {
            "TMPDIR": str(self.tmpdir),
            "PYTHONPATH": os.pathsep.join(paths),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONUNBUFFERED": "1",
        }
        self.env = env = env | variables
        self.output = folder / "output.txt"
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
        command += ["--perf-json=run.json", "--perf-baselines=.", *options]
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=heed_interrupts,
            )

    @property
    def text(self) -> str:
        """What it printed so far."""
        return self.output.read_text(errors="replace")

    def tokens(self) -> list[str]:
        """The tokens of the launches that are alive."""
        return [env["STEPGUARD_TOKEN"] for env in processes(self.tmpdir).values()]

    def notes(self) -> list[str]:
        """What the ranks noted last: "block|3|backward"."""
        found = sorted(self.folder.glob(".stepguard/runs/*/*/*/note-*"))
        return [path.read_text(errors="replace").strip(" \0") for path in found]

    def wait_for(self, what: str, condition) -> None:
        """Poll until the condition holds. Fails when the run ends or takes too long before."""
        until = time.monotonic() + LIMIT_S
        while not condition():
            assert self.process.poll() is None, f"ended before {what}:\n{self.text}"
            assert time.monotonic() < until, f"no {what} in {LIMIT_S} s:\n{self.text}"
            time.sleep(0.05)

    def wait_for_change(self, condition) -> None:
        """Poll until the condition holds or the run has ended."""
        until = time.monotonic() + LIMIT_S
        while not condition() and self.process.poll() is None:
            assert time.monotonic() < until, self.text
            time.sleep(0.001)

    def finish(self) -> int:
        """Wait for its end; the exit status."""
        return self.process.wait(LIMIT_S)

    def gone(self, tokens: list[str]) -> float:
        """Wait until nothing of these launches is left; seconds."""
        began = time.monotonic()
        while left := leftovers(self.tmpdir, tokens):
            assert time.monotonic() - began < LIMIT_S, left
            time.sleep(0.01)
        return time.monotonic() - began

    def aftermath(self) -> dict[str, dict]:
        """By case name: when its test was over and what was left of its launches then."""
        lines = (self.folder / "aftermath.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return {record["test"].partition("[")[2].rstrip("]"): record for record in records}

    def verdicts(self) -> dict[str, dict]:
        """By case name: the verdict in the run's JSON document, with its text."""
        cases = json.loads((self.folder / "run.json").read_text())["results"]
        return {
            c["case"].partition("[")[2].rstrip("]"): c["verdict"]
            | c["text"]
            | {"message": c["text"]["message"]}
            for c in cases
        }

    def failed_at(self, name: str) -> float | None:
        """When the case's worker failed, by time.monotonic; None if it could not note it."""
        found = list(self.folder.glob(f".stepguard/runs/*/*-{name}-*/*/failed-at"))
        return float(found[0].read_text()) if found else None

    def close(self) -> None:
        """Kill the run and its launches, whatever the test found."""
        for pid in [self.process.pid, *processes(self.tmpdir)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(LIMIT_S)


@pytest.fixture(scope="session")
def gate_run(tmp_path_factory):
    """Starts runs: gate_run(cases, *options, **how), see GateRun. All are killed at the end."""
    runs = []

    def start(cases: str, *options: str, **how: Any) -> GateRun:
        runs.append(GateRun(tmp_path_factory.mktemp("run"), cases, *options, **how))
        return runs[-1]

    yield start
    for run in runs:
        run.close()
