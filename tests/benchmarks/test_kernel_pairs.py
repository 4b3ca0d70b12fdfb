"""Kernels against kernels: what is recorded, what is said of it, and how often that is wrong."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import kernel_rates
from benchmarks.kernel_difference import (
    Launch,
    Turn,
    judged,
    launch_of,
    step_differences_pct,
    times_of,
)
from benchmarks.kernel_pairs import (
    ALIKE,
    CASES,
    NOTHING,
    Card,
    Trees,
    about_change,
    identity_of,
)
from benchmarks.longer_kernels import (
    BASES,
    LONGER_ATTENTION,
    LONGER_GELU,
    LONGER_IN_PART,
    LONGER_PRODUCT,
)
from benchmarks.shared import GPT
from stepguard.core.margins import Prior
from stepguard.core.profile import KernelRow, Parts, Profile
from stepguard.core.replies import Kernels
from stepguard.judge.time_rules import KERNEL_MARGINS
from stepguard.measure.warm_up import PAIR_PROTOCOLS

STEP_US = 270_000.0
PLANTED = [*LONGER_GELU][0]
# Name, class, launches and share of a step in percent: about those of the 124M step.
STEP = (("nvjet_NNN", "GEMM", 98, 18.0), ("nvjet_TNN", "GEMM", 96, 12.6),
        ("nvjet_NTN", "GEMM", 48, 7.5), ("sdpa_bprop", "attention", 24, 8.8),
        ("sdpa_fprop", "attention", 24, 3.1), ("triton_poi_fused_gelu_view_9", "Triton", 24, 2.6),
        ("triton_per_fused_norm_10", "Triton", 46, 4.7),
        ("triton_red_fused_loss_11", "Triton", 2, 3.6),
        ("triton_poi_fused_cat_12", "Triton", 24, 1.8))  # fmt: skip


def kernel(name, kind, calls, us, code="c", grid=(8, 1, 1)):
    canonical = name.rstrip("0123456789").rstrip("_") if kind == "Triton" else name
    series = tuple(us) if isinstance(us, (list, tuple)) else (us,) * 6
    code = code if kind == "Triton" else ""
    shapes = {"grid": grid, "block": (128, 1, 1)}
    return KernelRow(name, canonical, kind, "forward", (calls,) * 6, series, **shapes, code=code)


def step(paces=None, longer=None):
    """The kernels of a step: classes at a pace, and names that take so many us longer."""
    paces, longer = paces or {}, longer or {}
    return tuple(
        kernel(name, kind, calls, share / 100 * STEP_US * paces.get(kind, 1) + longer.get(name, 0))
        for name, kind, calls, share in STEP
    )


def launch(*turns, block_ms=(270.0, 270.0)):
    return Launch(tuple(Turn(STEP_US, 0.0, kernels) for kernels in turns), block_ms)


def noisy(rng, longer=None, sd_pct=0.02, within_pct=0.01):
    """A launch of two turns: each class at a pace of its own, scattering by 1 % from turn to turn.
    A kernel scatters by so much of a step between launches, and from turn to turn.
    """
    own = {name: rng.gauss(0, sd_pct / 100 * STEP_US) for name, *_ in STEP}
    turns = []
    for _ in range(2):
        paces = {kind: rng.gauss(1, 0.01) for kind in ("GEMM", "attention", "Triton")}
        each = {name: us + rng.gauss(0, within_pct / 100 * STEP_US) for name, us in own.items()}
        each = {name: us + (longer or {}).get(name, 0.0) for name, us in each.items()}
        turns.append(step(paces, each))
    step_ms = (STEP_US + sum((longer or {}).values())) / 1e3
    return launch(*turns, block_ms=(rng.gauss(step_ms, 0.5), rng.gauss(step_ms, 0.5)))


def test_a_verdict_is_the_rules():
    """By the kernels, unless the unprofiled steps are hardly slower."""
    known = Prior(0.02, 8.0)
    assert judged([0.17, 0.18], [0.3, 0.2], known).slower
    assert judged([0.17, 0.18], [0.6, 0.5], known).slower
    assert not judged([KERNEL_MARGINS.ignore_pct, 0.06], [0.1, 0.0], known).slower
    vetoed = judged([0.17, 0.18], [-0.2, -0.3], known)
    assert vetoed.vetoed and not vetoed.slower


def test_a_launch_is_the_unit():
    """Kernels that scatter between launches, not within them: more turns make no finding."""
    rng, name = random.Random(7), "triton_per_fused_norm_10"
    reds = 0
    for _ in range(300):
        pairs = []
        for _ in range(3):
            sides = [{name: rng.gauss(0, 0.05 / 100 * STEP_US)} for _ in range(2)]
            pairs.append(tuple(launch(*[step({}, longer)] * 5) for longer in sides))
        times = times_of(pairs)
        mine = np.array([one == name for one in times.names])
        values = times.differences_pct(mine)[:, 0].tolist()
        reds += judged(values, step_differences_pct(pairs), times.known(mine)).slower
    assert reds <= 2


def recording(pairs):
    """A document of the pairs (change, GPU, base, head), as kernel_pairs writes it."""
    kernels = {}

    def side(one):
        turns = []
        for turn in one.turns:
            rows = {}
            for row in turn.kernels:
                kernels[row.name] = identity_of(row)
                rows[row.name] = [row.calls[0], list(row.us)]
            times = {"step_us": [turn.step_us] * 6, "idle_us": [turn.idle_us] * 6}
            turns.append(times | {"kernels": rows})
        return {"turns": turns, "block_step_ms": [[ms] for ms in one.block_ms]}

    kept = [
        about_change(change) | {"gpu": gpu, "base": side(base), "head": side(head)}
        for change, gpu, base, head in pairs
    ]
    return json.loads(json.dumps({"pairs": kept, "kernels": kernels}))


@pytest.fixture(scope="module")
def rated(tmp_path_factory):
    """The tables of a run of two GPUs: six pairs of nothing and a plant of 0.3 % on each."""
    rng, folder = random.Random(3), tmp_path_factory.mktemp("rates")
    longer = {"triton_per_fused_norm_10": 0.003 * STEP_US}
    pairs = []
    for gpu in ("GPU-a", "GPU-b"):
        pairs += [(NOTHING, gpu, noisy(rng), noisy(rng)) for _ in range(6)]
        for _ in range(3):
            base, head = noisy(rng), noisy(rng, longer)
            turns = tuple(
                Turn(
                    turn.step_us,
                    turn.idle_us,
                    tuple(
                        replace(row, name=row.name + "0", calls=(45.0,) * 6)
                        if row.name in longer
                        else row
                        for row in turn.kernels
                    ),
                )
                for turn in head.turns
            )
            pairs.append((PLANTED, gpu, base, Launch(turns, head.block_ms)))
    path = folder / "kernels.json"
    path.write_text(json.dumps(recording(pairs)))
    recorded = kernel_rates.Recorded.read(path)
    scatters = {
        gpu: kernel_rates.Scatter.of(launches) for gpu, launches in recorded.alike().items()
    }
    return recorded, scatters


def test_what_was_planted_is_found_as_recorded(rated):
    """With the kernel's name and its size; of nothing no kernel differs."""
    nothing, planted = kernel_rates.found_changes(rated[0])
    assert (nothing["pairs"], nothing["differ"]) == (12, [])
    assert [row[0] for row in planted["differ"]] == ["launches 46 -> 45"]
    assert planted["mean_pct"] == pytest.approx(0.3, abs=0.03)
    assert planted["slower"] and not planted["vetoed"]


