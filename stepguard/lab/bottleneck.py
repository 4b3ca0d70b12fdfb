"""Describe what a step waits for most: the largest part in which the GPU does not compute."""

from dataclasses import dataclass
from enum import StrEnum

from stepguard.core.profile import IdleRow, Profile, mean
from stepguard.trace.idle_causes import Idle

BOUND_SHARE = 0.05  # of the step; a smaller loss is a detail of a step that the GPU bounds


class Bound(StrEnum):
    """Describe what the step is bound by."""

    GPU = "GPU"
    SYNC = "sync"
    LAUNCH = "launch"  # the host is slower than the GPU
    INPUT = "input"
    COMMUNICATION = "communication"
    COPIES = "copy"
    KERNELS = "small-kernel"  # queued, but with a pause after each
    STREAM = "stream-wait"  # queued, behind another stream
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
    """The bound of a step, and its evidence."""

    bound: Bound
    compute_share: float
    loss: Bound  # the largest loss, whether or not it is the bound
    loss_share: float
    rows: tuple[IdleRow, ...]  # that the loss is made of, the longest first; none for exchanges


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
