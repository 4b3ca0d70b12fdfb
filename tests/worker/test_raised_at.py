"""Where an error came from: a line of the measured tree, whatever raised it there."""

import importlib
import json
import sys

import pytest

from stepguard.worker.counters.locate import raised_at

SOURCE = """import json


def outer():
    inner()


def inner():
    json.loads("{")
"""


@pytest.mark.parametrize(("source", "expected"), [
    (SOURCE, ("tree_module.py", 9, "inner", 'json.loads("{")')),
    ("x = 1\ndef outer(:\n", ("tree_module.py", 2, "", "def outer(:")),
], ids=["raised in a library", "a syntax error"])  # fmt: skip
def test_the_innermost_line_of_the_tree(tmp_path, monkeypatch, source, expected):
    """Not the library's that raised it; of a syntax error the line itself, which no frame has."""
    (tmp_path / "tree_module.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tree_module", raising=False)
    with pytest.raises(ValueError if source == SOURCE else SyntaxError) as raised:
        importlib.import_module("tree_module").outer()
    assert raised_at(raised.value) == (*expected, "")


def test_a_line_beside_the_folder_in_which_a_script_runs(tmp_path, monkeypatch):
    """It is the repository's all the same: trainer/train.py imports ../model.py."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "tree_module.py").write_text(SOURCE)
    (tmp_path / "trainer").mkdir()
    monkeypatch.chdir(tmp_path / "trainer")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tree_module", raising=False)
    with pytest.raises(ValueError) as raised:
        importlib.import_module("tree_module").outer()
    expected = ("../tree_module.py", 9, "inner", 'json.loads("{")', "")
    assert raised_at(raised.value) == expected


def test_an_error_of_nobodys_tree_has_no_line():
    """Text that was no Python has no file."""
    with pytest.raises(SyntaxError) as raised:
        compile("f(", "<string>", "exec")
    error = raised.value.with_traceback(None)
    assert not raised_at(error).file
    assert json.loads(json.dumps(raised_at(error))) == ["", 0, "", "", ""]
