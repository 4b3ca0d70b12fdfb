"""The forward pass of a loop that names no phase, from what autograd computes the gradients of."""

import pytest
import torch
from kineto import AUTOGRAD, Kineto
from torch.profiler import profile, record_function

from stepguard.trace.chrome_trace import decode_all
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.phases import find_passes

NODE = "autograd::engine::evaluate_function: MmBackward0"


def one_step():
    """A step's operators: a copy of the batch at 10, the forward pass from 100 to 200, the backward
    pass from 300 to 400.
    """
    trace = Kineto()
    trace.operator("aten::copy_", 10, 20)
    trace.operator("aten::linear", 100, 150)
    trace.operator("aten::mm", 110, 140, differentiated=True)
    trace.operator("aten::nll_loss", 180, 200, differentiated=True)
    trace.operator("aten::clone", 210, 220)
    trace.operator(NODE, 300, 400, AUTOGRAD)
    return trace


def passes_of(trace):
    """The passes through phases, as (path, begin, end) in us from the first event on."""
    passes = find_passes(trace.read(), usual_classes())
    return [(found.path, found.start_us, found.end_us) for found in passes]


def micro_step(trace):
    """Add another forward pass and its backward pass."""
    trace.operator("aten::mm", 1500, 1600, differentiated=True)
    trace.operator(NODE, 1700, 1800, AUTOGRAD)


def short_step(trace):
    """Add a step whose backward pass begins soon after that of the step before it."""
    trace.annotation("ProfilerStep#2", 450, 900)
    trace.operator("aten::mm", 500, 600, differentiated=True)
    trace.operator(NODE, 700, 800, AUTOGRAD)


FORWARD, BACKWARD = ("forward", 90, 190), ("backward", 290, 390)


@pytest.mark.parametrize(("added", "expected"), [
    # From the outermost operator around the first that has a gradient to the last one.
    (lambda trace: None, [FORWARD, BACKWARD]),
    (micro_step, [FORWARD, BACKWARD, ("forward", 1490, 1590), ("backward", 1690, 1790)]),
    (short_step, [FORWARD, BACKWARD, ("forward", 490, 590), ("backward", 690, 790)]),
    # A checkpointed block runs its forward pass once more.
    (lambda trace: trace.operator("aten::mm", 320, 340, AUTOGRAD, differentiated=True),
     [FORWARD, BACKWARD]),
    # DDP annotates the model alone: the loss behind it belongs to the pass.
    (lambda trace: trace.annotation("DistributedDataParallel.forward", 90, 160),
     [("forward", 80, 190), BACKWARD]),
    (lambda trace: trace.annotation("attention", 120, 130),
     [FORWARD, ("forward/attention", 110, 120), BACKWARD]),
])  # fmt: skip
def test_passes_are_found_by_operators_and_their_gradients(added, expected):
    """What the loop launches before or between them is in none."""
    trace = one_step()
    added(trace)
    assert passes_of(trace) == expected


def test_a_backward_pass_in_which_the_host_is_stopped_is_one():
    """However long: what tells two of them apart are the operators in between."""
    trace = one_step()
    trace.operator(NODE, 5000, 5100, AUTOGRAD)
    assert passes_of(trace) == [("forward", 90, 190), ("backward", 290, 5090)]
    trace.operator("aten::clone", 2000, 2010)
    assert [found[0] for found in passes_of(trace)] == ["forward", "backward", "backward"]


@pytest.mark.parametrize("ranges", [[(90, 160), (160, 205)], [(90, 190)], [(105, 205)]])
def test_a_workloads_own_phases_stay_as_they_are(ranges):
    """Where they do not fit into the forward pass, nothing is added."""
    trace = one_step()
    for begin, end in ranges:
        trace.annotation("mine", begin, end)
    assert [found[0] for found in passes_of(trace)] == ["mine"] * len(ranges) + ["backward"]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_without_annotations_has_all_phases(compiled, tmp_path):
    """A script's loop, eager and compiled, as torch.profiler writes it."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
    called = torch.compile(model, backend="aot_eager") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        batch = torch.ones(4, 8).cumsum(0)
        loss = called(batch).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile() as profiled:
        for number in range(3):
            with record_function(f"ProfilerStep#{number}"):
                step()
    path = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(path))
    trace = decode_all(path.read_bytes()).trace()
    passes = find_passes(trace, usual_classes())
    phases = ["forward", "backward", "optimizer", "zero_grad"]
    assert [found.path for found in passes] == phases * 3

    def phase_of(operator):
        names, operators = trace.names, trace.operators
        begins = operators.start_us[[names[name] == operator for name in operators.name]]
        around = [[p.path for p in passes if p.start_us <= at < p.end_us] for at in begins]
        return {"".join(inside) for inside in around}

    assert phase_of("aten::cumsum") == phase_of("aten::linalg_vector_norm") == {""}
    assert phase_of("aten::gelu") == phase_of("aten::mean") == {"forward"}
    assert phase_of("aten::gelu_backward") == {"backward"}