def test_the_scatter_is_that_between_launches(rated):
    """A kernel's differences scatter as two launches do; its turns less."""
    rows = kernel_rates.scatter_rows(rated[1])
    (norm,) = [row for row in rows if row["kernel"].startswith("triton_per_fused_norm_10 ")]
    assert norm["share_pct"] == pytest.approx(4.7, rel=0.05)
    assert 0.02 < norm["between_launches_pct"] < 0.09
    assert norm["within_a_launch_pct"] < norm["between_launches_pct"]
    kernels, between, within, expected = kernel_rates.by_class(rows)["Triton"]
    assert kernels == 4 and 0.01 < within < between < 0.09
    assert expected == pytest.approx(0.03, abs=0.01)


def test_nothing_is_seldom_red_and_a_longer_kernel_often(rated, monkeypatch):
    """Of verdicts by re-pairing 15 launches of one code on each of two GPUs."""
    monkeypatch.setattr(kernel_rates, "DRAWS", 100)
    recorded, scatters = rated
    assert [len(launches) for launches in recorded.alike().values()] == [15, 15]
    rows = kernel_rates.rates(scatters)
    assert [row["pairs"] for row in rows] == [2, 3, 4]
    for row in rows:
        found = row["found"]
        trials = found["0.0"]["verdicts"]
        assert trials == 2 * 100 * len(STEP)
        red, *bounds = found["0.0"]["red"]
        assert red <= 0.004 * trials and bounds[0] <= red / trials <= bounds[1]
        assert red <= found["0.1"]["red"][0] <= found["0.3"]["red"][0]
        assert found["sets"]["red"][0] <= 0.004 * found["sets"]["verdicts"]
        assert all(one["red"][0] <= one["by_kernels"][0] for one in found.values())
    assert rows[-1]["found"]["0.3"]["red"][0] > 0.6 * trials


