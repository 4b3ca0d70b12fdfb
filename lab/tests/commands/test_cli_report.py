"""python -m stepguard report: which runs it takes, what it refuses, what it writes."""

from dataclasses import replace

import pytest
from html_pages import Page
from kineto import steps

from stepguard.core.site import Site

CASE = "linear[nano]"


def page(shell, name="report.html"):
    """The page that was written."""
    return Page((shell.path / name).read_text())


def test_the_last_run_is_the_default(shell):
    """Judged by the baselines of the folder; the page is where --html says."""
    shell.record(shell.made())
    done = shell("report", "--html", "pages/run.html")
    assert done.status == 0 and done.out.startswith("pages/run.html: 1 case, 0.0")
    found = page(shell, "pages/run.html")
    assert found.problems == [] and CASE in found.text and "same" in found.text


def test_without_a_run_it_says_how_to_get_one(shell):
    """Nothing was measured here."""
    done = shell("report")
    assert (
        done.status == 1
        and "nothing is kept; measure: " in done.err
        and not (shell.path / "report.html").exists()
    )


def test_pairs_of_another_revision(shell):
    """A run that judged beside another revision left comparisons alone."""
    shell.keep_comparison(shell.made(), shell.made())
    assert shell("report").status == 0 and "Step time by pair" in page(shell).text


def test_lines_link_to_the_repository_that_is_named(shell):
    """A token in the address is left out."""
    site = Site(".item()", "train.py", 7, "step", "loss.item()")
    made = shell.made()
    counts = replace(made.counts, sites={"sync_candidates_per_step": (site,)})
    shell.keep(replace(made, counts=counts))
    url = "https://me:secret@github.com/o/n"
    assert shell("report", "--repository", url).status == 0
    link = f"https://github.com/o/n/blob/{'a' * 40}/train.py#L7"
    assert link in page(shell).values("href") and "secret" not in page(shell).text
    refused = shell("report", "--repository", "over there")
    assert refused.status == 2 and "give an https address" in refused.err


@pytest.mark.parametrize("name", ["page.html", "train.py"])
def test_a_file_of_the_users_stays(shell, name):
    """One that is no report, or ends otherwise."""
    shell.keep(shell.made())
    (shell.path / name).write_text("<p>mine</p>")
    done = shell("report", "--html", name)
    assert done.status == 2 and name in done.err
    assert (shell.path / name).read_text() == "<p>mine</p>"


def test_an_earlier_report_is_replaced(shell):
    """And a document is not, which is read."""
    shell.keep(shell.made())
    assert shell("report").status == 0
    assert shell("report").status == 0


def test_a_timeline_of_a_trace(shell):
    """Drawn with the case that is named."""
    shell.keep(shell.made())
    (shell.path / "t.json").write_bytes(steps(3).text())
    done = shell("report", "--trace", f"{CASE}=t.json")
    assert done.status == 0, done.err
    assert "GPU: compute" in page(shell).text


@pytest.mark.parametrize(("trace", "told"), [
    ("t.json", "write CASE=FILE"),
    ("other[x]=t.json", "no case 'other[x]' in the report"),
    (f"{CASE}=missing.json", "missing.json"),
])  # fmt: skip
def test_a_trace_that_cannot_be_drawn(shell, trace, told):
    """Its case is not there, or the file is not."""
    shell.keep(shell.made())
    done = shell("report", "--trace", trace)
    assert done.status in (1, 2) and told in done.err
