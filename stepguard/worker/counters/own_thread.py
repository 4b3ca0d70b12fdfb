"""Refuse a step whose work runs in another thread than the one that calls it.

The counters of operators, FLOPs, waits and bytes see only the step's thread, as torch's modes and
profiler do. If the step gave work to another thread and waited for it, all counters of this work
would be zero, and only the time would show it.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from stepguard.worker.counters.tally import RankStep
from stepguard.worker.torch_device import on_gpu
from stepguard.worker.workload import BadWorkload

_MARK = "stepguard.own_thread"
_BACKWARD = "autograd::engine::evaluate_function"
# Operators with nearly all FLOPs of a step. A thread that prepares batches calls none of them.
_PRODUCT = re.compile(r"^aten::(\w*mm\w*|linear|matmul|\w*convolution\w*|_?scaled_dot_product\w*)$")


def refuse_work_elsewhere(counted: RankStep) -> None:
    """Run a step. Raises BadWorkload if other threads call products, or if the step's own thread
    calls no operator on a CPU.
    """
    config = _ExperimentalConfig(profile_all_threads=True)
    host = [ProfilerActivity.CPU]
    with (
        profile(activities=host, experimental_config=config) as profiled,
        record_function(_MARK),
    ):
        counted.step()
    events = list(profiled.profiler.kineto_results.events())
    if problem := _elsewhere(events, on_gpu(counted.device)):
        raise BadWorkload(
            f"{problem}, and no counter sees other threads: let step() do the work in the thread "
            "that calls it"
        )


def _elsewhere(events: Iterable[Any], gpu: bool) -> str:
    """Return what a step does in other threads than its own, as the beginning of a sentence; "" if
    nothing is wrong.
    """
    seen = list(events)
    own = next(event.start_thread_id() for event in seen if event.name() == _MARK)
    calls = [(e.start_thread_id(), e.name()) for e in seen if not e.is_user_annotation()]
    # On a GPU a step that replays a graph calls no operator. Launches of all threads are counted.
    if not gpu and all(thread != own for thread, _ in calls):
        return "step() takes time, but calls no operator of torch's in its own thread"
    # On a GPU backward passes run in a thread of autograd's, and are counted.
    counted = {own} | {t for t, name in calls if gpu and name.startswith(_BACKWARD)}
    products = Counter(thread in counted for thread, name in calls if _PRODUCT.match(name))
    if not products[False]:
        return ""
    return f"step() calls {products[False]} of {products.total()} products in another thread"
