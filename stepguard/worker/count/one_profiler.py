"""Refuse a step that profiles itself: a process has one profiler of torch's at a time, and the
counting pass needs it.

A second one takes the first one's place, or raises. Then the counting pass would have a part of the
step, or nothing.
"""

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import profile

from stepguard.worker.block_timer import Step
from stepguard.worker.workload import BadWorkload

# What each profiler of torch's calls when it begins, first to warm up.
_BEGINNINGS = ("_prepare_trace", "_start_trace")
PROFILES_ITSELF = (
    "the step turns on torch's profiler, which a process has once, and which stepguard needs to "
    "count what the step does: turn it off in this run, by an argument or parameter of the case"
)


def unprofiled(step: Step) -> Step:
    """Return the step as the counting pass runs it: raises BadWorkload if its code begins to
    profile. Raises BadWorkload at once if its code has begun earlier.
    """
    if _profiler_enabled():
        raise BadWorkload(PROFILES_ITSELF)

    def refuse(profiler: profile) -> None:
        raise BadWorkload(PROFILES_ITSELF)

    def run() -> object:
        kept = {name: getattr(profile, name) for name in _BEGINNINGS}
        for name in _BEGINNINGS:
            setattr(profile, name, refuse)
        try:
            return step()
        finally:
            for name, method in kept.items():
                setattr(profile, name, method)

    return run
