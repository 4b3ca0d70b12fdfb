"""The page of a run: the verdict first, within its size, and no text of the document is markup."""

import re
from functools import cache

import pytest
from builders import CASE_ID, PROPERTY, entry, evidence
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace
from run_documents import measured, run_document

from stepguard.core.reasons import Reason
from stepguard.core.run_document import CaseState, Problem, ProblemCode, State, WaiverDocument
from stepguard.core.status import Status
from stepguard.report.markdown_page import COMMENT_BYTES, LISTED, SUMMARY_BYTES, chart, page

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


def test_the_verdict_is_first():
    """Then what is wrong with the run, then the worst case; whatever passes is further below."""
    text = page(run_of(SAME, named(SLOWER, "forward[a]"), passed=False))
    verdict, problems, first, *_ = text.split("\n\n")
    assert verdict == "**Performance failed:** 1 SLOWER, 1 same"
    assert (problems, first) == ("**The run itself is no pass:**", "* because")
    assert text.index("| forward[a] |") < text.index(f"| {CASE_ID} |")
    assert "python -m stepguard accept" in text and "<details><summary>1 skipped" in text
    assert page(run_document(SAME)).startswith("**Performance passed:** 1 same\n\n")
    assert page(run_document(passed=False)).startswith("**Performance failed:** nothing was meas")


def test_cases_with_one_reason_are_one_line():
    """What -k leaves out is dozens of cases, each for the same reason."""
    cases = [
        CaseState(state=State.DESELECTED, case=f"case[{name}]", why=why)
        for name, why in (("a", "by -k"), ("b", "by -m"), ("c", "by -k"))
    ]
    text = page(replace(run_document(SAME), cases=cases))
    assert "<summary>3 deselected</summary>\n\n* case[a], case[c]: by -k\n* case[b]: by -m" in text


def test_a_waiver_is_listed_once_with_its_case_and_what_it_did():
    """Among the notices, which every run has of every waiver."""
    told = {"effect": "ALLOWED", "text": "m up to 2"}
    waiver = WaiverDocument(case="a[x]", metric="m", expires="e", **told)
    text = page(run_of(SAME, waivers=[waiver], notices=["a[x]: waived: m up to 2"]))
    assert text.count("m up to 2") == 1 and "* a[x]: waived: m up to 2" in text


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
    assert "@everyone" not in outside and "#1" not in outside
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
    assert text.count("<details>") == text.count("</details>")


def test_lists_are_cut():
    """A hundred cases that were left out are a list of LISTED, and how many more there are."""
    left = [CaseState(state=State.LEFT_OUT, case=f"c[{n}]", why=f"w{n}") for n in range(100)]
    text = page(run_document(SAME, cases=left))
    assert text.count("\n* c[") == LISTED and f"* and {100 - LISTED} more" in text
    text = page(run_document(SAME, cases=[replace(one, why="by -k") for one in left]))
    assert text.count("c[") == LISTED and f"c[49] and {100 - LISTED} more: by -k" in text


def test_many_arguments_are_counted():
    """Ten of them say how the run was asked for; the document has them all."""
    plain = run_document(SAME)
    many = replace(plain.options, arguments=[f"test_a.py::test[{n}]" for n in range(15)])
    text = page(replace(plain, options=many))
    assert "test_a.py::test[9] and 5 more`" in text and "test[10]" not in text


def test_what_passes_and_says_nothing_is_a_row_alone():
    """A verdict that fails, or that has a notice, is explained in a folded part."""
    assert "<details>" not in page(run_document(SAME))
    assert "<details>" in page(run_document(SLOWER))
    assert SLOWER.verdict.status is Status.SLOWER


def test_a_headline_without_lines_is_not_folded():
    """There is nothing below it: no empty block."""
    alone = replace(SLOWER, text=replace(SLOWER.text, lines=[], steps=[]))
    text = page(run_document(alone))
    assert f"<code>{SLOWER.text.headline[:20]}" in text
    assert "<details>" not in text and "```" not in text


def test_a_comment_begins_with_the_worst_causes():
    """One verdict, three first lines; the table and all else are folded, next steps left out."""
    many = [named(SLOWER, f"forward[{letter}]") for letter in "abcde"]
    text = page(run_document(SAME, *many, passed=False), for_comment=True)
    verdict, causes, _, table, *_ = text.split("\n\n")
    assert verdict == "**Performance failed:** 5 SLOWER, 1 same"
    assert len(causes.splitlines()) == 3 and causes.startswith("* <code>")
    assert table == "<details><summary>all cases</summary>" and "| forward[e] |" in text
    assert "python -m stepguard accept" not in text
    assert "* <code>" not in page(run_document(SAME), for_comment=True)


def test_the_chart_has_the_largest_slowdown_first():
    """Of two gated times or more; a comment has none."""
    text = page(run_document(SAME, named(SLOWER, "forward[a]")))
    (block,) = re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
    kind, _, names, _, bars = block.splitlines()
    assert kind == "xychart-beta horizontal"
    assert names == f'  x-axis ["forward[a]", "{CASE_ID}"]' and bars == "  bar [8.00, 0.00]"
    assert "mermaid" not in page(run_document(SLOWER))
    assert "mermaid" not in page(run_document(SAME, named(SLOWER, "b")), for_comment=True)


@PROPERTY
@given(TEXTS)
def test_no_name_ends_the_chart(text):
    """A name stays within its quotation, and the block has its seven lines."""
    (block,) = chart(run_document(SAME, named(SLOWER, text)))
    lines = block.splitlines()
    assert len(lines) == 7 and lines[3].count('"') == 4 and block.count("`") == 6


def test_a_cause_is_told_in_full_once():
    """The page's next case with it refers to the first one, and keeps its command."""
    broken = {"status": Status.BROKEN, "reason": Reason.RAISED, "metrics": ()}
    broken |= {"detail": "ValueError: x"}
    told = {"lines": ["  | ValueError: x"], "headline": "h"}
    both = [
        named(SLOWER, name, told | {"steps": [f"do {name}", "more"]}, **broken) for name in "ab"
    ]
    text = page(run_document(*both))
    assert text.count("ValueError: x") == 1 and text.count("do a\nmore") == 1
    assert "the same cause as in a, above\ndo b\n" in text
