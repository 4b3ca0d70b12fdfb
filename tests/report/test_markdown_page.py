"""The page of a run: the verdict first, within its size, and no text of the document is markup."""

import re
from functools import cache

import pytest
from builders import PROPERTY, entry, evidence
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace
from run_documents import measured, run_document

from stepguard.core.run_document import CaseState, Problem, ProblemCode, State, WaiverDocument
from stepguard.report.markdown_page import COMMENT_BYTES, LISTED, SUMMARY_BYTES, page

SAME = measured(entry())
SLOWER = measured(entry(), launches=evidence((270.0,) * 3).launches)
TAGS = "table thead tbody tr th td p strong code pre ul li details summary".split()
# What a fork's author may write wherever the document has a text.
HOSTILE = [
    "</details><script>x</script>",
    "```\n````\n</code></summary><img src=x>",
    "@everyone #1 [click](https://example.org) ![x](y) | a | b |",
    "a\n\n# heading\n- list\n\n::error::x\x1b[31m\u202e",
    "**bold** *it* ~~s~~ <b> &lt; \\` `code` <!-- x",
    "_it_ in model/__init__.py",
    "$x^2$ :rocket: https://example.org www.example.org GH-7",
    *("> quoted", "- item", "+", "1. item", "12)", "---", "_ _ _", "      code"),
    "[unmeasured]: https://example.org",  # shows nothing, and all such brackets are links
]
TEXTS = st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=40)


def rendered(text):
    """HTML as GitHub makes it of tables and of what HTML the page has."""
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


def tags(html):
    """Every tag of a page, in order."""
    return re.findall(r"<(/?[a-zA-Z!][^\s>]*)", html)


def named(result, name, text=None, **verdict):
    """The result as another case's, with some of its verdict and its text changed."""
    changed = replace(result.verdict, case_id=name, **verdict)
    return replace(result, case=name, verdict=changed, text=replace(result.text, **text or {}))


def hostile(result, text):
    """A result whose author wrote that everywhere."""
    sites = tuple(replace(one, sites=()) for one in result.verdict.metrics)
    told = {"headline": text, "message": text, "detail": text, "lines": [text, "  " + text]}
    told |= {"notes": {"step_ms": text}, "causes": [text], "steps": [text]}
    return replace(
        named(result, text, told, metrics=sites, detail=text),
        evidence=text,
        commit=text,
    )


def run_of(*results, **changes):
    """A run with something in each of its lists."""
    text = changes.pop("text", "because")
    states = [state for state in State if state is not State.MEASURED]
    cases = [CaseState(state=state, case=f"case[{state.value}]", why=text) for state in states]
    problem = Problem(code=ProblemCode.CASE_MISSING, text=text, file=text, line=3)
    waiver = WaiverDocument(case="c", metric="m", expires="e", effect="ALLOWED", text=text)
    plain = run_document(*results)
    fields = {"problems": [problem], "waivers": [waiver], "notices": [text], "against": text}
    return replace(plain, cases=plain.cases + cases, **(fields | {"base_commit": text} | changes))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_known_markup_is_taken(text):
    """Neither within a line nor at its beginning."""
    check_markup(text, SLOWER)


@PROPERTY
@given(TEXTS, st.sampled_from([SAME, SLOWER]))
def test_no_text_is_markup(text, result):
    """Whatever a document says."""
    check_markup(text, result)


@cache
def plain_tags(slower):
    """The tags of the page with a plain text."""
    plain = hostile(SLOWER if slower else SAME, "x")
    return tags(rendered(page(run_of(plain, text="x", machine="x", passed=False))))


def check_markup(text, result):
    """The page has the tags that it has with a plain text, and no link, picture or mention."""
    shown = page(run_of(hostile(result, text), text=text, machine=text, passed=False))
    html = rendered(shown)
    assert tags(html) == plain_tags(result is SLOWER)
    assert {tag.strip("/") for tag in tags(html)} <= set(TAGS)
    outside = re.sub(r"(?s)<pre>.*?</pre>|<code>.*?</code>", "", html)
    assert not re.search(r"@everyone|#1|\$x|:rocket:|https?://|www\.|GH-7", outside)
    assert "\x1b" not in shown and "\u202e" not in shown


@pytest.mark.parametrize("limit", [SUMMARY_BYTES, COMMENT_BYTES])
@pytest.mark.parametrize("of", ["cases", "lines", "why"])
def test_a_page_is_never_too_long(limit, of):
    """Thousands of cases, or megabytes of text: the verdict, the worst, how much is missing."""
    if of == "cases":
        many = [named(SLOWER, f"case[{n:05}-\u00e9]") for n in range(4000)]
        run = run_document(SAME, *many)
    elif of == "lines":
        run = run_of(named(SLOWER, "huge", {"lines": ["\u00e9" * 10**6]}), SLOWER)
    else:
        run = run_of(SLOWER, text="y" * 10**6)
    text = page(run, limit)
    assert len(text.encode()) <= limit
    assert text.startswith("**Performance ") and "| SLOWER |" in text
    assert "too long for it" in text or "more cases are not in this table" in text
    assert text.count("<details") == text.count("</details>")


def test_lists_are_cut():
    """A hundred cases that were skipped are a list of LISTED, and how many more there are; those
    that were left out on purpose are a number.
    """
    left = [CaseState(state=State.SKIPPED, case=f"c[{n}]", why=f"w{n}") for n in range(100)]
    text = page(run_document(SAME, cases=left))
    assert text.count("\n* c[") == LISTED and f"* and {100 - LISTED} more" in text
    left = [replace(one, why="by -k") for one in left]
    text = page(run_document(SAME, cases=left))
    assert text.count("c[") == LISTED and f"c[49] and {100 - LISTED} more: by -k" in text
    text = page(run_document(SAME, cases=[replace(one, state=State.DESELECTED) for one in left]))
    assert "c[" not in text and "\n* 100: by -k\n" in text
