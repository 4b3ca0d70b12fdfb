"""Where the host waits: the trace's calls get the lines that torch told of, and nobody else's."""

import importlib
import sys

import pytest
import torch
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from stepguard.core.site import Site
from stepguard.core.source_marks import allow_sync
from stepguard.trace.host_steps import StepCalls, Sync
from stepguard.worker.counters.locate import torchs_phase
from stepguard.worker.counters.profiled_steps import count_calls
from stepguard.worker.counters.syncs import SyncListener, by_place, count_syncs, located, what_waits
from stepguard.worker.counters.tally import RankStep, Tally
from stepguard.worker.rank_position import Phases
from stepguard.worker.torch_device import SYNC_KINDS

ITEM = ("aten::item", "aten::_local_scalar_dense")
NODE = "autograd::engine::evaluate_function: "
KINDS = ("stream", "device", "event")
GPU = RankStep(lambda: None, torch.device("cuda"))


def seen(line, kind="stream", phase="forward", micro_step="", allowed="", text=None):
    """A sync that torch told of, at ``line`` of train.py."""
    text = f"line {line}" if text is None else text
    path = f"{micro_step}/{phase}" if micro_step else phase
    return Site(kind, "train.py", line, "step", text, path, allowed=allowed)


def unseen(kind="stream", allowed=""):
    """A sync in a thread without a Python frame."""
    return Site(kind, phase="backward", allowed=allowed)


def sync(kind="stream", chain=ITEM, after_copy=""):
    """A call of the trace."""
    return Sync(kind, chain, after_copy)


def shown(sites):
    """Line, what and count of each site."""
    return [(site.line, site.what, site.count) for site in sites]


# What waits


@pytest.mark.parametrize(("kind", "chain", "after_copy", "what"), [
    ("stream", ITEM, "DtoH (Device -> Pageable)", ".item()"),
    ("stream", ("aten::is_nonzero", *ITEM), "DtoH", "truth of a tensor"),
    ("stream", ("aten::index", "aten::nonzero"), "DtoH", "nonzero"),
    ("stream", ("aten::to", "aten::copy_"), "HtoD (Pageable -> Device)", "pageable copy"),
    ("stream", ("aten::to", "aten::copy_"), "HtoD (Pinned -> Device)", "blocking copy"),
    ("copy", ("aten::copy_",), "DtoH (Device -> Pageable)", "copy to the host"),
    ("stream", ("aten::_unique2",), "", "_unique2"),
    ("stream", (), "", "stream synchronize"),
    ("stream", ("Optimizer.step",), "", "stream synchronize"),
    ("device", ITEM, "", "torch.cuda.synchronize()"),
    ("event", (), "", "Event.synchronize()"),
])  # fmt: skip
def test_what_waits_is_what_one_would_write(kind, chain, after_copy, what):
    """From the innermost telling operator, the copy waited for, or the call itself."""
    assert what_waits(sync(kind, chain, after_copy)).startswith(what)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sync_of_the_backward_names_its_node(kind):
    """In autograd's thread the innermost node is all that there is to find the line by."""
    plain = what_waits(sync(kind))
    chain = (f"{NODE}Outer", f"{NODE}IndexBackward0", "IndexBackward0", *ITEM)
    assert what_waits(sync(kind, chain)) == f"{plain} in IndexBackward0"


# Calls and lines


def test_calls_of_a_kind_get_its_lines_in_order():
    """The n-th stream sync of the trace is the n-th that torch told of; so are device and event."""
    calls = [sync("device", ()), sync(), sync("event", ()), sync(chain=("aten::nonzero",))]
    told = [seen(1), seen(2, "event"), seen(3), seen(4, "device")]
    expected = [
        (1, ".item()", 1),
        (3, "nonzero", 1),
        (4, "torch.cuda.synchronize()", 1),
        (2, "Event.synchronize()", 1),
    ]
    assert shown(located(calls, told)) == expected


@pytest.mark.parametrize("told", [[], [seen(1)], [seen(1), seen(2), seen(3)]])
def test_numbers_that_disagree_leave_the_calls_without_lines(told):
    """Two calls of which torch told none, one or three: two calls, by operator, of no line."""
    found = located([sync(), sync(chain=("aten::nonzero",))], told)
    assert shown(found) == [(0, ".item()", 1), (0, "nonzero", 1)]
    assert not any(site.file or site.phase for site in found)


