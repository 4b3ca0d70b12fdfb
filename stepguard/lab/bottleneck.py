"""What a step waits for most: the largest part in which the GPU does not compute."""

from dataclasses import dataclass
from enum import StrEnum

from stepguard.core.profile import IdleRow, Profile, mean
from stepguard.trace.idle_causes import Idle

BOUND_SHARE = 0.05  # of the step; with a smaller loss the GPU bounds the step


class Bound(StrEnum):
    """What bounds the step."""

    GPU = "GPU"
    SYNC = "sync"
    LAUNCH = "launch"  # the host is slower than the GPU
    INPUT = "input"
    COMMUNICATION = "communication"
    COPIES = "copy"
    KERNELS = "small-kernel"  # work is queued, but there is a pause after each kernel
    STREAM = "stream-wait"  # work is queued behind another stream
    PROFILER = "profiler"


_OF_IDLE = {
    Idle.SYNC: Bound.SYNC,
    Idle.HOST: Bound.LAUNCH,
    Idle.INPUT: Bound.INPUT,
    Idle.GAP: Bound.KERNELS,
    Idle.STREAM: Bound.STREAM,
    Idle.PROFILER: Bound.PROFILER,
}


@dataclass(frozen=True)
class Bottleneck:
    """The bound of a step, with its evidence."""

    bound: Bound
    compute_share: float
    loss: Bound  # the largest loss, even if it is not the bound
    loss_share: float
    rows: tuple[IdleRow, ...]  # the gaps of that loss, the longest first; none for exchanges


def bottleneck(profile: Profile) -> Bottleneck:
    """Return what bounds the step."""
    parts, step_us = profile.parts, mean(profile.parts.step_us)
    losses = dict.fromkeys(Bound, 0.0)
    losses[Bound.COMMUNICATION] = mean(parts.exposed_communication_us)
    losses[Bound.COPIES] = mean(parts.exposed_copies_us)
    for row in profile.idle:
        losses[_OF_IDLE[Idle(row.cause)]] += mean(row.us)
    loss = max(losses, key=lambda bound: losses[bound])
    rows = [row for row in profile.idle if _OF_IDLE[Idle(row.cause)] == loss]
    share = losses[loss] / step_us if step_us else 0.0
    return Bottleneck(
        bound=loss if share >= BOUND_SHARE else Bound.GPU,
        compute_share=mean(parts.compute_us) / step_us if step_us else 0.0,
        loss=loss,
        loss_share=share,
        rows=tuple(sorted(rows, key=lambda row: -mean(row.us))),
    )
