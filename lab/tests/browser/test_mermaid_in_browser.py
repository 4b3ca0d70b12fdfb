"""The summary's chart, drawn by Mermaid itself: STEPGUARD_MERMAID names its mermaid.min.js."""

import os
import re

import pytest
from builders import CASE_ID, entry
from msgspec.structs import replace
from run_documents import measured, run_document

from stepguard.report.markdown_page import chart

pytestmark = pytest.mark.browser
MERMAID = os.environ.get("STEPGUARD_MERMAID", "")
DRAW = """async text => {
  mermaid.initialize({startOnLoad: false});
  return (await mermaid.render('chart', text)).svg;
}"""
HOSTILE = 'forward["a" --> b; %% c]'


@pytest.fixture
def draw(browser):
    """``draw(text)`` is the SVG of a chart. Raises what Mermaid complains of."""
    page = browser.new_page()
    page.add_script_tag(path=MERMAID)
    yield lambda text: page.evaluate(DRAW, text)
    page.close()


@pytest.mark.skipif(not MERMAID, reason="STEPGUARD_MERMAID names no mermaid.min.js")
def test_mermaid_draws_the_chart(draw):
    """Each case has its name and its bar, whatever the name; a text that is no chart is refused."""
    same = measured(entry())
    verdict = replace(same.verdict, case_id=HOSTILE)
    document = run_document(same, replace(same, case=HOSTILE, verdict=verdict))
    (block,) = re.findall(r"```mermaid\n(.*?)```", "\n".join(chart(document)), re.DOTALL)
    svg = draw(block)
    assert CASE_ID in svg and "forward" in svg and svg.count("<rect") >= 3
    with pytest.raises(Exception, match="(?i)pars|lexical"):
        draw(block.replace("bar [", "bar ("))