def test_kinds_that_disagree_do_not_touch_the_others():
    """One event too few told leaves the events without lines, and the stream syncs with theirs."""
    calls = [sync(), sync("event", ()), sync("event", ())]
    found = located(calls, [seen(1), seen(2, "event")])
    assert shown(found) == [(1, ".item()", 1), (0, "Event.synchronize()", 2)]


def test_a_blocking_copy_has_no_line():
    """torch tells nothing of cudaMemcpy, and no other call's line is given to it."""
    found = located([sync("copy", (), "DtoH (x)"), sync()], [seen(1)])
    assert shown(found) == [(1, ".item()", 1), (0, "copy to the host", 1)]


@PROPERTY
@given(
    st.lists(st.sampled_from((*KINDS, "copy")), max_size=12),
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 4), st.booleans()), max_size=12),
)
def test_no_call_is_lost_or_made_up(kinds, told):
    """Whatever torch told, the sites are as many as the trace's calls."""
    lines = [seen(n, kind, allowed="why" if allowed else "") for kind, n, allowed in told]
    found = located([sync(kind) for kind in kinds], lines)
    assert sum(site.count for site in found) == len(kinds)


def test_allowed_syncs_are_listed_and_not_counted():
    """Of three syncs, one allowed: two count, and all three are among the sites."""
    tally, calls = Tally(), StepCalls(syncs=(sync(),) * 3)
    told = [seen(1), seen(2, allowed="logging"), seen(3)]
    count_syncs(tally, [calls, calls], [told, told])
    assert tally.values == {"host_syncs_per_step": 2}
    assert [site.allowed for site in tally.sites["host_syncs_per_step"]] == ["", "logging", ""]


def test_allowed_syncs_without_a_line_do_not_hide_others():
    """Two backward syncs of a kind, the first one allowed: one counts, whichever comes first."""
    for told in ([unseen(allowed="why"), unseen()], [unseen(), unseen(allowed="why")]):
        tally, calls = Tally(), StepCalls(syncs=(sync(),) * 2)
        count_syncs(tally, [calls, calls], [told, told])
        assert tally.values == {"host_syncs_per_step": 1}


def test_share_of_waiting_is_of_both_steps():
    """3 + 1 us of 10 + 10 us in CUDA calls: 20 %, and nothing without any call."""
    steps = [StepCalls(api_us=10.0, sync_us=3.0), StepCalls(api_us=10.0, sync_us=1.0)]
    tally = Tally(calls=steps)
    count_calls(tally, GPU)
    assert tally.information == {"sync_api_share_pct": 20.0}
    empty = Tally(calls=[StepCalls(), StepCalls()])
    count_calls(empty, GPU)
    assert empty.information == {}


# One site a line


def test_what_a_line_does_in_several_ways_is_one_site():
    """print(loss) waits for items, a nonzero and a copy: one line to mend, six waits."""
    chains = [ITEM, ("aten::nonzero",), ITEM, ("aten::_unique2",), ITEM, ITEM]
    told = [seen(7, text="print(loss)")] * 6
    found = located([sync(chain=chain) for chain in chains], told)
    assert shown(found) == [(7, ".item(), nonzero, _unique2", 6)]
    assert found[0].text == "print(loss)"


def test_lines_stay_apart():
    """Other text, function, file, reason or function of a library is another site."""
    one = Site(".item()", "a.py", 1, "f", "x.item()")
    others = [
        Site(".item()", "a.py", 2, "f", "y.item()"),
        Site(".item()", "a.py", 1, "g", "x.item()"),
        Site(".item()", "b.py", 1, "f", "x.item()"),
        Site(".item()", "a.py", 1, "f", "x.item()", allowed="why"),
        Site(".item()", "a.py", 1, "f", "x.item()", via="lib/trainer.py:3 in log"),
    ]
    assert by_place([one, *others]) == [one, *others]


@pytest.mark.parametrize(("where", "phase"), [
    ([("", "")], ""),
    ([("", "clip_grad")], "clip_grad"),
    ([("", "forward"), ("", "backward"), ("", "forward")], "forward, backward"),
    ([("micro_step_1", "forward")], "forward"),
    ([("micro_step_0", "forward"), ("micro_step_0", "forward")], "forward"),
    ([("micro_step_0", "forward"), ("micro_step_1", "forward")], "forward, each micro-step"),
    ([("micro_step_0", "micro_step_0")], ""),
    ([("micro_step_0", "micro_step_0"), ("micro_step_1", "micro_step_1")], "each micro-step"),
])  # fmt: skip
def test_phases_are_joined(where, phase):
    """A phase once, however often; micro-steps by number only if there is more than one."""
    told = [seen(1, phase=name, micro_step=micro_step) for micro_step, name in where]
    assert [site.phase for site in located([sync()] * len(told), told, 2)] == [phase]


