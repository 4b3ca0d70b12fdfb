"""Evidence: its JSON form, and the figures that follow from its samples."""

import json
from dataclasses import fields

import pytest
from builders import (
    CASE,
    COUNTS,
    FINGERPRINT,
    PROPERTY,
    SOFTWARE,
    TOKENS,
    block,
    block_of,
    evidence,
    launch,
    replace,
    values_of,
)
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.evidence import (
    Block,
    Counts,
    Disturbance,
    Evidence,
    Fault,
    Launch,
    from_json,
    to_json,
)
from stepguard.core.fingerprint import Fingerprint
from stepguard.core.metrics import METRICS, default_gates
from stepguard.core.profile import KernelRow, Parts, Profile
from stepguard.core.reason_sentences import Missing
from stepguard.core.reasons import Reason
from stepguard.core.strict_json import LARGEST

FINITE = st.floats(-LARGEST, LARGEST)
MS = st.floats(1e-3, 1e6)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.integers(0, 2**53)
CODES = st.sampled_from(list(Reason))
COUNTERS = st.sampled_from([name for name, row in METRICS.items() if row.kind == "counter"])
BLOCKS = st.builds(
    Block, steps=st.integers(1, 10**6), wall_ms=st.tuples(MS, MS), events_ms=st.tuples(MS, MS),
    step_ms=st.lists(MS, max_size=4).map(tuple), enqueue_ms=st.none() | FINITE,
    energy_j=st.none() | FINITE,
    disturbance=st.none() | st.builds(Disturbance, reason=CODES, text=TEXT))  # fmt: skip
LAUNCHES = st.builds(
    Launch, index=st.integers(1, 99), blocks=st.lists(BLOCKS, max_size=2).map(tuple),
    compile_s=FINITE, warmup_s=FINITE, warmup_steps=COUNT, steady=TEXT, wall_s=FINITE,
    discarded=st.lists(BLOCKS, max_size=1).map(tuple))  # fmt: skip
COUNTED = st.builds(
    lambda counts, steps: replace(counts, lists=dict.fromkeys(counts.values, tuple(steps))),
    st.builds(Counts, values=st.dictionaries(COUNTERS, COUNT, max_size=2),
              unstable=st.dictionaries(COUNTERS, TEXT, max_size=2),
              detail=st.dictionaries(
                  COUNTERS, st.dictionaries(TEXT, COUNT, max_size=2), max_size=2),
              after_steps=st.none() | COUNT, wall_s=FINITE),
    st.lists(COUNT, min_size=2, max_size=3))  # fmt: skip
EVIDENCE = st.builds(
    Evidence,
    case_id=TEXT,
    case=st.dictionaries(TEXT, TEXT | st.none() | st.booleans() | COUNT | FINITE, max_size=3).map(
        lambda params: CASE | {"params": params}
    ),
    date=TEXT,
    commit=TEXT,
    dirty=st.lists(TEXT, max_size=2).map(tuple),
    command=TEXT,
    planned_launches=st.integers(0, 9),
    gates=st.lists(st.sampled_from(default_gates("cuda")), max_size=2).map(tuple),
    fingerprint=st.none()
    | st.builds(
        Fingerprint,
        device_name=TEXT,
        device_uuid=TEXT,
        torch=TEXT,
        peak_flops=st.none() | FINITE,
        environment=st.dictionaries(TEXT, TEXT, max_size=2),
    ),
    launches=st.lists(LAUNCHES, max_size=2).map(tuple),
    counts=st.none() | COUNTED,
    faults=st.lists(
        st.builds(Fault, code=CODES, message=TEXT, detail=TEXT, during=TEXT), max_size=2
    ).map(tuple),
    tokens_per_step=COUNT,
    flops_per_step=FINITE,
    floor_flops_per_step=FINITE,
    wall_s=FINITE,
)


@PROPERTY
@given(EVIDENCE)
def test_json_and_back_without_loss(found):
    """Reading what was written gives the same evidence, raw samples included."""
    assert from_json(to_json(found), "x") == found


@pytest.mark.parametrize(("changes", "says"), [
    ({"gates": ("step_parsecs",)}, "'step_parsecs' is not known to this version"),
    ({"faults": (Fault("GREMLINS", "m"),)}, "Invalid enum value 'GREMLINS'"),
], ids=["gate", "fault"])  # fmt: skip
def test_evidence_of_a_newer_version_is_refused(changes, says):
    """A gate or a reason code that this version does not know is an error, not passed over."""
    with pytest.raises(ValueError, match=f"evidence.json: .*{says}"):
        from_json(to_json(replace(evidence(), **changes)), "evidence.json")


