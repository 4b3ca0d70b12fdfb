"""An installation brings every module along."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_of_reasons_is_installed():
    """The package has it as a link into docs/, and setuptools is told of it."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert data["package-data"]["stepguard.cli"] == ["reason-codes.md"]
    inside = ROOT / "stepguard" / "cli" / "reason-codes.md"
    assert inside.is_symlink() and inside.resolve() == ROOT / "docs" / "reason-codes.md"


def test_every_package_is_installed():
    """setuptools finds folders with an __init__.py; one without works from a clone alone."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tools["setuptools"]["packages"]["find"] == {"include": ["stepguard*"]}
    folders = {path.parent for path in (ROOT / "stepguard").rglob("*.py")}
    assert folders and all((folder / "__init__.py").is_file() for folder in folders)
