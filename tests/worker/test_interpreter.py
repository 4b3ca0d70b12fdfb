"""Commands that are printed work where they are pasted: they name the interpreter that runs."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stepguard.machine import interpreter as module
from stepguard.machine.interpreter import as_typed, called, interpreter
from stepguard.storage import baseline_files
from stepguard.storage.baseline_files import load_waivers, today
from stepguard.storage.json_file import FileError

ENGINE = Path(module.__file__).parents[1]
# For readers elsewhere: a pull request's, a workflow's; and argparse's usage.
FOR_OTHERS = {"report/github.py", "cli/main.py"}


def test_a_printed_command_runs(tmp_path, monkeypatch):
    """With a PATH that has another python, or none, it is this one all the same."""
    for path in (tmp_path, Path(sys.executable).parent):
        monkeypatch.setenv("PATH", f"{path}{os.pathsep}/usr/bin{os.pathsep}/bin")
        for typed in (as_typed("pytest --version"), as_typed("stepguard --help")):
            subprocess.run(typed, shell=True, check=True, capture_output=True, cwd=Path.cwd())


def test_it_is_short_where_it_can_be(tmp_path, monkeypatch):
    """``python`` if PATH has it, else relative to where it is typed; a blank is quoted."""
    own = tmp_path / "my env" / "python"
    own.parent.mkdir()
    own.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(own))
    monkeypatch.setenv("PATH", "/nowhere")
    assert interpreter(tmp_path) == "'my env/python'"
    assert shlex.split(interpreter()) == [str(own)]
    monkeypatch.setenv("PATH", str(own.parent))
    assert interpreter(tmp_path) == "python"
    assert as_typed("pytest perf_tests") == "pytest perf_tests"
    assert called("x/python", "pytest perf_tests") == "x/python -m pytest perf_tests"


@pytest.mark.parametrize(("paths", "front"), [
    ("src", "env PYTHONPATH=src "),
    ("/lib:my src", "env PYTHONPATH='/lib:my src' "),
    ("/lib:", ""),
    ("", ""),
])  # fmt: skip
def test_a_command_finds_the_sources_that_this_one_found(monkeypatch, paths, front):
    """Those of a src layout, by a path that is relative: what is pasted would fail without it."""
    monkeypatch.setenv("PYTHONPATH", paths)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    words = "python -m pytest perf_tests" if front else "pytest perf_tests"
    assert as_typed("pytest perf_tests") == front + words
    assert as_typed("stepguard doctor") == f"{front}python -m stepguard doctor"


def test_only_an_error_asks_how_a_command_is_typed(tmp_path, monkeypatch):
    """Files are loaded for every case: PATH is searched where one of another schema is refused."""
    searched = []
    monkeypatch.setattr(module.shutil, "which", searched.append)
    file = tmp_path / "cpu.json"
    baseline_files.load(file)
    load_waivers(tmp_path, today())
    assert not searched
    file.write_text('{"schema": 0}')
    with pytest.raises(FileError, match="make it anew"):
        baseline_files.load(file)
    assert searched == ["python"]


def sentences(path):
    """Yield the texts of a module that are no docstrings, and whether each begins an argument."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    described = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docs = {ast.get_docstring(n, clean=False) for n in nodes if isinstance(n, described)}
    texts = [n.value for n in nodes if isinstance(n, ast.Constant) and n.value not in docs]
    begun = {arg for n in nodes if isinstance(n, ast.Call) for arg in n.args}
    begun |= {n.values[0] for n in begun if isinstance(n, ast.JoinedStr)}
    allowed = {n.value for n in begun if isinstance(n, ast.Constant)}
    # Of several lines it is the help of a command, as a page shows it.
    for text in (text for text in texts if isinstance(text, str) and "\n" not in text):
        yield text, text in allowed


def test_no_sentence_has_a_command_of_its_own():
    """None says `python -m stepguard` or `pytest perf_tests`, which another python may answer."""
    paths = [one for one in ENGINE.rglob("*.py") if str(one.relative_to(ENGINE)) not in FOR_OTHERS]
    assert len(paths) > 100
    for path in paths:
        for text, begins in sentences(path):
            assert "python -m stepguard" not in text, path
            made = begins and text.startswith("pytest ")
            assert made or "pytest perf_tests" not in text, path
