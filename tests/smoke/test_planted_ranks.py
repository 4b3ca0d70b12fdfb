"""Two real ranks, end to end: what is planted between them is caught by its counter and named.

What is measured is a clone of this repository, judged against a recording.
"""

from pathlib import Path

import pytest
from git_repositories import commit
from short_launches import NANO, SMALLER, measured_alone, shorten_launches

from benchmarks.shared import WORKLOADS, Change, clone_head
from perf_tests.parameters import NANO_STEP
from stepguard import Case, default_gates
from stepguard.core.baseline import Entry, Epoch
from stepguard.core.evidence import Evidence
from stepguard.core.question import Question
from stepguard.core.status import Status
from stepguard.core.verdict import Verdict
from stepguard.judge.rule_book import judge
from stepguard.machine.git.revision import current
from stepguard.measure.case_workers import Bench
from stepguard.report.verdict_text import block, headline, page_of
from stepguard.storage.accept_recording import recording_of

CALLS, PAYLOAD = "collectives_per_step", "collective_bytes_per_step"
OPERATORS = ("operator_calls_per_step", "compiled_operator_calls_per_step")
ALONG = (*OPERATORS, "sync_candidates_per_step")
REDUCE = "                dist.all_reduce(total)\n"
MORE = "                dist.all_reduce(torch.zeros(1000, device=total.device))\n"
PLANTS = {  # old and new text in model/workloads.py
    "gradient sync in every micro-step": (
        "wanted = last or",
        "wanted = True or",
    ),
    "one more all-reduce": (REDUCE, REDUCE + MORE),
}
CASE = Case(
    "planted",
    "model.workloads:train_step",
    NANO_STEP | {"batch": 1, "seq": 16},
    "cpu",
    world_size=2,
    launches=1,
    gates=default_gates("cpu", 2),
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A clone, of whose model the ranks exchange 1 MB."""
    tree = clone_head(tmp_path_factory.mktemp("work") / "tree")
    Change((("model/config.py", NANO, SMALLER),)).plant(tree)
    commit(tree, "smaller")
    return tree


def measured(tree, name="") -> Evidence:
    """The step of two gloo ranks in the clone, with that plant, which is then taken out."""
    clean = (tree / WORKLOADS).read_text()
    if name:
        Change(((WORKLOADS, *PLANTS[name]),)).plant(tree)
        commit(tree, name)
    place = tree.parent / (name or "clean")
    revision = current(tree, tree / "baselines")
    bench = Bench(tree, tree.parent / "cache", place, (), revision, "planted")
    with pytest.MonkeyPatch.context() as monkeypatch:
        shorten_launches(monkeypatch)
        found = measured_alone(CASE, bench)
    (tree / WORKLOADS).write_text(clean)
    return found


@pytest.fixture(scope="module")
def clean(tree) -> Evidence:
    """Without a plant."""
    return measured(tree)


@pytest.fixture(scope="module")
def verdicts(tree, clean) -> dict[str, Verdict]:
    """By plant: the verdict against a recording of the clean step."""
    recorded = Epoch(reason="clean", recordings=[recording_of(clean)])
    known = Entry(case=clean.case, epochs=[recorded])
    return {name: judge(Question(measured(tree, name), known)) for name in PLANTS}


def moved(verdict: Verdict) -> dict[str, list[float | None]]:
    """The gated metrics that moved, with both values."""
    metrics = [one for one in verdict.metrics if one.gated and one.status is not Status.SAME]
    return {one.metric: [one.old, one.new] for one in metrics}


@pytest.mark.parametrize("name", PLANTS)
def test_every_plant_is_caught(verdicts, name):
    """The gate fails, and its headline names the metric that says what was planted. Operators and
    candidates for a sync may move as well, and the bytes that ranks exchange; every other counter
    is equal to that of the clean step, to the unit.
    """
    assert verdicts[name].status is Status.CHANGED
    assert verdicts[name].worst.metric == CALLS
    assert headline(verdicts[name]).count(" -> ") == 1
    assert moved(verdicts[name]).keys() <= {CALLS, PAYLOAD, *ALONG}


def test_sync_in_every_micro_step_doubles_the_buckets(clean, verdicts):
    """Two micro-steps that both exchange gradients: every bucket twice, the loss still once."""
    verdict, before = verdicts["gradient sync in every micro-step"], clean.counts
    calls, payload = before.values[CALLS], before.values[PAYLOAD]
    found = moved(verdict)
    assert found[CALLS] == [calls, 2 * (calls - 1) + 1]
    assert found[PAYLOAD] == [payload, 2 * (payload - 4) + 4]
    biggest = max(before.detail[CALLS], key=lambda name: int(name.split()[1]))
    assert f"{biggest} 1 -> 2" in block(page_of(verdict))


def test_one_more_reduction_is_named_by_its_size(verdicts):
    """1000 floats more in every step: one call and 4000 bytes more."""
    verdict = verdicts["one more all-reduce"]
    found = moved(verdict)
    assert found[CALLS][1] - found[CALLS][0] == 1
    assert found[PAYLOAD][1] - found[PAYLOAD][0] == 4000
    text = block(page_of(verdict))
    assert f"{CALLS} [calls]: " in text
    assert "moved: allreduce 4000 B 0 -> 1" in text
