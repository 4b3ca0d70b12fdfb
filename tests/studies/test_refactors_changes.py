"""The changes of the study of refactors: each is made, or refused."""

import json
from pathlib import Path

import pytest

from studies.refactors.changes import REFACTORS, REGRESSIONS, edits, unparsed

STUDY = Path(__file__).resolve().parents[2] / "studies" / "refactors"


def test_there_are_twenty_and_five():
    """As the page says."""
    assert (len(REFACTORS), len(REGRESSIONS)) == (20, 5)


@pytest.mark.parametrize("text", ["", "a\n", "a\na\na\n"])
def test_a_change_that_cannot_be_made_as_often_as_meant_is_refused(text):
    """A refactor that was not made would be `same`."""
    with pytest.raises(ValueError, match="times, expected were 2"):
        edits((r"^a$", "b", 2))(text)


def test_a_change_substitutes_lines():
    """In order, each pattern in what the one before made."""
    assert edits((r"^( +)a$", r"\1b", 1), (r"b\n", "c\n", 1))("x\n  a\n") == "x\n  c\n"


def test_source_without_comments_does_the_same():
    """Docstrings and comments go, and nothing else; a function that is a docstring alone stays."""
    text = '"""Doc."""\ndef f(x):\n    "Doc."\n    return x + 1  # more\ndef g():\n    "Doc."\n'
    assert unparsed(text) == 'def f(x):\n    return x + 1\n\ndef g():\n    """Doc."""\n'


def test_the_page_says_what_was_measured():
    """Every change that there is, all refactors `same`, each regression by its cause."""
    page = (STUDY / "README.md").read_text()
    found = json.loads((STUDY / "cpu_nanogpt_2026-11-22.json").read_text())
    assert list(found["refactors"]) == list(REFACTORS)
    assert list(found["regressions"]) == list(REGRESSIONS)
    for name in REFACTORS:
        assert found["refactors"][name] == {"verdict": "same", "first_line": ""}
        assert f"| {name} | `same` |  |" in page
    for name, (_, cause) in REGRESSIONS.items():
        line = found["regressions"][name]["first_line"]
        front, said, rest = line.partition(": CHANGED: ")
        assert front == "train_step[cpu]" and said and cause in rest
        assert f"| {name} | `CHANGED` | `{rest}` |" in page