class Ranks:
    """A launch that answers with a profile."""

    def __init__(self, profile):
        self.profile, self.asked = profile, []
        self.warmup = type("WarmUp", (), {"step_s": 0.25})

    def run(self, steps):
        self.asked.append(steps)

    def show(self, text):
        pass

    def ask(self, command):
        self.asked.append(command)
        if command == "profile":
            return [{}]
        problem = "" if self.profile else "lost records"
        return [Kernels(profile=self.profile, problem=problem)]


def test_a_turn_keeps_a_profile_so_that_it_is_read_back(tmp_path):
    """Steps run before it, unprofiled. A profile that there is not is said to be missing."""
    parts = Parts((STEP_US,) * 6, (STEP_US - 100,) * 6, (0.0,) * 6, (0.0,) * 6, (100.0,) * 6)
    rows = step({"GEMM": 1.01})
    ranks = Ranks(Profile("NVIDIA H100", 1, parts, rows, ()))
    card = Card.__new__(Card)
    card.protocol, card.kernels = PAIR_PROTOCOLS[CASES["cuda"].device], {}
    kept = json.loads(json.dumps({"turn": card._turn(ranks), "kernels": card.kernels}))
    assert ranks.asked == [4, "profile", "kernels"]
    side = {"turns": [kept["turn"]], "block_step_ms": [[270.0, 272.0]]}
    read = launch_of(side, kept)
    assert read.block_ms == (271.0,)
    (turn,) = read.turns
    assert (turn.step_us, turn.idle_us) == (STEP_US, 100.0)
    assert [row.key for row in turn.kernels] == [row.key for row in rows]
    assert all(
        ours.us == pytest.approx(its.us, abs=0.01) and ours.calls == its.calls
        for ours, its in zip(turn.kernels, rows, strict=True)
    )
    assert card._turn(Ranks(None)) == {"problem": "lost records"}


def test_the_base_of_a_change_differs_by_the_change_alone(tmp_path):
    """An attention or a product of our own is in both trees; of nothing they are equal."""
    longer = [[*each][1] for each in (LONGER_GELU, LONGER_ATTENTION, LONGER_PRODUCT)]
    names = [*ALIKE, *longer, *LONGER_IN_PART]
    trees = Trees.of(tmp_path, tmp_path / "cache", names)
    trees.make()
    sources = {
        name: [(tree[name] / GPT).read_text() for tree in (trees.bases, trees.heads)]
        for name in names
    }
    same = [True] * 5 + [False] * 5
    assert [base == head for base, head in sources.values()] == same
    assert [about_change(name)["same"] for name in names] == same
    assert [about_change(name)["base_is"] for name in names] == [*BASES] * 2
    for word, kind in (("flex", "attention"), ("planted::addmm", "product")):
        for name, both in sources.items():
            assert [word in text for text in both] == [kind in name] * 2
    for base, head in [*sources.values()][6:]:
        sides = zip(base.splitlines(), head.splitlines(), strict=True)
        assert len([1 for before, after in sides if before != after]) == 1
