"""What an installation brings along."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_package_is_installed():
    """The packages of pyproject.toml are all that there are, so that an installed one imports."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = (ROOT / "stepguard").rglob("__init__.py")
    assert listed == sorted(".".join(path.parent.relative_to(ROOT).parts) for path in found)
