"""Timed blocks; one during which the machine was disturbed is measured again."""

from collections.abc import Callable
from dataclasses import replace

from stepguard.evidence import Block, Disturbance, Fault
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.measure.ranks import Answers
from stepguard.sentences import sentence
from stepguard.verdict import Reason

Ask = Callable[..., Answers]  # a command to all ranks, with limit_s and its arguments
Monitored = Callable[[Block, Answers], Block]  # adds what the machine's monitor saw
MIN_STEPS = 4
LIMIT_S = 120.0
# A host that stalls for 10 ms as a block ends was seen once in some 300 blocks; work that the
# events do not see is there every time.
CLOCKS_RETRIES = 1  # of a launch


def block_steps(seconds: float, step_s: float) -> int:
    """Return how many steps a block of about so many seconds has."""
    return max(MIN_STEPS, round(seconds / step_s))


def block_limit_s(steps: int, step_s: float) -> float:
    """Return when a block of so many steps of about ``step_s`` is given up: ten times its length,
    and LIMIT_S more.
    """
    return LIMIT_S + 10 * steps * step_s


def block_of(ranks: Answers, steps: int, ran: int) -> Block:
    """Return one block for every rank's report; single steps are those of the slowest rank."""
    slowest = max(ranks, key=lambda rank: rank["wall_ms"])
    return Block(
        steps=steps,
        wall_ms=tuple(rank["wall_ms"] for rank in ranks),
        events_ms=tuple(rank["events_ms"] for rank in ranks),
        step_ms=tuple(slowest["step_ms"]),
        enqueue_ms=slowest["enqueue_ms"],
        ran=ran,
    )


def undisturbed(
    measure: Callable[[], tuple[Block, Answers]],
    monitored: Monitored,
    discarded: list[Block],
    retries: int,
    during: str,
) -> tuple[Block, Answers]:
    """Measure blocks until nothing disturbed one, and return it with the ranks' answers. The others
    join ``discarded``; ``monitored`` adds what the machine's monitor saw meanwhile.

    Raises LaunchFailed, with the last disturbance, beyond ``retries`` of them, and beyond
    CLOCKS_RETRIES whose wall clock and events disagree.
    """
    while True:
        block, answers = measure()
        block = monitored(block, answers)
        gap = block.clock_gap()
        if block.disturbance is None and gap:
            text = sentence(Reason.CLOCKS_DISAGREE, gap)
            block = replace(block, disturbance=Disturbance(Reason.CLOCKS_DISAGREE.name, text))
        if block.disturbance is None:
            return block, answers
        discarded.append(block)
        gaps = sum(_is_clock_gap(one) for one in discarded)
        if gaps > CLOCKS_RETRIES or len(discarded) > retries:
            times = gaps if gaps > CLOCKS_RETRIES else len(discarded)
            text = f"{times} blocks could not be used: {block.disturbance.text}"
            raise LaunchFailed(Fault(block.disturbance.reason, text, "", during))


def _is_clock_gap(block: Block) -> bool:
    found = block.disturbance
    return found is not None and found.reason == Reason.CLOCKS_DISAGREE.name