@pytest.mark.parametrize("margins_pct", [(1.0,), (3.0, 1.0), (0.1, 0.2, 0.3)])
def test_margins_that_are_none_are_refused(margins_pct):
    """They would be recorded as what the case may have from then on."""
    with pytest.raises(ValueError, match="evidence.json: .*two percentages, 0 <= ignore < matter"):
        from_json(to_json(replace(evidence(), margins_pct=margins_pct)), "evidence.json")


def test_json_is_plain():
    """The document is JSON that any reader takes, with units in its keys."""
    document = json.loads(to_json(evidence()))
    assert document["schema"] == 2
    assert document["launches"][0]["blocks"][0]["wall_ms"] == [2500.0]
    assert set(document) == {field.name for field in fields(Evidence)}


@pytest.mark.parametrize("text", [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"case_id": "x"}', to_json(evidence())[:-2],
], ids=["empty", "cut", "list", "null", "no utf-8", "fields missing", "truncated"])  # fmt: skip
def test_bad_json_names_its_source(text):
    """Whatever is not evidence raises ValueError that says which file it was."""
    with pytest.raises(ValueError, match="^run-7/evidence.json: no evidence"):
        from_json(text, "run-7/evidence.json")


@pytest.mark.parametrize(
    ("us", "words"), [((1.0,), "not every figure"), ((1.0, -9.0), "that no profiler measures")]
)
def test_a_profile_that_cannot_be_is_refused(us, words):
    """Every figure is of all steps, and a time; evidence of before has no profile and is read."""
    both = (1.0, 2.0)
    row = KernelRow("gemm", "gemm", "GEMM", "forward", both, both)
    whole = Profile("H200", 1, Parts(*(both,) * 5), (row,), (), {"cudaLaunchKernel": both})
    found = evidence()
    counts = replace(found.counts, profile=whole)
    sound = to_json(replace(found, counts=counts))
    assert from_json(sound, "x").counts == counts
    wrong = replace(counts, profile=replace(whole, kernels=(replace(row, us=us),)))
    with pytest.raises(ValueError, match=words):
        from_json(to_json(replace(found, counts=wrong)), "x")
    old = json.loads(sound)
    for name in ("profile", "profile_problem", "parts_by_rank"):
        del old["counts"][name]
    assert from_json(json.dumps(old).encode(), "x").counts.profile is None


def test_another_schema_is_refused():
    """A schema of the future raises ValueError that names both versions and the file."""
    with pytest.raises(
        ValueError, match="^source: evidence schema 3, this version of stepguard reads 2$"
    ):
        from_json(to_json(evidence(schema=3)), "source")


def test_a_blocks_time_is_the_slowest_ranks_wall_over_its_steps():
    """10 steps in 2.0 s, 30 in 9.0 s, on the slower rank."""
    one = block(steps=10, wall_ms=(2000.0, 1000.0), events_ms=(2000.0, 1000.0))
    two = block(steps=30, wall_ms=(1000.0, 9000.0), events_ms=(1000.0, 9000.0))
    assert (one.mean_ms, two.mean_ms) == (200.0, 300.0)


def test_a_launchs_time_is_the_mean_of_its_steps_up_to_a_cap():
    """Steps of 200 and 240 ms count in full; one of 500 counts for 1.25 medians of 200."""
    one = block_of([200.0] * 10, 0)
    two = block_of([200.0] * 8 + [240.0, 500.0], 10)
    found = launch(blocks=(one, two))
    assert found.step_ms == pytest.approx((18 * 200 + 240 + 250) / 20)
    assert found.plain_step_ms == pytest.approx((18 * 200 + 240 + 500) / 20)
    assert found.step_ms_median == 200.0


def test_median_is_over_single_steps_of_all_blocks():
    """The median of 1, 2, 3, 4 and 100 is 3, however they lie in blocks."""
    blocks = (block(step_ms=(1.0, 100.0)), block(step_ms=(2.0, 3.0, 4.0)))
    assert launch(blocks=blocks).step_ms_median == 3.0


def of(*blocks, **changes):
    """Evidence of one launch with these blocks."""
    return evidence(launches=(launch(blocks=blocks, **changes),))


ENQUEUED = tuple(block(enqueue_ms=ms) for ms in (1.0, 2.0, 9.0, None))
QUICK, COLD = launch(compile_s=3.0), launch(compile_s=24.0, cold=True)


