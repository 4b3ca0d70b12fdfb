"""Runs for the HTML report that have all that evidence can have."""

from dataclasses import replace as changed

from builders import CASE, CASE_ID, entry, evidence, recording, replace
from comparisons import simulated
from run_documents import COMMIT, measured, run_document

from stepguard.core.comparison import Question
from stepguard.core.profile import IdleRow, KernelRow, Parts, Profile
from stepguard.core.run_document import CaseState, Problem, ProblemCode, State
from stepguard.core.site import Site
from stepguard.judge.rule_book import judge
from stepguard.report.verdict_text import page_of
from stepguard.storage.baseline_files import today
from stepguard_lab.history_page import page as history_page
from stepguard_lab.history_store import measurement_of, series_of
from stepguard_lab.history_view import Anchor, view_of
from stepguard_lab.html_page import page
from stepguard_lab.report_input import MeasuredCase, ReportedRun
from stepguard_lab.source_links import Repository

PAGES = Repository("https://github.com/o/n")
HOSTILE = ["</details><script>alert(1)</script>",
           "</style></title></svg><img src=x onerror=alert(1)>", '" onmouseover="alert(1)" x="',
           "' onfocus='alert(1)' autofocus", "{{ 7 * 7 }}{% include 'x' %}", "javascript:alert(1)",
           "--><!-- ]]> <![CDATA[", "\x1b[2K\x1b]0;title\x07\u202egreen\u2066\x00\x85",
           "&lt;script&gt;&#x3c;script>", "x" * 3_000]  # fmt: skip
STEPS = 3


def profile(name="ampere_gemm", slower=1.0):
    """A profile of a step of 20 kernels in two phases."""
    rows = []
    for number in range(20):
        us = (1e4 * slower / (number + 1),) * STEPS
        phase, kind = (
            ("forward", "backward")[number % 2],
            ("GEMM", "attention", "Triton")[number % 3],
        )
        rows.append(
            KernelRow(
                f"{name}_{number}", name, kind, phase, (12.0,) * STEPS, us, operator="aten::mm"
            )
        )
    total, none = (sum(row.us[0] for row in rows),) * STEPS, (0.0,) * STEPS
    parts = Parts(tuple(2e3 + us for us in total), total, none, none, (2e3,) * STEPS)
    gap = IdleRow("sync", "cudaStreamSynchronize", name, (1.0,) * STEPS, (2e3,) * STEPS)
    return Profile("NVIDIA H200", 1, parts, tuple(rows), (gap,))


def telemetry(side):
    """The evidence with what a GPU does during each block."""
    launches = [
        changed(
            launch,
            blocks=tuple(
                changed(b, sm_clock_mhz=1755.0, temperature_c=61.0, power_w=690.0, energy_j=1800.0,
                        enqueue_ms=6.0)
                for b in launch.blocks
            ),
        )
        for launch in side.launches
    ]  # fmt: skip
    return replace(side, launches=tuple(launches))


def counted_side(side, text, slower=1.0):
    """The evidence with a profile, lines and memory by phase, and a text wherever there is one."""
    sites = tuple(
        Site(f"aten.mm.{i}", f"model/{text}.py", i + 1, text, text, "forward", 3, via=text)
        for i in range(12)
    )
    counts = replace(
        side.counts,
        profile=profile(text, slower),
        sites={"operator_calls_per_step": sites, "host_syncs_per_step": sites[:2]},
        detail={
            **side.counts.detail,
            "peak_allocated_bytes": {text: 7_000_000_000, "b": 5_000_000},
        },
    )
    return replace(telemetry(side), counts=counts)


def paired(case_id=CASE_ID, text="mm", slower_pct=2.0, pairs=8):
    """A case of a GPU in pairs, SLOWER, with all that its evidence can have."""
    found = simulated(pairs, 0.1, 0.05)
    head = counted_side(replace(found.head, case_id=case_id, commit=COMMIT), text, 1.1)
    base = counted_side(replace(found.base, case_id=case_id, commit="b" * 40), text)
    factor = 1 + slower_pct / 100
    launches = [
        changed(
            launch,
            blocks=tuple(
                changed(
                    b,
                    wall_ms=tuple(ms * factor for ms in b.wall_ms),
                    events_ms=tuple(ms * factor for ms in b.events_ms),
                    step_ms=tuple(ms * factor for ms in b.step_ms),
                )
                for b in launch.blocks
            ),
        )
        for launch in head.launches
    ]
    found = changed(found, against="main", head=replace(head, launches=tuple(launches)), base=base)
    verdict = judge(Question(pairs=found, today=today()))
    page = replace(page_of(verdict), headline=f"{case_id}: {text}", lines=[text], detail=text)
    return MeasuredCase(verdict, page, None, found.head, found)


def run_of(*cases, text="why"):
    """A run of these cases, with a problem, a notice and a case that was not measured."""
    left = CaseState(state=State.SKIPPED, case="other", why=text)
    document = run_document(
        passed=False, machine=text, against=text, base_changes=[text], notices=[text], cases=[left],
        problems=[Problem(ProblemCode.DIRTY, text)])  # fmt: skip
    return ReportedRun(text, document, tuple(cases))


def recorded(**changes):
    """A case that was judged by recordings."""
    result = measured(entry(), **changes)
    side = counted_side(evidence(**changes), "mm")
    return MeasuredCase(result.verdict, result.text, result, side)


def report():
    """A page with a case that is SLOWER in pairs, one that is CHANGED, and one that is `same`."""
    more = replace(evidence().counts, values=evidence().counts.values | {"flops_per_step": 10**14})
    cases = paired(), recorded(counts=more), recorded()
    wide = (
        '<svg width="1240" height="200" viewBox="0 0 1240 200"><text x="9" y="20">step</text></svg>'
    )
    return page([run_of(*cases)], PAGES, {CASE_ID: wide})


def hostile_report():
    """A page whose every text is markup, in a case for each kind."""
    cases = [paired(f"a[{text}]", text) for text in HOSTILE]
    return page([run_of(*cases, text=text) for text in HOSTILE], PAGES, {})


def history():
    """A history's page: a time that crept, by a step that came with another level and torch."""
    points = []
    for number in range(24):
        late = number >= 12
        found = recording(
            (250.0, 260.0)[late] + number % 3 / 10,
            number,
            commit=f"{number:040x}",
            software={"torch": ("2.11.0", "2.13.0")[late]},
        )
        reason = "fused <b>" if number == 12 else ""
        points.append(measurement_of(found, CASE_ID, "NVIDIA H200", CASE, reason))
    anchor = Anchor("v1", "v1", {f"{number:040x}" for number in range(6)})
    return history_page([view_of(one, anchor) for one in series_of(points)], anchor)
