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
    USUAL,
    Card,
    Trees,
    about_change,
    identity_of,
    merged,
    order_of,
)
from benchmarks.longer_kernels import (
    BASES,
    LONGER_ATTENTION,
    LONGER_GELU,
    LONGER_IN_PART,
    LONGER_PRODUCT,
)
from benchmarks.shared import GPT
from benchmarks.single_pairs import single_pairs
from stepguard.core.margins import Prior
from stepguard.core.profile import KernelRow, Parts, Profile
from stepguard.core.replies import Kernels
from stepguard.judge.rules.changed_kernels import KERNEL_MARGINS
from stepguard.measure.warm_up import PAIR_PROTOCOLS

STEP_US = 270_000.0
PLANTED = [*LONGER_GELU][0]
# Name, class, launches and share of a step in percent: about those of the 124M step.
STEP = (
    ("nvjet_NNN", "GEMM", 98, 18.0),
    ("nvjet_TNN", "GEMM", 96, 12.6),
    ("nvjet_NTN", "GEMM", 48, 7.5),
    ("sdpa_bprop", "attention", 24, 8.8),
    ("sdpa_fprop", "attention", 24, 3.1),
    ("triton_poi_fused_gelu_view_9", "Triton", 24, 2.6),
    ("triton_per_fused_norm_10", "Triton", 46, 4.7),
    ("triton_red_fused_loss_11", "Triton", 2, 3.6),
    ("triton_poi_fused_cat_12", "Triton", 24, 1.8),
)


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


def test_a_launch_without_a_profile_is_refused():
    """As are launches that have not equally many."""
    with pytest.raises(ValueError, match="profiles of each launch"):
        times_of([(launch(), launch())])
    with pytest.raises(ValueError, match="profiles of each launch"):
        times_of([(launch(step()), launch(step(), step()))])


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


def test_single_pairs_are_all_pairs_of_equal_code(rated):
    """On each GPU, and of one with the other. A kernel that is longer on one GPU shows there alone.
    A launch that ran other kernels than most is left out.
    """
    alike = rated[0].alike()
    (first, launches), (second, _) = alike.items()
    rows = {(row["gpus"], row["kernels"]): row for row in single_pairs(alike)}
    assert {gpus for gpus, _ in rows} == {"one", "two"}
    assert rows["one", "one"]["values"] == 2 * 15 * 14 * len(STEP)
    assert rows["two", "one"]["values"] == 2 * 15 * 15 * len(STEP)
    assert rows["two", "one"]["low_end_pct"] < 0.1 < rows["two", "one"]["of_1000_pct"] < 0.5
    shares = [rows["one", kind]["largest_pct"] for kind in ("one", "10 %", "50 %")]
    assert shares[0] < shares[2] > shares[1] and all(0 < share < 3 for share in shares)
    assert not any(row["red"] for row in rows.values())
    slow = [longer_by(one, "triton_per_fused_norm_10", 0.01 * STEP_US) for one in launches]
    moved = {(row["gpus"], row["kernels"]): row for row in single_pairs(alike | {first: slow})}
    assert moved["two", "one"]["largest_pct"] == pytest.approx(1.0, abs=0.2)
    assert moved["two", "one"]["low_end_pct"] == pytest.approx(0.45, abs=0.1)
    assert moved["one", "one"]["largest_pct"] < 0.3
    assert moved["two", "one"]["red"] > 0 == moved["one", "one"]["red"]
    other = longer_by(launches[0], "triton_per_fused_norm_10", 0.05 * STEP_US, code="other")
    cold = single_pairs({first: [other, *launches[1:]], second: alike[second]})
    assert cold[0]["values"] == (14 * 13 + 15 * 14) * len(STEP) and cold[0]["largest_pct"] < 0.3


def longer_by(one, name, us, **changes):
    """The launch, whose kernel of this name takes so many us a step longer."""
    turns = []
    for turn in one.turns:
        rows = (
            replace(row, us=tuple(its + us for its in row.us), **changes)
            if row.name == name
            else row
            for row in turn.kernels
        )
        turns.append(replace(turn, kernels=tuple(rows)))
    return replace(one, turns=tuple(turns))


def test_what_was_planted_is_found_by_re_pairing_too(rated, monkeypatch):
    """Three launches of it on each GPU make verdicts of up to three pairs. It is found as often as
    the size nearest to its own, and a smaller one is found less often.
    """
    monkeypatch.setattr(kernel_rates, "DRAWS", 100)
    rows = kernel_rates.planted_rates(rated[0])
    assert [(row["change"], row["pairs"]) for row in rows] == [(PLANTED, 2), (PLANTED, 3)]
    for row in rows:
        found = {size: one["by_kernels"][0] for size, one in row["found"].items()}
        assert all(one["verdicts"] == 200 for one in row["found"].values())
        assert row["found"]["recorded"]["red"][0] > 100
        assert found["recorded"] == pytest.approx(found["0.3"], abs=10)
        assert found["0.05"] <= found["0.1"] <= found["0.2"] < found["0.3"]


