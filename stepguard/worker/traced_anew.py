"""Has the compiler trace graphs anew in every launch, with code that is not torch's own in them.

torch keeps on disk what AOTAutograd made of a graph, by a key that names an operator or a class of
tensors, and not its code. What an operator is composed of is inlined into what is kept, and so are
its backward and what a class does in ``__torch_dispatch__``: whoever edits these would measure what
they were before, on both sides of a comparison whichever was compiled first. The kernels that
follow from the trace are still found on disk, by their code.
"""

import importlib
import sys
from typing import Any

import torch


def trace_own_code_anew() -> None:
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
        kernels = {*torch.library._impls}
    except (ImportError, AttributeError):
        torch._functorch.config.enable_autograd_cache = False
        return

    def check_own_code(graph: Any) -> None:
        check(graph)
        # Of an operator of torch's own, "aten/gelu.out/AutogradCPU": any graph may come to it.
        for kernel in torch.library._impls - kernels:
            if (name := _without_overload("::".join(kernel.split("/")[:2]))) in known:
                raise bypass(f"another kernel of {name} is the workload's own")
        # Those of checkpointed parts, for one, are in graphs of their own.
        parts = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
        for node in (node for part in parts for node in part.graph.nodes):
            operator, foreign = _operator(node.target), _foreign_class(node)
            if foreign or operator and operator not in known:
                raise bypass(f"{foreign or operator} is not torch's own, and its code in no key")

    cache.check_cacheable = check_own_code


def _operator(target: Any) -> str:
    """Return an operator's name, "aten::add", or nothing for another function."""
    if isinstance(target, torch._ops.OpOverload):
        return _without_overload(target.name())
    return target._qualified_op_name if isinstance(target, torch._ops.OpOverloadPacket) else ""


def _foreign_class(node: torch.fx.Node) -> str:
    """Return the class of a node's tensor, or of one of its tensors, that is not torch's own."""
    values = torch.utils._pytree.tree_leaves(node.meta.get("example_value"))
    classes = {type(value) for value in values if isinstance(value, torch.Tensor)}
    return next((c.__qualname__ for c in classes if c.__module__.partition(".")[0] != "torch"), "")


def _without_overload(name: str) -> str:
    return name.partition(".")[0]
