"""Refuse a step that profiles itself: a process has one profiler of torch's at a time, and the
counting pass needs it.

A second profiler takes the first one's place, or raises. Then the counting pass would see a part of
the step, or nothing.
"""

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import profile

from stepguard.worker.block_timer import Step
from stepguard.worker.workload import BadWorkload

# The methods that every profiler of torch calls when it begins: to warm up, and to record.
_BEGINNINGS = ("_prepare_trace", "_start_trace")
PROFILES_ITSELF = (
    "the step turns on torch's profiler, which a process has once, and which stepguard needs to "
    "count what the step does: turn it off in this run, by an argument or parameter of the case"
)


def unprofiled(step: Step) -> Step:
    """Return the step as the counting pass runs it: the step raises BadWorkload if its code starts
    a profiler. Raises BadWorkload at once if a profiler already runs.
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