def test_some_micro_steps_are_named():
    """Two of three micro-steps are not each of them."""
    told = [seen(1, phase="forward", micro_step=f"micro_step_{n}") for n in (0, 2)]
    (site,) = located([sync()] * 2, told, 3)
    assert site.phase == "forward, micro_step_0, micro_step_2"


def test_what_is_allowed_is_a_site_of_its_own():
    """Two waits in one place of which one is allowed are two: the other one still counts."""
    for place in ({}, {"file": "model/gpt.py", "line": 7, "function": "f", "text": "x.item()"}):
        sites = [Site(".item()", **place, allowed=why) for why in ("logged", "", "")]
        assert [(s.allowed, s.count) for s in by_place(sites)] == [("logged", 1), ("", 2)]


# Listening


@pytest.mark.parametrize("error", [ImportError("gone"), AttributeError("gone")])
def test_a_torch_without_the_private_module_is_no_error(monkeypatch, error):
    """Nothing is noted, so that the trace's calls keep their operators and have no lines."""

    def missing(name):
        assert name == "torch.cuda._gpu_trace"
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", missing)
        listener = SyncListener(Phases())
    with listener.listen() as found:
        pass
    assert found == []


class FakeTrace:
    """Stands in for torch.cuda._gpu_trace: keeps the callbacks, so that a test can call them."""

    def __init__(self):
        self.told = {}

    def __getattr__(self, name):
        kind = name.removeprefix("register_callback_for_").removesuffix("_synchronization")
        return lambda callback: self.told.__setitem__(kind, callback)


def test_what_torch_tells_is_noted_while_listening(monkeypatch):
    """Each kind with its line, phase and reason; nothing before, between and after the blocks."""
    trace = FakeTrace()
    monkeypatch.setattr(importlib, "import_module", lambda name: trace)
    monkeypatch.setattr(torch._C, "_activate_gpu_trace", lambda: None, raising=False)
    listener = SyncListener(Phases())
    assert sorted(trace.told) == sorted(KINDS)
    trace.told["stream"](0)
    listener.phases("clip_grad")
    with listener.listen() as found:
        trace.told["stream"](12345)  # here
        with allow_sync("logged"):
            trace.told["event"](12345)
        trace.told["device"]()
    trace.told["stream"](0)
    assert [(one.what, one.phase, one.allowed) for one in found] == [
        ("stream", "clip_grad", ""),
        ("event", "clip_grad", "logged"),
        ("device", "clip_grad", ""),
    ]
    assert found[0].text == 'trace.told["stream"](12345)  # here'
    assert found[0].function == "test_what_torch_tells_is_noted_while_listening"


def test_a_wait_after_a_backward_pass_is_not_of_it(monkeypatch):
    """A workload's phase lasts until the next one. What a hook waits for is in the pass."""
    trace = FakeTrace()
    monkeypatch.setattr(importlib, "import_module", lambda name: trace)
    monkeypatch.setattr(torch._C, "_activate_gpu_trace", lambda: None, raising=False)
    listener = SyncListener(Phases())
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda grad: trace.told["stream"](12345))
    listener.phases("micro_step_0")
    listener.phases("backward")
    with listener.listen() as found:
        weight.sum().backward()
        trace.told["stream"](12345)
    assert [one.phase for one in found] == ["micro_step_0/backward", "micro_step_0"]


class Seen(TorchDispatchMode):
    """Notes the phase that torch's frames show at each operator."""

    def __init__(self):
        super().__init__()
        self.phases = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.phases.append(torchs_phase(sys._getframe(1)))
        return operator(*args, **(kwargs or {}))


def test_a_file_of_autograds_is_no_backward_pass():
    """Its ranges, which a DataLoader enters, and what a Function computes forwards."""
    weight = torch.ones(1, requires_grad=True)
    with Seen() as seen, torch.profiler.record_function("a"):
        loss = checkpoint(torch.sin, weight, use_reentrant=True).sum()
    assert {*seen.phases} == {""}
    with Seen() as seen:
        loss.backward()
    assert {*seen.phases} == {"backward"}


def test_this_torch_still_has_what_is_used():
    """The private module has the three registrations; a torch without them falls back."""
    trace = importlib.import_module("torch.cuda._gpu_trace")
    for kind in SYNC_KINDS:
        assert callable(getattr(trace, f"register_callback_for_{kind}_synchronization"))