def test_another_size_moves_the_kernels_and_the_steps_alike(monkeypatch):
    """Launches that do not scatter: the size alone decides what the kernels say. Steps that are no
    slower forbid what is made smaller, but not yet what was recorded.
    """
    monkeypatch.setattr(kernel_rates, "DRAWS", 20)
    base, longer = launch(step()), {"triton_poi_fused_cat_12": 0.4 / 100 * STEP_US}
    rows = tuple(replace(row, code="d") if row.name in longer else row for row in step({}, longer))
    for step_pct, forbidden in ((0.4, []), (-0.01, ["0.1", "0.2"])):
        head = launch(rows, block_ms=(270.0 * (1 + step_pct / 100),) * 2)
        pairs = ((PLANTED, "a", False, (base, head)),) * 2
        (row,) = kernel_rates.planted_rates(kernel_rates.Recorded(pairs))
        found = {size: one["by_kernels"][0] for size, one in row["found"].items()}
        assert found == {"recorded": 20, "0.05": 0, "0.1": 20, "0.2": 20, "0.3": 20}
        red = {size: one["red"][0] for size, one in row["found"].items()}
        assert [size for size in found if red[size] < found[size]] == forbidden


def test_the_command_writes_the_tables(rated, tmp_path, monkeypatch, capsys):
    """All of them, as valid JSON; a file without profiles is refused."""
    monkeypatch.setattr(kernel_rates, "DRAWS", 5)
    path, out = tmp_path / "kernels.json", tmp_path / "rates.json"
    small = [one for one in rated[0].pairs if one[1].startswith("GPU-a")][-5:]
    path.write_text(json.dumps(recording([(name, "a", *pair) for name, _, _, pair in small])))
    monkeypatch.setattr("sys.argv", ["kernel_rates", str(path), "--out", str(out)])
    assert kernel_rates.main() in (0, 1)
    assert set(json.loads(out.read_text())) >= {"changes", "scatter", "single_pairs", "planted"}
    assert "scatter_by_class:" in capsys.readouterr().out
    path.write_text(json.dumps({"pairs": [], "kernels": {}}))
    with pytest.raises(SystemExit):
        kernel_rates.main()
    assert "they need a GPU" in capsys.readouterr().err


def test_a_pair_that_lacks_a_profile_is_left_out(tmp_path):
    """Its turns cannot be compared with the others'. Without any profile no pair is left."""
    whole, part = launch(step(), step()), launch(step())
    pairs = [(NOTHING, "a", whole, whole), (NOTHING, "b", whole, part)]
    document, path = recording(pairs), tmp_path / "kernels.json"
    path.write_text(json.dumps(document))
    assert [gpu for _, gpu, *_ in kernel_rates.Recorded.read(path).pairs] == ["a, base as it is"]
    for pair in document["pairs"]:
        for side in ("base", "head"):
            pair[side]["turns"] = [{"problem": "a CPU has no kernels"}] * 2
    path.write_text(json.dumps(document))
    assert kernel_rates.Recorded.read(path).pairs == ()


def test_a_launch_is_in_a_verdict_once(rated):
    """No number of pairs has a verdict with a launch twice; too few launches give none."""
    scatter = next(iter(rated[1].values()))
    places = {place: pair for pair, place in scatter.pairs.items()}
    for verdict in kernel_rates.draws(scatter, 4, random.Random(0)):
        launches = [one for place in verdict for one in places[place]]
        assert len({*launches}) == 8
    assert kernel_rates.draws(scatter, 8, random.Random(0)) == []


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


def test_a_short_run_has_every_change():
    """Cards begin with different ones; what cards found becomes one document."""
    changes = [*USUAL]
    assert [order_of(changes, card, 4)[0] for card in range(4)] == changes
    assert order_of(changes, 1, 2) == changes[2:] + changes[:2]
    assert {order_of(changes, card, 8)[0] for card in range(8)} == {*changes}
    one = {"pairs": [1], "kernels": {"a": 1}, "failed": ["no"]}
    both = merged([one, {"pairs": [2], "kernels": {"b": 2}, "failed": []}, {}])
    assert both == {"pairs": [1, 2], "kernels": {"a": 1, "b": 2}, "failed": ["no"]}


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
