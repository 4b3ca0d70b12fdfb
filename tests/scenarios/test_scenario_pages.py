"""Every scenario is a page of HTML: whole, with its verdict and its first cause."""

import json
from pathlib import Path

import pytest
from html_pages import Page, what_runs_or_loads
from scenario import BASELINES, DOCUMENT, RUN
from test_scenarios import SCENARIOS

from stepguard.cli.main import main

KEPT = [one for one in SCENARIOS if not callable(one.inputs)]


@pytest.mark.parametrize("kept", KEPT, ids=[one.name for one in KEPT])
def test_a_scenario_is_a_page(kept, tmp_path, monkeypatch):
    """Its headline is that of judge, with the status beside it, and all evidence has a part."""
    monkeypatch.chdir(tmp_path)
    Path("pytest.ini").touch()
    kept.inputs.write()
    folder = ["--baselines", str(BASELINES)]
    main(["judge", "--evidence", str(RUN), *folder, "--json", str(DOCUMENT)])
    assert main(["report", str(RUN), *folder]) == 0
    page = Page(Path("report.html").read_text())
    assert page.problems == [] and what_runs_or_loads(page) == []
    (judged,) = json.loads(DOCUMENT.read_bytes())
    status = judged["verdict"]["status"]
    case, _, cause = judged["text"]["headline"].partition(f": {status}")
    cause = cause.removeprefix(" (waived)")
    assert f"{case}{' '.join(cause.split())}" in page.text
    assert status in page.text and "Environment" in page.text
