"""Profiles of steps: taken again where the GPU's records are not whole, by all ranks alike."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from stepguard.core.profile import KernelRow, Parts, Profile
from stepguard.core.replies import Kernels
from stepguard.trace.chrome_trace import DetailedEvent
from stepguard.trace.host_steps import read_steps
from stepguard.worker.counters import profiled_steps
from stepguard.worker.counters.profiled_steps import (
    MARK,
    PROFILED_STEPS,
    TakenProfile,
    read_trace,
    unprofiled,
)
from stepguard.worker.counters.tally import RankStep, Tally
from stepguard.worker.rank_position import MICRO_STEP
from stepguard.worker.rank_session import Session
from stepguard.worker.workload import BadWorkload


@pytest.mark.parametrize(("lost", "others_lost", "profiles"), [
    ([0], [False], 1), ([0, 0], [True, False], 2), ([1, 0], [False, False], 2),
    ([1] * 3, [0] * 3, 3),
])  # fmt: skip
def test_all_ranks_profile_again_if_one_has_to(monkeypatch, lost, others_lost, profiles):
    """A rank whose own trace is whole takes part: its steps have the others' exchanges."""
    found = read_steps([DetailedEvent(MARK, "X", "user_annotation", 0.0, 1.0)], MARK, 1)
    taken = iter([[replace(found[0], lost_copies=count)] for count in lost])
    monkeypatch.setattr(profiled_steps, "take_profile", lambda *rest: next(taken))
    monkeypatch.setattr(profiled_steps, "read_trace", lambda tally, it: setattr(tally, "calls", it))
    others = iter(others_lost)
    asked = []

    def any_rank(own):
        asked.append(own)
        return own or bool(next(others))

    counted = RankStep(lambda: None, torch.device("cpu"), any_rank=any_rank)
    profiled_steps.trace_steps(Tally(), counted)
    assert asked == [bool(count) for count in lost[:profiles]] and next(taken, None) is None


@pytest.mark.parametrize("begins", ["in each step", "in some steps", "before all steps"])
def test_a_step_that_profiles_itself_is_refused(begins):
    """Whenever its profiler begins; afterwards a profiler begins as ever."""
    own = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=1),
    )
    steps = {"in each step": own.prepare_trace, "in some steps": own.step}
    with torch.profiler.profile() if begins == "before all steps" else nullcontext():
        with pytest.raises(BadWorkload, match="turns on torch's profiler"):
            run = unprofiled(steps.get(begins, list))
            for _ in range(3):
                run()
    with torch.profiler.profile():
        pass


def test_a_phase_is_a_range_and_a_micro_step_is_none():
    """Kernels of all micro-steps share a row of the profile, one for each phase."""
    with torch.profiler.profile() as profiled:
        for name in (f"{MICRO_STEP}0", "forward"):
            with profiled_steps._phase(name):
                torch.ones(1).add(1)
    names = {event.name for event in profiled.events()}
    assert "forward" in names and f"{MICRO_STEP}0" not in names


def counted_of(text, monkeypatch):
    """Count a step of which the profiler wrote ``text``."""
    write = lambda _, path: Path(path).write_text(text)  # noqa: E731
    monkeypatch.setattr(profiled_steps.profile, "export_chrome_trace", write)
    profiled_steps.trace_steps(Tally(), RankStep(lambda: None, torch.device("cpu")))


@pytest.mark.parametrize("text", ["", '{"traceEvents": [{"ph": "X",'])
def test_a_trace_that_found_no_room_says_so(text, monkeypatch):
    """On a full disk torch writes what it can, and says nothing."""
    words = rf"no whole trace to .* \({len(text)} bytes of it\): make room"
    with pytest.raises(OSError, match=words):
        counted_of(text, monkeypatch)


def test_a_wrong_event_leaves_no_count(monkeypatch):
    """Wherever it is in the trace: what is wrong once may be wrong in what is counted."""
    text = json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm"}]})
    with pytest.raises(RuntimeError, match="trace cannot be read.*has no begin or no length"):
        counted_of(text, monkeypatch)


def test_a_profile_arrives_as_it_was_taken(monkeypatch):
    """In plain types, which can be sent, and once only. On a CPU there is none."""
    parts = Parts((2.0, 3.0), (1.0, 2.0), (0.0, 0.0), (0.0, 0.0), (1.0, 1.0))
    row = KernelRow("mul", "mul", "elementwise", "forward", (1, 1), (1.0, 2.0), (8, 1, 1))
    taken = Profile("NVIDIA H100", 1, parts, (row,), ())
    rank = RankStep(lambda: torch.ones(1).add(1), torch.device("cpu"))
    monkeypatch.setattr(Session, "_step", lambda session: rank)
    session = Session.__new__(Session)
    session.do_profile()
    assert session.do_kernels().profile is None
    monkeypatch.setattr(TakenProfile, "kernels", lambda kept: (taken, ""))
    session.do_profile()
    sent = json.loads(json.dumps(msgspec.to_builtins(session.do_kernels())))
    assert msgspec.convert(sent, Kernels).profile == taken
    with pytest.raises(RuntimeError, match="no profile was taken"):
        session.do_kernels()


def test_the_kernels_are_read_alone_as_with_all_counts(monkeypatch):
    """The profile of a pair's launch is compared with one that the counting pass read. Both have
    the same rows.
    """
    steps = PROFILED_STEPS
    marks = [gpu_step(at) for at in range(steps)]
    text = json.dumps({"traceEvents": [event for each in marks for event in each]})
    monkeypatch.setattr(
        profiled_steps.profile,
        "export_chrome_trace",
        lambda _, path: Path(path).write_text(text),
    )
    taken = TakenProfile(torch.profiler.profile(), steps, on_gpu=True)
    profile, problem = taken.kernels()
    everything = Tally()
    read_trace(everything, taken)
    assert (profile, problem) == (everything.profile, everything.profile_problem)
    assert profile is not None and profile.steps == steps - 1
    assert [(row.name, row.us, row.work.flops) for row in profile.kernels] == [
        ("gemm", (60.0,) * (steps - 1), 2.0 * 8 * 8 * 8)
    ]


def gpu_step(at):
    """A step's events: a mark, a product that calls a launch, and the GPU's record of it."""
    begin = 100.0 * at
    shapes = {"Input Dims": [[8, 8], [8, 8]], "Input type": ["float", "float"]}
    both = {"External id": at + 1, "correlation": at + 1}
    return [
        event(MARK, "user_annotation", begin, 90.0),
        event("aten::mm", "cpu_op", begin + 1, 20.0, **shapes, **{"External id": at + 1}),
        event("cudaLaunchKernel", "cuda_runtime", begin + 5, 5.0, **both),
        event("gemm", "kernel", begin + 30, 60.0, device=0, stream=7, grid=[1, 1, 1], **both),
    ]


def event(name, category, begin, us, **args):
    """A complete event of a trace."""
    return {
        "ph": "X", "name": name, "cat": category, "ts": begin, "dur": us, "pid": 1, "tid": 1,
        "args": args,
    }  # fmt: skip
