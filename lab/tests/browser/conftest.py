"""A real Chromium, for the tests in this folder.

Skipped where playwright, axe or a Chromium is missing; `make browser` sets REQUIRED and fails then.
"""

import os
import shutil
from importlib import resources
from importlib.util import find_spec

import pytest

REQUIRED = "STEPGUARD_BROWSER_REQUIRED"
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)


def lacks(what):
    """Skip the test, or fail it where all that it needs has to be there."""
    (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)(f"{what}: make browser")


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium of this machine."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        lacks("playwright is not installed")
    if CHROMIUM is None:
        lacks(f"no Chromium on PATH ({', '.join(NAMES)})")
    with sync_playwright() as engines:
        started = engines.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe():
    """The source of axe, which finds what some people cannot read."""
    if not find_spec("axe_playwright_python"):
        lacks("axe is not installed")
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
