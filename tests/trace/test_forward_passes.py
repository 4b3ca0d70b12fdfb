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


def test_a_forward_pass_ends_with_the_last_operator_that_has_a_gradient():
    """It begins with the outermost operator around the first one. What the loop launches before or
    between is no forward pass.
    """
    assert passes_of(one_step()) == [("forward", 90, 190), ("backward", 290, 390)]


def test_each_micro_step_has_a_pass():
    """Two forward passes with a backward pass behind each."""
    trace = one_step()
    trace.operator("aten::mm", 1500, 1600, differentiated=True)
    trace.operator(NODE, 1700, 1800, AUTOGRAD)
    forward = [found for found in passes_of(trace) if found[0] == "forward"]
    assert forward == [("forward", 90, 190), ("forward", 1490, 1590)]


def test_a_backward_pass_in_which_the_host_is_stopped_is_one():
    """However long: what tells two of them apart are the operators in between."""
    trace = one_step()
    trace.operator(NODE, 5000, 5100, AUTOGRAD)
    assert passes_of(trace) == [("forward", 90, 190), ("backward", 290, 5090)]
    trace.operator("aten::clone", 2000, 2010)
    assert [found[0] for found in passes_of(trace)] == ["forward", "backward", "backward"]


def test_what_a_backward_pass_computes_again_belongs_to_it():
    """A checkpointed block runs its forward pass once more, and autograd knows its operators."""
    trace = one_step()
    trace.operator("aten::mm", 320, 340, AUTOGRAD, differentiated=True)
    assert passes_of(trace) == [("forward", 90, 190), ("backward", 290, 390)]


def test_an_annotation_of_the_forward_pass_and_the_loss_behind_it_are_one_pass():
    """DDP annotates the model alone."""
    trace = one_step()
    trace.annotation("DistributedDataParallel.forward", 90, 160)
    assert passes_of(trace) == [("forward", 80, 190), ("backward", 290, 390)]


def test_finer_annotations_are_inside():
    """As those inside of a backward pass are."""
    trace = one_step()
    trace.annotation("attention", 120, 130)
    assert [found[0] for found in passes_of(trace)] == ["forward", "forward/attention", "backward"]


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
