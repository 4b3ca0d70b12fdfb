"""docs/baseline-life.md is what its script makes today."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page, made anew."""
    path = tmp_path_factory.mktemp("life") / "page.md"
    command = [sys.executable, "scripts/baseline_life.py", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return path.read_text()


def settled(text):
    """The page less what depends on the day: when a waiver ends, and the diff's hash of that."""
    lasting = re.sub(r"(until |expires\": \")\d{4}-\d\d-\d\d", r"\1DAY", text)
    return re.sub(r"^index .*$", "index", lasting, flags=re.MULTILINE)


def test_the_page_is_up_to_date(made):
    """Commands, answers and diffs are those of this version: else make it anew."""
    assert settled((ROOT / "docs" / "baseline-life.md").read_text()) == settled(made), (
        "python scripts/baseline_life.py"
    )


def test_the_page_shows_what_it_promises(made):
    """An added file, an added recording, an added epoch, a refusal, a waiver."""
    diffs = re.findall(r"^```diff\n(.*?)^```$", made, re.MULTILINE | re.DOTALL)
    assert len(diffs) == 4
    assert " 1 file changed, 43 insertions(+)\n" in diffs[0]
    assert " 1 file changed, 21 insertions(+)\n" in diffs[1]
    assert '+     "reason": "9 GB less' in diffs[2]
    assert "waivers.json" in diffs[3] and '"limit_pct": 6.0' in diffs[3]
    assert not re.search(r"^-[^-]", diffs[2], re.MULTILINE)  # nothing is taken away
    assert made.count(": not recorded, ") == 1
