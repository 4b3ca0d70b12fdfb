"""What the compiler keeps on disk. Traces of a workload's own code must not be taken from there;
headers may be.

torch keeps on disk what AOTAutograd made of a graph. The key names an operator or a class of
tensors, but not its code. The kept trace contains what an operator is composed of, its backward,
and what a class does in ``__torch_dispatch__``. If an edit changed one of these, both sides of a
comparison would run the code that was compiled first.

The key also lacks some settings that a trace depends on: those that choose the kernel of an
attention, and in an older torch the type of an autocast around the compiled code. Kernels are still
taken from the disk, since their key is their code.
"""

import contextlib
import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from stepguard.worker.counters.changed_settings import flags

AUTOCAST = ("cpu", "cuda")


def has_compiler() -> bool:
    """Tell whether the compiler is imported. A rank without it compiles nothing."""
    return "torch._inductor" in sys.modules


def trace_own_code_anew() -> None:
    """Keep graphs with the workload's own code out of the cache of traces, and add torch's settings
    to the key of all other graphs. If this torch lacks the functions for that, switch the cache
    off. Do nothing if the compiler is not imported. Call this before a workload is imported: until
    then torch knows only its own operators.
    """
    if not has_compiler():
        return
    try:  # private to torch
        cache: Any = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
        check, bypass = cache.check_cacheable, cache.BypassAOTAutogradCache
        known = {*map(_without_overload, torch._C._dispatch_get_all_op_names())}
        kernels = {*torch.library._impls}
        _key_with_settings(cache.AOTAutogradCacheDetails)
    except (ImportError, AttributeError):
        torch._functorch.config.enable_autograd_cache = False
        return

    def check_own_code(graph: Any) -> None:
        check(graph)
        # The workload may register a kernel of one of torch's own operators,
        # "aten/gelu.out/AutogradCPU". Any graph may use that operator.
        for kernel in torch.library._impls - kernels:
            if (name := _without_overload("::".join(kernel.split("/")[:2]))) in known:
                raise bypass(f"another kernel of {name} is the workload's own")
        # Checkpointed parts, for example, are in graphs of their own.
        parts = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
        for node in (node for part in parts for node in part.graph.nodes):
            operator, foreign = _operator(node.target), _foreign_class(node)
            if foreign or operator and operator not in known:
                raise bypass(f"{foreign or operator} is not torch's own, and its code in no key")

    cache.check_cacheable = check_own_code


def _key_with_settings(details: Any) -> None:
    """Add torch's settings to ``details``, of which torch makes a graph's key."""
    begin = details.__init__

    def begin_with_settings(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        types = {device: torch.get_autocast_dtype(device) for device in AUTOCAST}
        self.settings_around = str((flags(), types, [*map(torch.is_autocast_enabled, AUTOCAST)]))

    details.__init__ = begin_with_settings


def _operator(target: Any) -> str:
    """Return an operator's name, "aten::add"; empty for another function."""
    if isinstance(target, torch._ops.OpOverload):
        return _without_overload(target.name())
    return target._qualified_op_name if isinstance(target, torch._ops.OpOverloadPacket) else ""


def _foreign_class(node: torch.fx.Node) -> str:
    """Return the first class of a node's tensors that is not torch's own; else ""."""
    values = torch.utils._pytree.tree_leaves(node.meta.get("example_value"))
    classes = {type(value) for value in values if isinstance(value, torch.Tensor)}
    return next((c.__qualname__ for c in classes if c.__module__.partition(".")[0] != "torch"), "")


def _without_overload(name: str) -> str:
    return name.partition(".")[0]


def _headers() -> tuple[Path, Path]:
    """Return the folders of precompiled headers: torch's own, and the one that lasts."""
    # torch puts headers below TMPDIR, which ends with the launch, and not into its cache.
    folder = importlib.import_module("torch._inductor.runtime.cache_dir_utils").default_cache_dir()
    own = Path(folder, "precompiled_headers")
    return own, Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], own.name)


def take_kept_headers() -> None:
    """Give torch the headers that earlier launches precompiled: one takes 5 s on a CPU."""
    with contextlib.suppress(Exception):  # private to torch; it saves seconds, or does nothing
        own, kept = _headers()
        own.mkdir(parents=True, exist_ok=True)
        for path in (*kept.glob("*.h"), *kept.glob("*.h.gch")):
            with contextlib.suppress(FileExistsError):  # another rank has made it
                (own / path.name).symlink_to(path)


def keep_headers() -> None:
    """Keep the headers that this launch precompiled. With half a header nothing compiles any more,
    and no failure would name the cache. So other launches find only whole ones, also after a crash
    of the machine.
    """
    with contextlib.suppress(Exception):
        own, kept = _headers()
        made = [path for path in own.glob("*.h.gch") if not path.is_symlink()]
        for path in (file for gch in made for file in (gch.with_suffix(""), gch)):
            kept.mkdir(parents=True, exist_ok=True)
            part = kept / f"{os.getpid()}.part"
            with path.open("rb") as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
            part.replace(kept / path.name)
