"""python -m stepguard comment: a document, or what is wrong with it, as a comment."""

import pytest
from builders import entry, evidence
from run_documents import measured, run_document

from stepguard.report.comment_and_annotations import MARKER
from stepguard.report.document_json import as_json

SLOWER = measured(entry(), launches=evidence((270.0,) * 3).launches)


def test_a_document_becomes_a_comment(shell, tmp_path):
    """Whole, in UTF-8, marked in its first line."""
    (tmp_path / "perf.json").write_text(as_json(run_document(SLOWER, passed=False)))
    told = shell("comment", "perf.json", "--run", "4711")
    assert (told.status, told.err) == (0, "")
    assert told.out.startswith(f"{MARKER}\n**Performance failed:** 1 SLOWER\n")
    assert "gh run download 4711 " in told.out


@pytest.mark.parametrize("content", [None, "{}", '{"schema": 2}', "[" * 10**5, b"\xff\x00"])
def test_whatever_is_no_document_becomes_one_too(shell, tmp_path, content):
    """Absent, truncated, foreign: the comment says that nothing passed."""
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "perf.json").write_bytes(data)
    told = shell("comment", "perf.json", "--run", "4711")
    assert told.status == 0 and "**Performance failed:** nothing was measured" in told.out


def test_a_run_is_a_number(shell):
    """It becomes part of a command that people copy."""
    told = shell("comment", "perf.json", "--run", "1; reboot")
    assert told.status == 2 and "invalid int value" in told.err
