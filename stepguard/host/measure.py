"""Measures one case: launch after launch, warm-up and blocks by command, evidence at the end.

The host decides everything that is not physics, so that one rank protocol serves any policy. While
a launch compiles and warms up, the next one is started and imports torch; its import is over before
the first timed block begins, since that waits for its hello.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepguard.case import Case
from stepguard.evidence import (
    Block,
    Counts,
    Difference,
    Evidence,
    Fault,
    Launch,
    counts_of,
)
from stepguard.host.blocks import Annotate, Ask, Tainted, timed_blocks, undisturbed
from stepguard.host.diagnosis import LaunchFailed
from stepguard.host.differences import DIFFERENCES, measure_difference
from stepguard.host.elsewhere import Elsewhere, share_of
from stepguard.host.launch import WorkerGroup
from stepguard.host.machine import Gpu
from stepguard.host.nodes import Nodes, identity, per_node, spread
from stepguard.host.plan import Leg, plan
from stepguard.host.prepared import fingerprint_of, refuse_other_gpus, refuse_unlike_ranks
from stepguard.host.revision import Revision
from stepguard.host.telemetry import Telemetry, fit_telemetry
from stepguard.host.ticker import Ticker
from stepguard.host.torchrun import LaunchSpec
from stepguard.host.warmup import PROTOCOLS, WarmUp

Progress = Callable[[str], None]
COMPILE_LIMIT_S = 600.0
COMMAND_LIMIT_S = 120.0


@dataclass(frozen=True)
class Bench:
    """Where cases are measured: the tree, the machine, the folder that keeps what happened."""

    root: Path
    cache: Path
    folder: Path
    gpus: tuple[Gpu, ...]
    revision: Revision
    command: str
    nodes: Nodes | None = None  # the others; cases of several ranks are then spread over all
    more_launches: int = 3  # at most, when the comparison is close


def measure(
    case: Case,
    bench: Bench,
    progress: Progress = lambda text: None,
    wants_more: Callable[[Evidence], bool] = lambda evidence: False,
) -> Evidence:
    """All launches of a case. Never raises for what a workload or a worker does: that is a fault
    in the evidence. ``wants_more`` is asked after the planned launches, and after each more.
    """
    run = _CaseRun(case, bench, progress)
    try:
        run.measure(wants_more)
    except LaunchFailed as failed:
        run.faults.append(failed.fault)
    return run.evidence()


class _CaseRun:
    def __init__(self, case: Case, bench: Bench, progress: Progress) -> None:
        self.case, self.bench, self.progress = case, bench, Ticker(progress)
        self.protocol = PROTOCOLS[case.device]
        self.began = time.monotonic()
        self.date = datetime.now(UTC).isoformat(timespec="seconds")
        self.launches: list[Launch] = []
        self.counts: Counts | None = None
        self.differences: list[Difference] = []
        self.faults: list[Fault] = []
        self.one_rank: Launch | None = None
        self.one_rank_tokens = 0
        self.prepared: list[dict[str, Any]] = []
        self.nodes = spread(case, bench.nodes)
        self.telemetry: Telemetry | None = None
        self._stack = contextlib.ExitStack()

    def measure(self, wants_more: Callable[[Evidence], bool]) -> None:
        if self.case.device == "cuda":
            share = per_node(self.case, self.bench.nodes)
            self.telemetry = fit_telemetry(self.bench.gpus, share, self.nodes)
        with self._stack:
            legs = plan(self.case)
            group: WorkerGroup | None = self._start(legs[0])
            for leg, following in zip(legs, [*legs[1:], None], strict=True):
                assert group is not None
                if leg.alone:
                    self._more_launches(wants_more)  # not after it: the other cards cool meanwhile
                group = self._launch(group, leg, following)
            if not legs[-1].alone:
                self._more_launches(wants_more)

    def _more_launches(self, wants_more: Callable[[Evidence], bool]) -> None:
        most = self.case.launches + self.bench.more_launches
        while len(self.launches) < most and wants_more(self.evidence()):
            leg = Leg(f"launch {len(self.launches) + 1} (close, one more)", True, False)
            self._launch(self._start(leg), leg, None)

    def _start(self, leg: Leg) -> WorkerGroup:
        name = leg.label.partition(" (")[0].replace(" ", "-")
        folder = self.bench.folder / self.case.slug / name
        nodes = None if leg.alone else self.nodes
        spec = LaunchSpec(
            device=self.case.device,
            preload=(self.case.workload.partition(":")[0], "torch._dynamo", "torch._inductor"),
            world_size=1 if leg.alone else self.case.world_size,
            root=self.bench.root,
            folder=folder,
            cache=self.bench.cache,
            label=leg.label,
            time_limit_s=self.case.time_limit_s,
            one_of_several=leg.alone,
            share=share_of(nodes) if nodes else None,
        )
        elsewhere = Elsewhere(nodes) if nodes else None
        return self._stack.enter_context(WorkerGroup(spec, elsewhere))

    def _launch(self, group: WorkerGroup, leg: Leg, following: Leg | None) -> WorkerGroup | None:
        """Run one launch; the group that was started meanwhile for the next one, if any."""
        began = time.monotonic()
        label = leg.label
        self.progress(f"{label}: start")
        group.hello(self.progress.tick)
        group.began = time.monotonic()  # its time limit does not run while it waits its turn
        next_group = self._start(following) if following else None
        ask = self._asker(group)
        self.progress(f"{label}: build")
        told = ask("prepare", factory=self.case.workload, params=self.case.params)
        if self.telemetry:
            refuse_other_gpus(told, self.telemetry.gpus)
        if self.nodes:
            refuse_unlike_ranks(told)
        if not leg.alone:
            self.prepared = told
        self.progress(f"{label}: first step (compilation)")
        first = ask("first_step", limit_s=COMPILE_LIMIT_S)
        timed = self._timed(ask, label, next_group, first) if leg.timed else None
        if timed and not leg.alone:
            self.launches.append(timed)
        if leg.compare:
            warmup = self._warm_up(ask, label, next_group)
            for name in leg.compare:
                self.differences.append(self._difference(name, ask, label, warmup.step_s))
        if leg.count:
            self._count(ask, label)
        group.leave()
        wall_s = time.monotonic() - began
        if timed and leg.alone:
            self.one_rank = replace(timed, index=0, wall_s=wall_s)
            self.one_rank_tokens = told[0]["tokens_per_step"]
        elif timed:
            self.launches[-1] = replace(timed, wall_s=wall_s)
        return next_group

    def _timed(
        self, ask: Ask, label: str, next_group: WorkerGroup | None, first: list[dict[str, Any]]
    ) -> Launch:
        """Warm-up and blocks; how long the whole launch took is not known yet."""
        warmup = self._warm_up(ask, label, next_group)
        blocks, discarded = self._blocks(ask, label, warmup.step_s)
        return Launch(
            index=len(self.launches) + 1,
            blocks=tuple(blocks),
            compile_s=max(rank["compile_s"] for rank in first),
            warmup_s=warmup.seconds,
            warmup_steps=warmup.steps,
            steady=warmup.problem,
            wall_s=0.0,
            discarded=tuple(discarded),
        )

    def _asker(self, group: WorkerGroup) -> Ask:
        def ask(
            command: str, *, limit_s: float = COMMAND_LIMIT_S, **arguments: Any
        ) -> list[dict[str, Any]]:
            def poll() -> None:
                if self.telemetry:
                    self.telemetry.poll()
                self.progress.tick()

            show = self._shown(group.spec.label)
            return group.request(command, limit_s=limit_s, poll=poll, progress=show, **arguments)

        if self.telemetry:
            everywhere = group.spec.share is not None
            self.telemetry.expect([*group.pids.values()], group.token, everywhere)
        return ask

    def _warm_up(self, ask: Ask, label: str, following: WorkerGroup | None) -> WarmUp:
        """Windows of steps until steady, or until the cap, and until the next launch is idle.

        The card is kept busy while the next launch still imports: a pause would cool it.
        """
        state = WarmUp(self.protocol)
        while not state.done() or not (following is None or following.ready()):
            self.progress(f"{label}: warm-up")
            state.add(ask("block", steps=state.next_steps()))
        return state

    def _blocks(self, ask: Ask, label: str, step_s: float) -> tuple[list[Block], list[Block]]:
        try:
            show = self._shown(label)
            return timed_blocks(ask, self.protocol, step_s, self._annotate(), show)
        except Tainted as tainted:
            raise LaunchFailed(tainted.fault(f"{label}, block")) from None

    def _difference(self, name: str, ask: Ask, label: str, step_s: float) -> Difference:
        pairs, show = self.case.difference_pairs, self._shown(label)
        try:
            annotate = self._annotate()
            return measure_difference(name, ask, self.protocol, step_s, pairs, annotate, show)
        except Tainted as tainted:
            raise LaunchFailed(tainted.fault(f"{label}, {DIFFERENCES[name].words}")) from None

    def _annotate(self) -> Annotate:
        return self.telemetry.annotate if self.telemetry else undisturbed

    def _shown(self, label: str) -> Callable[[str], None]:
        return lambda text: self.progress(f"{label}: {text}")

    def _count(self, ask: Ask, label: str) -> None:
        began = time.monotonic()
        ranks = ask("count", limit_s=COMPILE_LIMIT_S)
        self.counts = counts_of(ranks, time.monotonic() - began)

    def evidence(self) -> Evidence:
        """What is known so far."""
        told = self.prepared
        first = told[0] if told else {}
        return Evidence(
            case_id=self.case.id,
            case=identity(self.case, self.nodes),
            date=self.date,
            commit=self.bench.revision.commit,
            dirty=self.bench.revision.dirty,
            command=self.bench.command,
            planned_launches=self.case.launches,
            gates=self.case.gates,
            fingerprint=fingerprint_of(first, self.bench.gpus) if told else None,
            launches=tuple(self.launches),
            counts=self.counts,
            differences=tuple(self.differences),
            one_rank=self.one_rank,
            one_rank_tokens_per_step=self.one_rank_tokens,
            faults=tuple(self.faults),
            tokens_per_step=sum(rank["tokens_per_step"] for rank in told),
            flops_per_step=sum(rank["flops_per_step"] for rank in told),
            floor_flops_per_step=first.get("floor_flops_per_step", 0.0),
            wall_s=time.monotonic() - self.began,
        )
