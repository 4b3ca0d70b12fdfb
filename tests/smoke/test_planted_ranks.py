"""Two real ranks, end to end: what is planted between them is caught by its counter and named."""

from dataclasses import replace
from pathlib import Path

import pytest

from stepguard import Case
from stepguard.baseline_model import Entry, Epoch
from stepguard.evidence import Evidence
from stepguard.explain import block
from stepguard.host.accept import recording_of
from stepguard.host.measure import Bench, measure
from stepguard.host.revision import Revision
from stepguard.judge import judge
from stepguard.verdict import Status, Verdict

ROOT = Path(__file__).resolve().parents[2]
CALLS, PAYLOAD = "collectives_per_step", "collective_bytes_per_step"
PLANTS = {
    "nothing": {},
    "sync in every micro-step": {"plant": "sync in every micro-step"},
    "one more reduction": {"plant": "one more reduction"},
    "small buckets": {"bucket_cap_mb": 1},
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A place to measure in, from which tests/factories.py can be imported."""
    folder = tmp_path_factory.mktemp("bench")
    revision = Revision("a" * 40, ())
    return Bench(ROOT / "tests", folder / "cache", folder / "runs", (), revision, "pytest")


def measured(bench, name, **params) -> Evidence:
    """The evidence of two ranks, which is sound."""
    case = Case(name.replace(" ", "-"), "factories:ranks", params, "cpu", 2, launches=1)
    found = measure(case, bench)
    assert not found.faults, found.faults
    return found


@pytest.fixture(scope="module")
def clean(bench):
    """Without a plant."""
    return measured(bench, "clean")


@pytest.fixture(scope="module")
def verdicts(bench, clean) -> dict[str, Verdict]:
    """By plant: the verdict against a recording of the clean step."""
    epoch = Epoch(reason="clean", recordings=[recording_of(clean)])
    baseline = Entry(case=clean.case, epochs=[epoch])
    found = {}
    for name, params in PLANTS.items():
        planted = measured(bench, name, **params)
        # The plant is in the source, not in the parameters, as far as the judge knows.
        found[name] = judge(replace(planted, case=clean.case), baseline)
    return found


def moved(verdict: Verdict) -> dict[str, tuple[float | None, float | None]]:
    """The gated metrics that moved, with both values."""
    metrics = (m for m in verdict.metrics if m.gated and m.status is not Status.SAME)
    return {m.metric: (m.old, m.new) for m in metrics}


def test_two_ranks_count_the_same_again(verdicts):
    """Measured twice, every counter of two ranks is equal, to the unit."""
    assert verdicts["nothing"].status is Status.SAME, block(verdicts["nothing"], "evidence")
    assert moved(verdicts["nothing"]) == {}


def test_sync_in_every_micro_step_doubles_the_buckets(clean, verdicts):
    """Two micro-steps that both exchange gradients: every bucket twice, the loss still once."""
    verdict, before = verdicts["sync in every micro-step"], clean.counts
    calls, payload = before.values[CALLS], before.values[PAYLOAD]
    assert verdict.status is Status.CHANGED
    found = moved(verdict)
    assert found[CALLS] == (calls, 2 * (calls - 1) + 1)
    assert found[PAYLOAD] == (payload, 2 * (payload - 4) + 4)
    biggest = max(before.detail[CALLS], key=lambda name: int(name.split()[1]))
    assert f"{biggest} 1 -> 2" in block(verdict, "evidence")


def test_smaller_buckets_are_more_calls_of_the_same_bytes(clean, verdicts):
    """One MiB instead of 25: more reductions, each named by its size, and not a byte more."""
    verdict = verdicts["small buckets"]
    assert verdict.status is Status.CHANGED
    found = moved(verdict)
    old, new = found[CALLS]
    assert old < new
    assert PAYLOAD not in found
    worst = next(m for m in verdict.metrics if m.metric == CALLS)
    assert " B 0 -> " in worst.note


def test_one_more_reduction_is_named_by_its_size(verdicts):
    """1000 floats more in every step: one call and 4000 bytes more."""
    verdict = verdicts["one more reduction"]
    assert verdict.status is Status.CHANGED
    found = moved(verdict)
    assert found[CALLS][1] - found[CALLS][0] == 1
    assert found[PAYLOAD][1] - found[PAYLOAD][0] == 4000
    text = block(verdict, "evidence")
    assert f"{CALLS} [calls]: " in text
    assert "moved: allreduce 4000 B 0 -> 1" in text
