"""docs/ as a site: built strictly, where the package for it is there."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
pytest.importorskip("mkdocs")
pytest.importorskip("material")


@pytest.fixture
def tree(tmp_path):
    """A copy of what the site is made of; links into the repository are looked up there."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "site")
    shutil.copytree(ROOT, tmp_path / "tree", ignore=ignored, symlinks=True)
    shutil.copytree(ROOT / ".github", tmp_path / "tree" / ".github")
    return tmp_path / "tree"


def build(tree):
    """Build the site; exit status, and what is said."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_the_site(tree):
    """Every page, the overview first; files beside docs/ are links into the repository."""
    status, said = build(tree)
    assert status == 0, said
    pages = {path.parent.name for path in (tree / "site").glob("*/index.html")} | {"index"}
    assert pages >= {path.stem for path in (ROOT / "docs").glob("*.md")}
    first = (tree / "site" / "index.html").read_text()
    assert 'href="ci/"' in first and f"{REPOSITORY}/blob/main/SECURITY.md" in first
    picture = "pictures/how-it-works.svg"
    assert (tree / "site" / picture).is_file() and f'src="{picture}"' in first
    index = json.loads((tree / "site" / "search" / "search_index.json").read_text())
    words = re.split(index["config"]["separator"], " ".join(one["text"] for one in index["docs"]))
    assert {"perf", "against", "item", "threshold"} <= set(words) and "search.js" in first
    # A reader's browser asks no other server.
    assert "fonts.googleapis" not in first and 'data-md-component="source"' not in first


@pytest.mark.parametrize("link", ["nowhere.md", "../nowhere.py", "judge.md#no-such-heading"])
def test_a_link_that_leads_nowhere_is_an_error(tree, link):
    """Of a page, of a file beside docs/, of a heading."""
    page = tree / "docs" / "limits.md"
    page.write_text(f"{page.read_text()}\n[there]({link})\n")
    status, said = build(tree)
    assert status != 0 and link.removeprefix("../") in said
