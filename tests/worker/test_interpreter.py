"""Commands that are printed work where they are pasted: they name the interpreter that runs."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stepguard.worker import interpreter as module
from stepguard.worker.interpreter import as_typed, called, interpreter

ENGINE = Path(module.__file__).parents[1]
# For readers elsewhere: a pull request's, of a workflow; and argparse's usage.
FOR_OTHERS = {"report/github.py", "cli/init.py", "cli/main.py"}


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


@pytest.mark.parametrize("path", sorted(ENGINE.rglob("*.py")), ids=lambda path: path.stem)
def test_no_sentence_has_a_command_of_its_own(path):
    """None says `python -m stepguard` or `pytest perf_tests`, which another python may answer."""
    if str(path.relative_to(ENGINE)) in FOR_OTHERS:
        return
    tree = ast.parse(path.read_text())
    described = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docs = {ast.get_docstring(n, clean=False) for n in ast.walk(tree) if isinstance(n, described)}
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value not in docs]
    begun = {n.args[0] for n in ast.walk(tree) if isinstance(n, ast.Call) and n.args}
    begun |= {n.values[0] for n in begun if isinstance(n, ast.JoinedStr)}
    allowed = {n.value for n in begun if isinstance(n, ast.Constant)}
    # Of several lines it is the help of a command, as a page shows it.
    for text in (text for text in texts if isinstance(text, str) and "\n" not in text):
        assert "python -m stepguard" not in text
        assert "pytest perf_tests" not in text or text in allowed
