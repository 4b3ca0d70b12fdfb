"""The page that an index shows: README.md, whose relative links lead into the repository there."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
REPOSITORY = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
RELATIVE = re.compile(r"(?<=\]\()(?!\w+:|#)")

setup(
    long_description=RELATIVE.sub(f"{REPOSITORY}/blob/main/lab/", (HERE / "README.md").read_text()),
    long_description_content_type="text/markdown",
)
