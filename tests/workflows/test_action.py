"""The composite action: what its scripts ask of pytest, and what they say of it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INSTALL, MEASURE, KEEP = ACTION["runs"]["steps"]
STAND_IN = """#!{python}
import json, os, sys
if sys.argv[1] == "-c":
    sys.exit("UNDECIDED" not in os.environ)
if sys.argv[1:4] == ["-m", "stepguard", "report"]:
    sys.exit(os.environ.get("NO_PAGE") or open(sys.argv[-1], "w").close())
json.dump(sys.argv[1:], open("asked.json", "w"))
if "--fail" not in sys.argv and "--no-document" not in sys.argv:
    os.makedirs(".stepguard", exist_ok=True)
    open(".stepguard/perf.json", "w").write("{{}}")
    open(".stepguard/perf.md", "w").write("the page\\n")
sys.exit("--fail" in sys.argv or "UNDECIDED" in os.environ)
"""


@pytest.fixture
def run(tmp_path):
    """``run(inputs, **environment)`` runs the measuring step: status, words, outputs, summary."""
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable))
    python.chmod(0o755)
    project = tmp_path / "work" / "my project"
    project.mkdir(parents=True)

    def call(inputs=None, merged_into="", **environment):
        values = {name: one.get("default", "") for name, one in ACTION["inputs"].items()}
        values |= {"python": str(python), "directory": "my project"} | (inputs or {})
        values["base_sha"] = merged_into  # of a merge queue's event
        filled = {
            name: re.sub(r"\$\{\{ [\w.]+?(\w+) \}\}", lambda found: values[found[1]], text)
            for name, text in MEASURE["env"].items()
        }
        for name in ("output", "summary"):
            (tmp_path / name).write_text("")
        (project / "asked.json").write_text("[]")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", MEASURE["run"]],
            cwd=tmp_path / "work",
            env={"PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(tmp_path / "output")}
            | {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
            | filled
            | environment,
            check=False,
        )
        lines = (tmp_path / "output").read_text().splitlines()
        outputs = dict(line.split("=", 1) for line in lines)
        words = json.loads((project / "asked.json").read_text())
        return done.returncode, words, outputs, (tmp_path / "summary").read_text()

    return call


def test_it_measures_strictly_and_says_where_the_document_is(run):
    """The page is the job's summary."""
    status, words, outputs, summary = run()
    assert (status, summary) == (0, "the page\n")
    assert outputs == {"path": "my project/.stepguard/perf.json", "verdict": "passed"}
    assert words == [
        *("-m", "pytest", "perf_tests", "--perf-strict"),
        *("--perf-json=.stepguard/perf.json", "--perf-report=.stepguard/perf.md"),
    ]


def test_inputs_are_words_and_no_script(run):
    """Blanks within quotes stay; nothing of an input is run."""
    inputs = {
        "tests": "perf_tests/a.py perf_tests/b.py",
        "options": "-k 'a and not b' \"$(touch planted)\"",
        "against": "v1; touch planted",
        "gpus": "2",
    }
    _, words, _, _ = run(inputs, GITHUB_BASE_REF="main`touch planted`")
    assert words[2:4] == ["perf_tests/a.py", "perf_tests/b.py"]
    assert words[-3:] == ["-k", "a and not b", "$(touch planted)"]
    assert "--perf-against=v1; touch planted" in words and "--perf-require-gpus=2" in words
    assert "--perf-base=origin/main`touch planted`" in words


def test_the_artifact_has_the_run_as_one_page(run, tmp_path):
    """Made after the verdict, which does not depend on it; of this run alone."""
    folder = tmp_path / "work/my project/.stepguard"
    assert run()[0] == 0 and (folder / "perf.html").is_file()
    assert "/.stepguard/perf.html\n" in KEEP["with"]["path"]
    assert INSTALL["run"].endswith('"$GITHUB_ACTION_PATH" "$GITHUB_ACTION_PATH/lab"\n')
    status, _, outputs, _ = run(NO_PAGE="no room here")
    assert (status, outputs["verdict"]) == (0, "passed") and not (folder / "perf.html").exists()


@pytest.mark.parametrize("options", ["--fail", "--no-document"])
def test_it_is_red_unless_the_run_passed_and_left_its_document(run, options):
    """A document of an earlier run is not taken for this one's."""
    assert run()[2]["verdict"] == "passed"
    status, _, outputs, _ = run({"options": options})
    assert status != 0 and outputs["verdict"] == "failed"


def test_no_verdict_is_an_output_and_a_status_of_its_own(run):
    """As of the command gate."""
    status, _, outputs, _ = run(UNDECIDED="1")
    assert (status, outputs["verdict"]) == (3, "undecided")


def test_the_base_is_a_pull_requests_alone(run):
    """A commit of main has none."""
    assert not [word for word in run(GITHUB_BASE_REF="")[1] if word.startswith("--perf-base")]


def test_a_merge_queue_is_judged_by_what_it_is_merged_into(run):
    """As a pull request is: what is queued may edit the baselines, too."""
    assert "--perf-base=" + "a" * 40 in run(merged_into="a" * 40)[1]


def test_an_event_that_checks_out_the_base_is_refused(run):
    """The base beside itself is always the same: the pull request would be green unmeasured."""
    environment = {"GITHUB_EVENT_NAME": "pull_request_target", "GITHUB_BASE_REF": "main"}
    status, words, outputs, _ = run(**environment)
    assert status != 0 and not words and "verdict" not in outputs


@pytest.mark.parametrize("options", ["--perf-against=main -k 'a", "'"])
def test_options_that_are_no_words_are_refused(run, options):
    """Those before the missing quote, or none of them, would be another gate."""
    status, words, _, _ = run({"options": options})
    assert status != 0 and not words


def test_tests_may_be_several_lines(run):
    """The first one alone would leave the others unmeasured."""
    assert run({"tests": "perf_tests/a.py\nperf_tests/b.py\n"})[1][2:4] == [
        "perf_tests/a.py",
        "perf_tests/b.py",
    ]


def test_what_the_action_may_not_have():
    """No checkout, no expression in a script, actions by their commit; every output is there."""
    text = (ROOT / "action.yml").read_text()
    assert "actions/checkout" not in text
    assert re.findall(r"uses: (\S+)", text) == [KEEP["uses"]]
    assert re.fullmatch(r"actions/upload-artifact@[0-9a-f]{40}", KEEP["uses"])
    for step in (INSTALL, MEASURE):
        assert "${{" not in step["run"] and step["shell"] == "bash"
        assert step["run"].startswith("set -euo pipefail\n")
    assert {*ACTION["outputs"]} == {"verdict", "path"}
    used = set(re.findall(r"inputs\.(\w+)", text))
    assert used == {*ACTION["inputs"]}
