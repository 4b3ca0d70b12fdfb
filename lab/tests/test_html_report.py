"""The HTML report: whole, escaped, small, and honest about what it lacks."""

import re
from dataclasses import replace as changed

import pytest
from builders import CASE_ID, PROPERTY, baseline_file, entry, evidence, replace
from html_pages import Page, what_runs_or_loads
from html_reports import HOSTILE, PAGES, counted_side, paired, recorded, run_of
from hypothesis import given, settings
from hypothesis import strategies as st
from run_documents import COMMIT, measured, run_document

from stepguard.core.comparison import Question
from stepguard.core.evidence import to_json
from stepguard.judge.rule_book import judge
from stepguard.report.document_json import as_json
from stepguard.report.verdict_text import page_of
from stepguard.storage.baseline_files import save
from stepguard.storage.json_file import FileError
from stepguard_lab.html_page import page
from stepguard_lab.report_input import MeasuredCase, read_runs
from stepguard_lab.report_model import MANY_CASES

TEXTS = st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=60)


def shown(*cases, text="why", picture=""):
    """The page of these cases, read."""
    pictures = {CASE_ID: picture} if picture else {}
    return Page(page([run_of(*cases, text=text)], PAGES, pictures))


PLAIN = shown(paired())


def test_a_case_in_pairs_has_every_part():
    """Its verdict, times, change, telemetry, causes, kernels, lines, memory and environment."""
    assert PLAIN.problems == []
    text = PLAIN.text
    for part in (
        *("Step time", "Change of the step time", "Telemetry", "Causes", "Kernels"),
        *("CPU and GPU in a step", "Lines", "Metrics", "Memory by phase", "Environment"),
    ):
        assert re.search(rf"\b{part}\b", text), part
    assert "SLOWER" in text and "interval" in text and "1,755" in text
    links = [href for href in PLAIN.values("href") if href.startswith("https")]
    assert f"https://github.com/o/n/blob/{COMMIT}/model/mm.py#L1" in links


def test_several_ranks_have_a_part():
    """Each with its time and the parts of its step; what only one of them does is there."""
    case = recorded()
    side = case.evidence
    launches = [
        changed(
            launch, blocks=tuple(changed(b, wall_ms=(*b.wall_ms, 2_000.0)) for b in launch.blocks)
        )
        for launch in side.launches
    ]
    parts = (side.counts.profile.parts,) * 2
    counts = replace(side.counts, by_rank={"host_syncs_per_step": (1, 7)}, parts_by_rank=parts)
    side = replace(
        side, case=side.case | {"world_size": 2}, launches=tuple(launches), counts=counts
    )
    text = shown(changed(case, evidence=side)).text
    steps = side.launches[0].blocks[0].steps
    assert f"rank 1: {2_000 / steps:.2f} ms" in text
    assert re.search(r"Counts that differ metric by rank host_syncs_per_ ?step 1, 7", text)
    assert "Ranks" not in PLAIN.text


def test_a_summary_says_its_verdict_once():
    """The word stands before its line, which is in the page's title, too; no line is indented."""
    more = replace(evidence().counts, values=evidence().counts.values | {"flops_per_step": 10**14})
    source = page([run_of(recorded(counts=more))], PAGES, {})
    (summary,) = re.findall(r"<summary>(.*)</summary>", source)
    assert summary.count("CHANGED") == 1 and f"<span>{CASE_ID}: flops_per_step " in summary
    assert re.search(r"<pre [^>]*>flops_per_step ", source)
    assert f">Performance failed: {CASE_ID}: CHANGED: flops" in source and ">commit aaa" in source


def test_a_single_run_does_not_say_where_it_was_read():
    """A run's own page is made of a temporary file. Of several runs each is named."""
    alone = run_of(paired(), text="/somewhere/run.json")
    assert "<dt>from</dt>" not in page([alone], PAGES, {})
    assert page([alone, alone], PAGES, {}).count("<dt>from</dt><dd>/somewhere/run.json") == 2


