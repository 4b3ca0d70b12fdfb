"""Which graphs the compiler may not keep: those whose key does not hold all of their code."""

import sys

import pytest
import torch
import torch._inductor
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd import autograd_cache
from torch.nn.attention import SDPBackend, sdpa_kernel

from stepguard.worker.compile_caches import trace_own_code_anew

# Calls operators as they are, where torch can: no kernel is compiled, and the trace is kept alike.
NO_KERNELS = {
    name: True for name in ("fallback_by_default",) if hasattr(torch._inductor.config, name)
}


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """torch is as it was, afterwards."""
    monkeypatch.setattr(autograd_cache, "check_cacheable", autograd_cache.check_cacheable)
    details = autograd_cache.AOTAutogradCacheDetails
    monkeypatch.setattr(details, "__init__", details.__init__)
    with torch._functorch.config.patch(enable_autograd_cache=True):
        yield


def graph_of(operator, part=None):
    """A graph that calls an operator, and a part, a graph that it does not name."""
    graph = torch.fx.Graph()
    graph.output(graph.call_function(operator, (graph.placeholder("x"),)))
    found = torch.fx.GraphModule({}, graph)
    if part is not None:
        found.add_module("part", part)
    return found


@pytest.mark.parametrize("overload", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_an_own_operator_is_not_kept(overload, inside):
    """Neither where the graph calls it, nor where a part of it does, a checkpointed one say."""
    with torch.library._scoped_library("prims", "FRAGMENT") as library:
        trace_own_code_anew()
        library.define("later(Tensor x) -> Tensor")
        operator = torch.ops.prims.later
        graph = graph_of(operator.default if overload else operator)
        if inside:
            graph = graph_of(torch.ops.aten.relu.default, graph)
        with pytest.raises(autograd_cache.BypassAOTAutogradCache, match="prims::later"):
            autograd_cache.check_cacheable(graph)


def test_a_graph_beside_an_own_kernel_is_not_kept():
    """Which graphs it comes to is not known: any may be differentiated into that operator."""
    trace_own_code_anew()
    graph = graph_of(torch.relu)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("erfinv.out", lambda x, out: out, "AutogradCPU")
        with pytest.raises(autograd_cache.BypassAOTAutogradCache, match="kernel of aten::erfinv"):
            autograd_cache.check_cacheable(graph)
    autograd_cache.check_cacheable(graph)


class Own(torch.Tensor):
    """A class of tensors of the workload's own."""


@pytest.mark.parametrize("several", [False, True])
def test_an_own_class_of_tensors_is_not_kept(several):
    """What it does when an operator is called on it is in the trace."""
    trace_own_code_anew()
    graph, tensor = graph_of(torch.relu), torch.ones(1).as_subclass(Own)
    placeholder = next(iter(graph.graph.nodes))
    placeholder.meta["example_value"] = torch.nn.Parameter(torch.ones(1))
    autograd_cache.check_cacheable(graph)
    placeholder.meta["example_value"] = (1, tensor) if several else tensor
    with pytest.raises(autograd_cache.BypassAOTAutogradCache, match="Own"):
        autograd_cache.check_cacheable(graph)


@pytest.mark.parametrize("operator", [torch.ops.aten.relu, torch.ops.aten.add.Tensor, torch.relu])
def test_what_is_torchs_own_is_kept(operator):
    """The model's graphs are found on disk as before."""
    trace_own_code_anew()
    autograd_cache.check_cacheable(graph_of(operator))


def attention_is_found():
    """Whether the trace of a compiled attention is found on disk, and the types that it has."""
    torch._dynamo.reset()
    counters.clear()
    query = torch.ones(1, 1, 4, 8)
    attention = torch.compile(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x))
    with torch.no_grad():
        dtype = attention(query).dtype
    return counters["aot_autograd"]["autograd_cache_hit"] == 1, dtype


def test_a_trace_of_other_settings_is_not_taken(tmp_path, monkeypatch):
    """Neither where another kernel is chosen for an attention, nor under another autocast."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    trace_own_code_anew()
    with torch._inductor.config.patch(NO_KERNELS):
        assert attention_is_found() == (False, torch.float32)
        assert attention_is_found() == (True, torch.float32)
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
            assert not attention_is_found()[0]
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                assert attention_is_found() == (False, dtype)
        assert attention_is_found()[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_key_holds_the_type_of_an_autocast(dtype, monkeypatch):
    """Also of a torch that does not put it there."""
    details = autograd_cache.AOTAutogradCacheDetails
    monkeypatch.setattr(details, "__init__", lambda self: None)
    trace_own_code_anew()
    usual = vars(details())
    assert vars(details()) == usual
    with torch.autocast("cpu", dtype=dtype):
        assert vars(details()) != usual and str(dtype) in str(vars(details()))


def test_a_torch_that_cannot_be_asked_keeps_nothing(monkeypatch):
    """What is private to it may go at any time."""
    monkeypatch.delattr(autograd_cache, "check_cacheable")
    trace_own_code_anew()
    assert not torch._functorch.config.enable_autograd_cache


def test_a_launch_without_the_compiler_imports_none(monkeypatch):
    """It would take a second, and compile nothing."""
    monkeypatch.delitem(sys.modules, "torch._inductor", raising=False)
    before = autograd_cache.check_cacheable
    trace_own_code_anew()
    assert autograd_cache.check_cacheable is before
