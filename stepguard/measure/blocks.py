"""The timed blocks of a launch; one during which the machine was disturbed is measured again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stepguard.evidence import Block, Fault
from stepguard.measure.warmup import Protocol
from stepguard.verdict import Reason

Ask = Callable[..., list[dict[str, Any]]]
Annotate = Callable[[Block, Sequence[dict[str, Any]]], Block]  # a block and what its ranks told
MIN_STEPS = 4
LIMIT_S = 120.0
# A host that stalls for 10 ms as a block ends was seen once in some 300 blocks; work that the
# events do not see is there every time.
CLOCKS_RETRIES = 1  # of a launch
_CLOCKS = "wall clock"  # in what Block.clocks_disagree says


class Tainted(Exception):
    """Too many tries could not be used; ``how``, and how many."""

    def __init__(self, how: str, times: int) -> None:
        super().__init__(how)
        self.how, self.times = how, times

    def fault(self, during: str) -> Fault:
        """Why there is no measurement."""
        code = Reason.THROTTLED
        if "process" in self.how:
            code = Reason.FOREIGN_PROCESS
        elif "telemetry" in self.how:
            code = Reason.MACHINE_UNREADABLE
        elif _CLOCKS in self.how:
            code = Reason.CLOCKS_DISAGREE
        return Fault(code.name, f"{self.times} blocks could not be used: {self.how}", "", during)


def block_steps(seconds: float, step_s: float) -> int:
    """How many steps a block of about so many seconds has."""
    return max(MIN_STEPS, round(seconds / step_s))


def block_limit_s(steps: int, step_s: float) -> float:
    """When so many steps of about ``step_s`` each are given up: beyond ten times their length."""
    return LIMIT_S + 10 * steps * step_s


def timed_blocks(
    ask: Ask,
    protocol: Protocol,
    step_s: float,
    annotate: Annotate,
    progress: Callable[[str], None],
    ran: int = 0,
) -> tuple[list[Block], list[Block]]:
    """``protocol.blocks`` blocks, and those that were discarded. Raises Tainted after
    ``protocol.retries`` of these. ``ran``: steps before the first of them.
    """
    steps = block_steps(protocol.block_s, step_s)
    kept: list[Block] = []
    discarded: list[Block] = []
    while len(kept) < protocol.blocks:
        progress(f"block {len(kept) + 1}/{protocol.blocks} of {steps} steps")
        ranks = ask("block", steps=steps, limit_s=block_limit_s(steps, step_s))
        block = annotate(block_of(ranks, steps, ran), ranks)
        ran += steps
        if keep(block, discarded, protocol.retries):
            kept.append(block)
    return kept, discarded


def keep(block: Block, discarded: list[Block], retries: int) -> bool:
    """Whether the block counts; else it joins ``discarded``. Raises Tainted beyond ``retries``, and
    beyond CLOCKS_RETRIES whose wall clock and events disagree: these taint a block, too.
    """
    block = replace(block, tainted=block.tainted or block.clocks_disagree())
    if not block.tainted:
        return True
    discarded.append(block)
    apart = sum(_CLOCKS in one.tainted for one in discarded)
    if apart > CLOCKS_RETRIES:
        raise Tainted(block.tainted, apart)
    if len(discarded) > retries:
        raise Tainted(block.tainted, len(discarded))
    return False


def block_of(ranks: Sequence[dict[str, Any]], steps: int, ran: int) -> Block:
    """One block out of every rank's report; single steps are those of the slowest rank."""
    slowest = max(ranks, key=lambda rank: rank["wall_ms"])
    return Block(
        steps=steps,
        wall_ms=tuple(rank["wall_ms"] for rank in ranks),
        events_ms=tuple(rank["events_ms"] for rank in ranks),
        step_ms=tuple(slowest["step_ms"]),
        enqueue_ms=slowest["enqueue_ms"],
        ran=ran,
    )


def undisturbed(block: Block, ranks: Sequence[dict[str, Any]]) -> Block:
    """What a CPU's telemetry would say, if there were any: its times decide nothing."""
    return block
