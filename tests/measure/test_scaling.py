"""Scaling efficiency: from one rank's launch to metrics, notes, table and recordings."""

import json
import math

import pytest
from builders import (
    CASE,
    TOKENS,
    block,
    compared,
    entry_of,
    launch,
    recording,
    replace,
    two_rank_evidence,
    values_of,
)

from stepguard import Case
from stepguard.core.evidence import from_json, to_json
from stepguard.core.metrics import METRICS
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Verdict
from stepguard.judge.judge_recordings import judge
from stepguard.measure.launches import planned_launches
from stepguard.report import table
from stepguard.report.metric_notes import note
from stepguard.report.verdict_text import evidence_lines
from stepguard.storage.accept_recording import recording_of

EFFICIENCY, ALONE = "scaling_efficiency_pct", "one_rank_step_ms"
NAMES = {EFFICIENCY, ALONE}


def two_ranks(one_ms=200.0, tokens=TOKENS // 2, **changes):
    """250 ms a step on two ranks, ``one_ms`` alone."""
    one = launch(one_ms, 0)
    return two_rank_evidence(one_rank=one, one_rank_tokens_per_step=tokens, **changes)


def test_with_equal_tokens_it_is_the_ratio_of_step_times():
    """200 ms alone, 250 ms together: each rank keeps 80 % of its pace."""
    values = values_of(two_ranks())
    assert values[EFFICIENCY] == pytest.approx(80)
    assert values[ALONE] == pytest.approx(200)


def test_a_workload_that_shares_its_tokens_out_is_scaled_likewise():
    """As many tokens alone as together: 400 ms alone, 250 ms on two, is 80 % of twice as fast."""
    assert values_of(two_ranks(400.0, TOKENS))[EFFICIENCY] == pytest.approx(80)


def test_the_launch_alone_is_in_no_other_figure():
    """Step times, samples and throughput are those of the case; tokens are of all ranks."""
    found, without = two_ranks(), two_rank_evidence()
    rest = {name: value for name, value in values_of(found).items() if name not in NAMES}
    assert rest == values_of(without)
    assert rest["tokens_per_s"] == pytest.approx(TOKENS / 0.25)
    assert found.samples_ms() == without.samples_ms()


def test_it_exists_with_several_ranks_alone_and_is_never_judged():
    """Information: no case can gate it, and it was half as high when recorded."""
    assert all(METRICS[name].kind == "information" for name in NAMES)
    assert not any(METRICS[name].exists("cuda", 1) for name in NAMES)
    past = recording(information={EFFICIENCY: 160.0, ALONE: 400.0})
    found = compared(EFFICIENCY, two_ranks(), [past])
    assert (found.status, found.gated, found.old) == (Status.SAME, False, 160.0)
    assert judge(two_ranks(), entry_of(two_ranks())).status is Status.SAME


def test_older_evidence_is_read():
    """Written before there was such a launch, it has none."""
    document = json.loads(to_json(two_ranks()))
    assert document.pop("one_rank") and document.pop("one_rank_tokens_per_step")
    found = from_json(json.dumps(document).encode(), "older")
    assert found == two_rank_evidence()


def test_evidence_keeps_it():
    """There and back through JSON."""
    assert from_json(to_json(two_ranks()), "kept") == two_ranks()


@pytest.mark.parametrize(
    ("odd", "reason", "text"),
    [
        (launch(blocks=()), Reason.NOTHING_MEASURED, "one-rank launch: no block was measured"),
        (launch(math.nan), Reason.NOTHING_MEASURED, "one-rank launch: a block has a time of nan"),
        (
            launch(blocks=(block(events_ms=(2000.0,)),)),
            Reason.CLOCKS_DISAGREE,
            "one-rank launch: rank 0: wall clock 2500.00 ms, events 2000.00 ms",
        ),
    ],
)
def test_a_launch_alone_that_contradicts_itself_is_broken(odd, reason, text):
    """As a launch of the case would be; the figure is then missing, not wrong."""
    found = replace(two_ranks(), one_rank=odd)
    verdict = judge(found, entry_of(found))
    assert (verdict.status, verdict.reason) == (Status.BROKEN, reason)
    assert verdict.message.startswith(text)


def test_no_tokens_no_figure():
    """An efficiency of nothing would be a division by zero."""
    assert not NAMES & values_of(two_ranks(tokens=0)).keys()


def test_a_slow_step_is_reported_beside_what_one_rank_takes():
    """A line under the verdict, which says if that was not steady."""
    found = compared(EFFICIENCY, two_ranks(), [recording()])
    assert note(found) == "one rank alone takes 200.00 ms"
    lines = evidence_lines(Verdict("c", Status.SLOWER, Reason.BEYOND_LIMIT, metrics=(found,)))
    assert f"  {EFFICIENCY} 80.00: {note(found)}" in lines
    drifting = replace(two_ranks(), one_rank=launch(200.0, steady="not steady after 60 s"))
    words = note(compared(EFFICIENCY, drifting, [recording()]))
    assert words == "one rank alone takes 200.00 ms, not steady after 60 s"


def test_the_table_has_a_column_for_it_where_a_case_has_it():
    """Left out of a run of single ranks."""
    several = judge(two_ranks(), entry_of(two_ranks()))
    single = judge(two_rank_evidence(), entry_of(two_rank_evidence()))
    with_it = [text for text, _ in table.lines(table.rows([several, single]))]
    assert "scaling" in with_it[0] and any(" 80.00 " in line for line in with_it[1:])
    assert "scaling" not in next(table.lines(table.rows([single])))[0]


def test_a_gpus_recording_holds_it_and_a_cpus_does_not():
    """Times of a CPU are recorded nowhere."""
    assert recording_of(two_ranks()).information[EFFICIENCY] == pytest.approx(80)
    cpu = two_ranks(case=CASE | {"device": "cpu", "world_size": 2})
    assert recording_of(replace(cpu, gates=("graph_breaks",))).information == {}


def test_one_rank_comes_after_everything_that_is_gated():
    """Last, alone, timed and not counted; a case of one rank has no such launch."""
    case = Case("two", "model.workloads:train_step", world_size=2)
    *gated, last = planned_launches(case)
    assert (last.alone, last.timed, last.count, last.differences) == (True, True, False, ())
    assert len(gated) == case.launches and not any(one.alone for one in gated)
    assert not any(one.alone for one in planned_launches(replace(case, world_size=1, gates=())))


def test_noise_is_not_shown_as_a_figure():
    """On a CPU that gates counters alone there is no efficiency, and no launch that it takes."""
    case = Case("two", "model.workloads:train_step", device="cpu", world_size=2, launches=1)
    assert [one.label for one in planned_launches(case)] == ["launch 1"]
    timed = replace(case, gates=("step_ms",))
    assert [one.alone for one in planned_launches(timed)] == [False, True]
