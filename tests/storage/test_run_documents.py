"""The document of a run as a file: what was written reads back, and nothing else does."""

import json

import pytest
from builders import CASE_ID, entry
from run_documents import measured, run_document

from stepguard.report.document_json import as_json
from stepguard.storage.json_file import FileError
from stepguard.storage.run_document_file import load_document

ONE = run_document(measured(entry()))


def mutated(change):
    """The document as JSON, after ``change`` had its way with it."""
    plain = json.loads(as_json(ONE))
    change(plain)
    return json.dumps(plain)


def test_what_was_written_reads_back(tmp_path):
    """Every field, and every enum."""
    path = tmp_path / "perf.json"
    path.write_text(as_json(ONE))
    assert load_document(path) == ONE


def put(*keys, value):
    """Set a value deep in the document; None as value deletes it."""

    def change(plain):
        for key in keys[:-1]:
            plain = plain[key]
        if value is None:
            del plain[keys[-1]]
        else:
            plain[keys[-1]] = value

    return change


RESULT = ("results", 0)
SIDE = {"names": ["gelu"], "calls": 1.0, "us": 1.0}
CAUSE = {"kind": "time", "us": 1.0, "what": "gelu", "phase": "", "place": ""}
CAUSE |= {"before": SIDE, "after": SIDE}
BAD = {
    "no commit": (put("commit", value=None), "missing required field `commit`"),
    "another schema": (put("schema", value=1), "schema 1, this version of stepguard reads 3"),
    "an unknown field": (put("more", value=1), "unknown field `more`"),
    "an unknown end": (put("end", value="won"), "Invalid enum value 'won'"),
    "an unknown state": (put("cases", 0, "state", value="green"), "Invalid enum value 'green'"),
    "an unknown status": (put(*RESULT, "verdict", "status", value="SAME"), "'SAME'"),
    "an unknown reason": (
        put(*RESULT, "verdict", "reason", value="FINE"), "Invalid enum value 'FINE'"),
    "an unknown metric": (put(*RESULT, "gates", value=["speed"]), "'speed', which is no metric"),
    "half of the margins": (put(*RESULT, "margins_pct", value=[1.0]), "margins_pct (1.0,)"),
    "margins that are none": (put(*RESULT, "margins_pct", value=[3.0, 1.0]), "which are none"),
    "figures of another reason": (
        put(*RESULT, "verdict", "figures", value={"type": "Missing", "what": "launches"}),
        "is WITHIN_LIMIT, with the figures of Missing"),
    "an unknown figure": (
        put(*RESULT, "verdict", "figures", value={"type": "Missing", "more": 1}),
        "unknown field `more`"),
    "more causes than a verdict has": (
        put(*RESULT, "verdict", "explanation", value={"refused": [], "causes": [CAUSE] * 41}),
        "Expected `array` of length <= 40"),
    "another case's verdict": (
        put(*RESULT, "verdict", "case_id", value="a[b]"),
        f"the verdict of '{CASE_ID}' is of 'a[b]'"),
    "text for a number": (put("wall_s", value="1"), "Expected `float`, got `str`"),
    "a metric twice": (
        lambda plain: plain["results"][0]["verdict"]["metrics"].append(
            plain["results"][0]["verdict"]["metrics"][0] | {"status": "same"}), "two verdicts on"),
    "a result twice": (lambda plain: plain["results"].append(plain["results"][0]), "two results"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), BAD.values(), ids=BAD)
def test_what_is_no_such_document_is_refused(tmp_path, change, says):
    """Whatever is wrong with it is named."""
    path = tmp_path / "perf.json"
    path.write_text(mutated(change))
    with pytest.raises(FileError) as error:
        load_document(path)
    assert says in str(error.value)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_document_that_was_cut_off_is_refused(tmp_path, share):
    """A full disk, or a run that was killed while it wrote."""
    text = as_json(ONE)
    (tmp_path / "perf.json").write_text(text[: int(share * len(text))])
    with pytest.raises(FileError):
        load_document(tmp_path / "perf.json")


def test_no_document_is_refused(tmp_path):
    """Nothing to read is no pass."""
    with pytest.raises(FileError, match="no such document"):
        load_document(tmp_path / "perf.json")