def test_a_time_that_was_compared_with_nothing_has_no_change():
    """A first run on a laptop has nothing to say there."""
    side = evidence()
    verdict = judge(Question(side, None))
    found = MeasuredCase(verdict, page_of(verdict), None, side)
    text = Page(page([run_of(found)], PAGES, {})).text
    assert "Step time" in text and "Change of the step time" not in text


def test_pairs_are_drawn_where_the_table_has_them():
    """In percent, as the interval beside them: a log-ratio would be another figure."""
    found = shown(paired(slower_pct=40.0))
    drawn = re.findall(r"pair \d+: (\+[\d.]+) %", found.text)
    assert len(drawn) == 8 and all(39 < float(change) < 41 for change in drawn)
    for change in drawn:
        assert found.text.count(f" {change} ") == 2  # a dot's and the table's


def test_every_chart_has_a_table_and_words():
    """For whoever cannot see it: a table in its section, and a label that says what it shows."""
    source = page([run_of(paired())], PAGES, {})
    sections = source.split('<section class="part">')[1:]
    drawn = [one for one in sections if "<svg" in one]
    assert len(drawn) >= 6 and all("<table" in one for one in drawn)
    images = [attrs for tag, attrs in PLAIN.elements if tag == "svg"]
    assert all(one["role"] == "img" and len(one["aria-label"]) > 20 for one in images)


def test_ids_are_unique_and_links_inside_lead_somewhere():
    """From the table of verdicts to each case."""
    found = shown(paired(), paired("a[b]"), paired("c[d]"))
    ids = found.values("id")
    inside = [href[1:] for href in found.values("href") if href.startswith("#")]
    assert len(ids) == len(set(ids)) == 3 and sorted(inside) == sorted(ids)


def test_nothing_runs_and_nothing_is_loaded():
    """No script, no address but links, and a policy that forbids both."""
    assert what_runs_or_loads(PLAIN) == []
    (policy,) = [one for one in PLAIN.values("content") if "default-src" in one]
    assert "default-src 'none'" in policy and "script" not in policy


@pytest.mark.parametrize("text", HOSTILE)
def test_no_known_markup_is_taken(text):
    """In any text of a document, evidence or trace."""
    check_text(text)


@settings(PROPERTY, max_examples=25)  # each judges eight pairs
@given(TEXTS)
def test_no_text_is_markup(text):
    """Whatever it is."""
    check_text(text)


def check_text(text):
    """The page has the elements that it has with a plain text, and nothing invisible."""
    found = shown(paired(f"a[{text}]", text), text=text)
    assert found.problems == [] and what_runs_or_loads(found) == []
    # A link is left out where a file's name leads out of the repository, and a path may break.
    tags = [[tag for tag in one.tags if tag not in ("a", "wbr")] for one in (found, PLAIN)]
    assert tags[0] == tags[1]
    assert not re.search(r"[^\n -~\u00a0-\U0010ffff]|[\u202e\u2066]", "".join(found.texts))


def test_a_picture_of_a_trace_is_part_of_the_case():
    """As SVG of our own; control characters in it are shown."""
    found = shown(paired(), picture='<svg class="stepguard"><text>a\x1b</text></svg>')
    assert found.problems == [] and "a\\x1b" in found.text
    assert found.tags.count("svg") == PLAIN.tags.count("svg") + 1


def test_two_hundred_cases_are_less_than_five_megabytes():
    """Of a GPU, each SLOWER in 8 pairs, with profiles, lines and telemetry: of MANY_CASES each
    takes as much as of 200.
    """
    case = paired()
    several = [replace_id(case, f"train_step[{n}]") for n in range(MANY_CASES + 1)]
    size = len(page([run_of(*several)], PAGES, {}).encode())
    assert size / len(several) * 200 < 5_000_000


def replace_id(case, case_id):
    """The case under another name."""
    return changed(case, verdict=replace(case.verdict, case_id=case_id))