@pytest.mark.parametrize(("found", "figures"), [
    # Launches are averaged on logs.
    (evidence((100.0, 400.0)),
     {"step_ms": 200.0, "step_ms_median": 200.0, "tokens_per_s": TOKENS / 0.2}),
    (evidence(), {"mfu_pct": 40.0, "enqueue_ms": None}),
    (evidence(case=CASE | {"world_size": 4}), {"mfu_pct": 10.0}),  # of each GPU
    (evidence(flops_per_step=0.0), {"mfu_pct": None}),
    (evidence(fingerprint=None), {"mfu_pct": None}),
    (evidence(fingerprint=replace(FINGERPRINT, peak_flops=None)), {"mfu_pct": None}),
    (of(block(energy_j=600.0), block(energy_j=1200.0)), {"energy_j_per_step": 90.0}),
    (of(block(energy_j=600.0), block()), {"energy_j_per_step": None}),
    (of(*ENQUEUED), {"enqueue_ms": 2.0}),
    (evidence(launches=(QUICK, launch(compile_s=24.0))), {"compile_s": 24.0}),
    # Later launches do not repeat what a cold cache takes.
    (evidence(launches=(COLD, QUICK)), {"compile_s": 3.0}),
    (evidence(launches=(COLD,)), {"compile_s": None}),
])  # fmt: skip
def test_figures_follow_from_samples(found, figures):
    """And are missing where a sample is, rather than wrong."""
    values = values_of(found)
    for name, figure in figures.items():
        assert values.get(name) == (figure and pytest.approx(figure)), name


def test_counts_and_tokens_are_values():
    """Counters and tokens stand among the values, with launches and without."""
    assert values_of(evidence(launches=())) == COUNTS | {"tokens_per_step": TOKENS}
    assert values_of(evidence(launches=(), counts=None, tokens_per_step=0)) == {}


def test_the_floor_is_fewest_flops_over_highest_peak():
    """1e14 FLOP at 1e15 FLOP/s take 100 ms; unknown peaks give no floor."""
    assert evidence().floor_ms() == pytest.approx(100.0)
    assert evidence(fingerprint=None).floor_ms() is None
    assert evidence(fingerprint=replace(FINGERPRINT, floor_flops=None)).floor_ms() is None


def test_software_key_holds_versions_and_no_machine():
    """What must be equal for a comparison: versions, the driver's branch, no UUID and no name."""
    assert FINGERPRINT.software_key(1) == SOFTWARE
    assert replace(FINGERPRINT, nccl="2.28.9").software_key(2) == SOFTWARE | {"nccl": "2.28.9"}


def test_steering_variables_are_part_of_the_software():
    """Figures taken with TF32 forced on, say, are not compared with others."""
    plain = FINGERPRINT.software_key(1)
    steered = replace(FINGERPRINT, environment={"NVIDIA_TF32_OVERRIDE": "1", "NCCL_DEBUG": "INFO"})
    assert steered.software_key(1) == plain | {"environment": "NVIDIA_TF32_OVERRIDE=1"}
    harmless = replace(FINGERPRINT, environment={"NCCL_DEBUG": "INFO"})
    assert harmless.software_key(1) == plain and harmless.software_key(2) != steered.software_key(2)


@pytest.mark.parametrize("variable", [
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUBLASLT_WORKSPACE_SIZE", "CUDA_DEVICE_MAX_CONNECTIONS",
    "TORCH_BLAS_PREFER_CUBLASLT", "TRITON_INTERPRET", "LD_PRELOAD", "MALLOC_ARENA_MAX",
    "PYTHONDEVMODE",
])  # fmt: skip
def test_what_slows_down_both_sides_of_a_pair_steers(variable):
    """A workflow's file may set it: beside each other two such steps look unchanged."""
    plain = FINGERPRINT.software_key(1)
    steered = replace(FINGERPRINT, environment={variable: "1"})
    assert steered.software_key(1) == plain | {"environment": f"{variable}=1"}


def test_what_steers_the_exchange_counts_where_there_is_one():
    """NCCL without peer-to-peer is other software for two ranks, and nothing for one."""
    alone = replace(FINGERPRINT, environment={"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "a"})
    assert alone.software_key(1) == FINGERPRINT.software_key(1)
    assert alone.software_key(2)["environment"] == "NCCL_P2P_DISABLE=1"
    assert "environment" not in replace(alone, cuda="").software_key(2)  # gloo


def test_a_block_with_the_times_of_other_steps_is_no_time():
    """A block that says 400 steps and brings 4 would be a hundred times too fast."""
    good = block()
    assert good.bad_times() is None
    steps = good.steps * 100
    wrong = Missing(what="times of a block", found=good.steps, needed=steps)
    assert replace(good, steps=steps).bad_times() == wrong
