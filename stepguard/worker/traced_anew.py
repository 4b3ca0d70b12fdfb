"""Has the compiler trace graphs with operators that are not torch's own anew in every launch.

torch keeps on disk what AOTAutograd made of a graph, by a key that names an operator and not its
code. An operator that is composed of others is inlined into what is kept, and so are its backward
and the body of a ``triton_op``: whoever edits these would measure what they were before, on both
sides of a comparison whichever was compiled first. The kernels that follow from the trace are still
found on disk, by their code.
"""

import importlib
import sys
from typing import Any

import torch


def trace_own_operators_anew() -> None:
    """Keep such graphs out of that cache; all of them in a torch that cannot be asked. Does nothing
    while the compiler is not imported. Call it before a workload is imported: what torch knows by
    then are its own operators.
    """
    if "torch._inductor" not in sys.modules:
        return
    try:  # private to torch
        cache: Any = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
        check, bypass = cache.check_cacheable, cache.BypassAOTAutogradCache
        known = {*map(_without_overload, torch._C._dispatch_get_all_op_names())}
    except (ImportError, AttributeError):
        torch._functorch.config.enable_autograd_cache = False
        return

    def check_operators(graph: Any) -> None:
        check(graph)
        # Those of checkpointed parts, for one, are in graphs of their own.
        parts = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
        for node in (node for part in parts for node in part.graph.nodes):
            if (name := _operator(node.target)) and name not in known:
                raise bypass(f"{name} is not torch's own, and its code not in the key")

    cache.check_cacheable = check_operators


def _operator(target: Any) -> str:
    """Return an operator's name, "aten::add", or nothing for another function."""
    if isinstance(target, torch._ops.OpOverload):
        return _without_overload(target.name())
    return target._qualified_op_name if isinstance(target, torch._ops.OpOverloadPacket) else ""


def _without_overload(name: str) -> str:
    return name.partition(".")[0]
