"""Builders of sound evidence and baselines; a test changes the one thing that it is about.

The figures are round, so that what follows from them can be said by hand: 3 launches of 3 blocks of
10 steps, 250 ms a step, 131,072 tokens, a physical floor of 100 ms.
"""

import dataclasses
import math

import msgspec
from counts import counted
from hypothesis import HealthCheck, settings

from stepguard.core.evidence import Block, Counts, Evidence, Launch
from stepguard.core.fingerprint import Fingerprint
from stepguard.core.metrics import METRICS, default_gates
from stepguard.core.recording import SCHEMA, BaselineFile, Entry, Epoch, Recording
from stepguard.judge.compare_metric import compare
from stepguard.judge.summarise_evidence import summarise


def replace(value, /, **changes):
    """A frozen value of either kind, with these changes."""
    kind = msgspec.structs if isinstance(value, msgspec.Struct) else dataclasses
    return kind.replace(value, **changes)


PROPERTY = settings(
    max_examples=100, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip

CASE_ID = "train_step[124m-bf16]"
CASE = {"workload": "model.workloads:train_step",
        "params": {"batch": 64, "compile": True, "size": "124m"}, "device": "cuda",
        "world_size": 1}  # fmt: skip
TOKENS = 131_072
KNOWN_COUNTS = {"flops_per_step": 112_000_000_000_000, "operator_calls_per_step": 2400,
                "compiled_operator_calls_per_step": 600, "launches_per_step": 1000,
                "generated_kernels": 80, "graph_breaks": 1, "unique_graphs": 2,
                "peak_allocated_bytes": 45_000_000_000}  # fmt: skip
COUNTS = counted(KNOWN_COUNTS, "cuda")
DETAIL = {"operator_calls_per_step": {"aten.mm.default": 24, "aten.add.Tensor": 2376}}
FINGERPRINT = Fingerprint(
    device_name="NVIDIA H200", device_uuid="GPU-1234", torch="2.11.0+cu130", cuda="13.0",
    cudnn="91900", triton="3.6.0", driver="580.159", arch="x86_64", peak_flops=1e15,
    floor_flops=1e15)  # fmt: skip
SOFTWARE = {
    "torch": "2.11.0", "cuda": "13.0", "cudnn": "91900", "triton": "3.6.0", "driver_branch": "580",
    "arch": "x86_64",
}  # fmt: skip


def values_of(found):
    """Every figure of an evidence, by metric."""
    return summarise(found).values()


def compared(metric, found, past):
    """A metric of an evidence against recordings."""
    return compare(metric, summarise(found), past, found.gates)


def metric(verdict, name):
    """The verdict on one metric."""
    return next(found for found in verdict.metrics if found.metric == name)


def block(ms=250.0, steps=10, **changes):
    """A block whose every step takes ``ms``, on one rank."""
    wall = (ms * steps,)
    fields = {"steps": steps, "wall_ms": wall, "events_ms": wall, "step_ms": (ms,) * steps}
    return Block(**fields | changes)


def block_of(step_ms, ran):
    """A block of steps that take so many ms each, behind so many others."""
    wall = (math.fsum(step_ms),)
    return block(steps=len(step_ms), step_ms=tuple(step_ms), wall_ms=wall, events_ms=wall, ran=ran)


def launch(ms=250.0, index=1, **changes):
    """A launch of three such blocks."""
    fields = {"index": index, "blocks": (block(ms),) * 3, "compile_s": 30.0, "warmup_s": 6.0}
    fields |= {"warmup_steps": 24, "steady": "", "wall_s": 60.0}
    return Launch(**fields | changes)


def evidence(launch_ms=(250.0, 250.0, 250.0), **changes):
    """Sound evidence of a case on a GPU, with a launch for each of ``launch_ms``."""
    sound = Evidence(
        case_id=CASE_ID, case=CASE, date="2026-11-20T10:00:00+00:00", commit="a" * 40, dirty=(),
        command="pytest perf_tests", planned_launches=len(launch_ms), gates=default_gates("cuda"),
        fingerprint=FINGERPRINT,
        launches=tuple(launch(ms, number) for number, ms in enumerate(launch_ms, start=1)),
        counts=Counts(dict(COUNTS), {}, DETAIL), tokens_per_step=TOKENS, flops_per_step=1.0e14,
        floor_flops_per_step=1.0e14, wall_s=200.0)  # fmt: skip
    return replace(sound, **changes)


def cpu_evidence(**changes):
    """Sound evidence of a case on a CPU, where counters alone decide."""
    sound = evidence(
        (5.0,),
        case_id="forward[nano-cpu]",
        case=CASE | {"device": "cpu"},
        gates=default_gates("cpu"),
        fingerprint=Fingerprint("x86_64", "", "2.11.0+cpu", arch="x86_64"),
        counts=Counts(counted(KNOWN_COUNTS, "cpu"), {}, DETAIL),
    )
    return replace(sound, **changes)


def two_rank_evidence(**changes):
    """Sound evidence of a case on two GPUs, which has collectives."""
    sound = evidence(
        case=CASE | {"world_size": 2},
        gates=default_gates("cuda", 2),
        counts=Counts(counted(KNOWN_COUNTS, "cuda", 2), {}, DETAIL),
    )
    return replace(sound, **changes)


def evidence_having(name):
    """Sound evidence of a case that has the metric: on a GPU, else on a CPU, else on two GPUs."""
    if METRICS[name].exists("cuda", 1):
        return evidence()
    return cpu_evidence() if METRICS[name].exists("cpu", 1) else two_rank_evidence()


def with_counts(found, **values):
    """``found`` with some counters set."""
    assert found.counts is not None
    return replace(found, counts=replace(found.counts, values=found.counts.values | values))


def recording(ms=250.0, number=0, **changes):
    """A recording at ``ms`` a step, the ``number``th of its epoch."""
    fields = {"date": f"2026-10-{1 + number:02d}T10:00:00+00:00", "commit": f"{number:040x}",
              "device_uuid": "GPU-1234", "software": SOFTWARE, "driver": "580.159",
              "tokens_per_step": TOKENS, "times_ms": {"step_ms": [ms, ms, ms]},
              "counters": dict(COUNTS), "information": {"mfu_pct": 45.0},
              "detail": DETAIL}  # fmt: skip
    return Recording(**fields | changes)


def epoch(levels_ms=(250.0,), **changes):
    """An epoch with a recording at each of ``levels_ms``."""
    recordings = [recording(ms, number) for number, ms in enumerate(levels_ms)]
    fields = {"reason": "first recording", "recordings": recordings}
    return Epoch(**fields | changes)


def entry(levels_ms=(250.0,), **changes):
    """A baseline of one epoch."""
    return Entry(**{"case": CASE, "epochs": [epoch(levels_ms)]} | changes)


def one_recording(**changes):
    """A baseline of one recording, with some of its fields changed."""
    return entry(epochs=[epoch(recordings=[recording(**changes)])])


def entry_of(found, **changes):
    """A baseline of one recording of the counts of ``found``, by default at 250 ms a step."""
    counters, software = dict(found.counts.values), found.software_key()
    recorded = recording(**{"counters": counters, "software": software} | changes)
    return entry(case=found.case, epochs=[epoch(recordings=[recorded])])


def baseline_file(**changes):
    """A file with one case."""
    fields = {"schema": SCHEMA, "machine": "NVIDIA H200", "cases": {CASE_ID: entry()}}
    return BaselineFile(**fields | changes)