def kept_run(folder, named=".stepguard/runs/1/case/evidence.json", kept=None, judged_by=None):
    """A document of one case judged by recordings, with its evidence and baseline in a folder."""
    path = folder / ".stepguard/runs/1/case/evidence.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(to_json(kept or counted_side(evidence(), "mm")))
    (folder / "baselines").mkdir()
    save(folder / "baselines/h200x1.json", baseline_file())
    result = measured(entry())
    result = replace(result, evidence=named, judged_by=judged_by or result.judged_by)
    (folder / "perf.json").write_text(as_json(run_document(result)))
    return folder / "perf.json"


def read(path, root=None):
    """The page of a document, in a project."""
    folder = root or path.parent
    (run,) = read_runs([path], folder, folder / "baselines")
    return Page(page([run], PAGES, {}))


def test_a_document_finds_its_evidence_and_its_recording(tmp_path):
    """So its steps, its kernels and the environment that was recorded are shown."""
    found = read(kept_run(tmp_path))
    assert found.problems == [] and "Longest kernels" in found.text
    assert "Nothing differs that was recorded of both." in found.text
    assert "is not here" not in found.text and "newest recording is of " in found.text


def test_an_artifact_has_its_evidence_without_the_hidden_folder(tmp_path):
    """As CI uploads it: the document, and the runs beside it."""
    path = kept_run(tmp_path)
    (tmp_path / ".stepguard").rename(tmp_path / "artifact")
    path = path.rename(tmp_path / "artifact" / "perf.json")
    assert "Longest kernels" in read(path, tmp_path).text


@pytest.mark.parametrize(
    "named", ["", ".stepguard/runs/2/case/evidence.json", "perf.json", "../{}/perf.json", "{}/x"]
)
def test_evidence_that_is_not_here_is_said(tmp_path, named):
    """The case shows what the document has; a document names no file outside of its project."""
    found = read(kept_run(tmp_path, named.format(tmp_path)))
    assert found.problems == [] and "is not here. Single steps, profile, lines" in found.text
    assert "All metrics" in found.text and "Longest kernels" not in found.text


def test_evidence_of_another_case_is_not_taken(tmp_path):
    """A file that was replaced would show another case's steps."""
    found = read(kept_run(tmp_path, kept=evidence(case_id="forward[x]")))
    assert f"is of forward[x], not of {CASE_ID}" in found.text and "drift" not in found.text


def test_another_baseline_is_not_shown_as_the_one_that_judged(tmp_path):
    """It was recorded anew since, or another branch's judged."""
    found = read(kept_run(tmp_path, judged_by="0" * 64))
    assert "holds another baseline than the one that judged" in found.text
    assert "Longest kernels" in found.text


def test_kept_evidence_alone_is_judged_by_todays_baselines(tmp_path):
    """A folder of runs needs no document."""
    kept_run(tmp_path)
    (run,) = read_runs([tmp_path / ".stepguard/runs"], tmp_path, tmp_path / "baselines")
    assert run.document is None and [case.verdict.word for case in run.cases] == ["same"]
    with pytest.raises(FileError, match="no evidence.json or comparison.json is below it"):
        [*read_runs([tmp_path / "baselines"], tmp_path, tmp_path / "baselines")]


def test_a_run_without_a_case_is_a_page():
    """It failed before it measured: its problems are what there is to see."""
    found = shown()
    assert found.problems == [] and "nothing was measured" in found.text
    assert "DIRTY" not in found.text and "The run itself is no pass" in found.text


def test_several_runs_are_one_page():
    """Machines beside each other, each with its own verdict."""
    found = Page(page([run_of(paired()), run_of(paired())], PAGES, {}))
    assert found.problems == [] and "Performance of 2 runs" in found.text
    assert len(set(found.values("id"))) == 2


def test_what_fails_is_open_and_what_passes_is_closed():
    """The worst first; a page of many failures opens three."""
    found = shown(*(paired(f"case[{number}]") for number in range(5)))
    details = [attrs for tag, attrs in found.elements if tag == "details"]
    assert ["open" in attrs for attrs in details] == [True] * 3 + [False] * 2
