"""Whatever is printed: no character of it steers a terminal, a CI log or Markdown."""

import ast
import json
import re
from pathlib import Path

import pytest
from builders import PROPERTY, cpu_evidence
from hypothesis import given, settings
from hypothesis import strategies as st

from stepguard.cli.common import complain, say
from stepguard.cli.main import main
from stepguard.core.evidence import Fault, to_json
from stepguard.core.reasons import Reason
from stepguard.core.text import markdown, printable, printable_document, printable_lines

ESC = "\x1b[2K\x1b]0;title\x07"
BIDI = "\u202egreen\u2066"
# What a GitHub runner obeys: after leading blanks in a line, or anywhere in it.
COMMAND = re.compile(r"^\s*::|##\[", re.MULTILINE)
HOSTILE = st.text(st.characters() | st.sampled_from(":#[/\n\r\t \x1b\u202e\u2028\x85"), max_size=60)


def steers(text):
    """Tell whether a line holds what is obeyed rather than shown."""
    return bool(COMMAND.search(text)) or not all(c.isprintable() for c in text)


@pytest.mark.parametrize(("text", "shown"), [
    ("train_step[124m]: same, 0.5 %", "train_step[124m]: same, 0.5 %"),
    (ESC, r"\x1b[2K\x1b]0;title\x07"),
    ("a\nb\r\n", r"a\nb\r\n"),
    ("::error file=x::slow", ": :error file=x::slow"),
    (" \t::stop-commands::x", r" \t::stop-commands::x"),
    ("   ::error::x", "   : :error::x"),
    ("said ##[add-mask]x", "said # #[add-mask]x"),
    (BIDI, r"\u202egreen\u2066"),
    ("\ud800", r"\ud800"),
    ("gr\u00f6\u00dfer \u2192", "gr\u00f6\u00dfer \u2192"),
    (7, "7"),
])  # fmt: skip
def test_a_line_is_shown_and_not_obeyed(text, shown):
    """Words stay as they are; what steers is shown as its escape, or taken apart."""
    assert printable(text) == shown


def test_a_message_speaks_of_levels():
    """An epoch is a word of the file's: whoever reads a message need not know it."""
    for path in sorted((Path(__file__).resolve().parents[1] / "stepguard").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [n for n in nodes if isinstance(n, ast.Constant) and id(n) not in docstrings]
        assert not [n.value for n in texts if re.search(r"\bepoch", str(n.value))], path


@settings(PROPERTY, max_examples=300)
@given(HOSTILE)
def test_no_text_steers(text):
    """Of any text at all: one line, nothing invisible, no command; twice is once."""
    shown = printable(text)
    assert not steers(shown) and "\n" not in shown
    assert printable(shown) == shown
    shown.encode()  # half a surrogate pair could not be written
    assert not any(steers(line) for line in printable_lines(text).split("\n"))


@settings(PROPERTY, max_examples=300)
@given(HOSTILE)
def test_no_text_is_markup(text):
    """In a cell of a table: no column, tag, link, mention, formula, emoji or code comes of it."""
    shown = markdown(text)
    assert not re.search(r"[|<`*@~$\\]|\]\(|(?<!&)#|#(?!\d+;)|:(?://|[\w+-]+:)", shown)


def test_documents_are_printable_to_the_leaves():
    """Keys, nested texts and lists: what a consumer shows steers nothing; numbers stay."""
    found = printable_document({ESC: [f"a\n::error::{BIDI}", 1, {"b": (True, 0.5)}]})
    assert found == {printable(ESC): [f"a\n: :error::{printable(BIDI)}", 1, {"b": [True, 0.5]}]}
    json.dumps(found)


def test_what_commands_say_steers_nothing(capsys):
    """Each line of the commands' output, and of their errors."""
    say("a\n::error::b", ESC)
    complain(f"{ESC}\n::error::c")
    out, err = capsys.readouterr()
    assert out == "a\\n::error::b\n" + printable(ESC) + "\n"
    assert err == f"stepguard: {printable(ESC)}\\n::error::c\n"


def test_hostile_names_in_evidence_do_not_reach_the_reader(tmp_path, capsys, monkeypatch):
    """Evidence is a file that anybody may have written: the command judge shows it as text."""
    monkeypatch.chdir(tmp_path)
    fault = Fault(Reason.RAISED, f"boom\n::error::{ESC}", f"line\n::error::x\n{ESC}", "launch 1")
    found = cpu_evidence(faults=(fault,), commit=f"{ESC}\n::error::y")
    (tmp_path / "evidence.json").write_bytes(to_json(found))
    main(["judge", "--evidence", "evidence.json", "--json", "out.json"])
    out = "".join(capsys.readouterr())
    assert "boom" in out and not any(steers(line) for line in out.split("\n"))
    text = (tmp_path / "out.json").read_text()
    assert not any(steers(line) for line in json.loads(text)[0]["text"]["detail"].split("\n"))
