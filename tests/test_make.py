"""The Makefile passes ARGS and TESTS on as words, and runs nothing in them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# In pytest's place: what it is given, a word a line.
PYTEST = "import sys\nprint(*(f'<{word}>' for word in sys.argv[1:]), sep='\\n')\n"
PYTHON = f"""#!/bin/sh
case "$1" in
  scripts/requirements.py) ;;
  scripts/with_args.py) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def project(tmp_path):
    """The Makefile and its scripts, and an interpreter that only shows what pytest is given."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__")  # another process may be writing there
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=ignored)
    (tmp_path / "pytest").mkdir()
    (tmp_path / "pytest" / "__init__.py").touch()  # before the one that is installed
    (tmp_path / "pytest" / "__main__.py").write_text(PYTEST)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make(project, *arguments, **environment):
    """Words that pytest gets, exit status and complaints."""
    done = subprocess.run(
        ["make", "--silent", "PYTHON=./python", *arguments],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(project)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    words = [line[1:-1] for line in done.stdout.splitlines() if line.startswith("<")]
    return words, done.returncode, done.stderr


HOSTILE = ["$(shell touch planted)", "`touch planted`", "$(touch planted)", "; touch planted #"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("name", ["ARGS", "TESTS"])
@pytest.mark.parametrize("where", ["command line", "environment"])
def test_nothing_in_a_variable_is_run(project, text, name, where):
    """A branch called so does not run a command, by make or by a shell."""
    given = {name: text}
    arguments = [f"{name}={text}"] if where == "command line" else []
    words, status, _ = make(project, "test", *arguments, **(given if not arguments else {}))
    assert (status, words[-len(text.split()) :]) == (0, text.split())
    assert not (project / "planted").exists()


@pytest.mark.parametrize(("tests", "types"), [(0, 1), (2, 0), (2, 1), (0, 0)])
def test_neither_the_tests_nor_the_types_hide_the_other(project, tests, types):
    """mypy runs beside pytest: either one's failure is make's, and what mypy said is shown."""
    (project / "pytest" / "__main__.py").write_text(f"print('<ran>')\nraise SystemExit({tests})\n")
    python = PYTHON.replace(
        "esac", f"  -m) test $2 != mypy || {{ echo '<types>'; exit {types}; }} ;;\nesac"
    )
    (project / "python").write_text(python)
    words, status, complaints = make(project, "test")
    assert words == ["ran", "types"]
    assert bool(status) == bool(tests or types), complaints


def test_words_and_quotes(project):
    """As a shell splits them; without ARGS nothing is added."""
    words, *_ = make(project, "perf", "ARGS=-k 'a and not b' --perf-against=\"a branch\"")
    assert words == ["perf_tests", "-k", "a and not b", "--perf-against=a branch"]
    assert make(project, "perf") == (["perf_tests"], 0, "")
    (project / "perf_tests").mkdir()
    (project / "perf_tests" / "test_a.py").touch()
    for named in ("perf_tests/test_a.py", "perf_tests/test_a.py::test_it"):
        assert make(project, "perf", f"ARGS={named} -x")[0] == [named, "-x"]
    assert make(project, "perf", "ARGS=-k perf_test")[0] == ["perf_tests", "-k", "perf_test"]
    (project / "model").mkdir()
    (project / "run.json").touch()
    for words in (["-k", "model"], ["--perf-json", "run.json"]):  # values of options
        assert make(project, "perf", f"ARGS={' '.join(words)}")[0] == ["perf_tests", *words]
    words, *_ = make(project, "test", "TESTS=tests/a tests/b", "PARALLEL=", "ARGS=-x")
    assert words == ["tests/a", "tests/b", "-x"]


def test_the_folder_of_tests_is_no_target(project):
    """One letter more, and `make tests` would be green without a test."""
    (project / "tests").mkdir()
    assert make(project, "tests", "PARALLEL=") == make(project, "test", "PARALLEL=")
    assert make(project, "tests", "TESTS=tests/a", "PARALLEL=")[0] == ["tests/a"]


def test_a_quote_without_an_end_is_named(project):
    """Not a traceback, and pytest does not run."""
    words, status, complaint = make(project, "perf", "ARGS=-k 'a")
    assert (words, status) == ([], 2)
    assert complaint.startswith("ARGS=-k 'a: No closing quotation\n")


@pytest.mark.parametrize("name", ["GNUmakefile", "makefile"])
def test_what_every_change_must_pass_is_in_the_makefile_that_has_owners(project, name):
    """make reads these names first: one that does nothing would pass everything."""
    (project / name).write_text("test:\n\ttrue\n")
    (project / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", project / ".ci")
    (project / "Makefile").write_text("test:\n\t@echo '<owned>'\n")
    said = subprocess.check_output([project / ".ci" / "run"], text=True)
    assert said == "<owned>\n"
    workflows = (ROOT / ".github" / "workflows").glob("*.yml")
    lines = [line for path in workflows for line in path.read_text().splitlines()]
    assert all("make -f Makefile" in line for line in lines if re.search(r"run: .*\bmake\b", line))
