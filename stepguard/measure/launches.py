"""Measures one case: launch after launch, warm-up and blocks by command, evidence at the end.

The host decides everything that is not physics, so that one rank protocol serves any policy. While
a launch compiles and warms up, the next one is started and imports torch; its import is over before
the first timed block begins, since that waits for its hello.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from stepguard.case import Case
from stepguard.evidence import Block, Difference, Evidence, Fault, Launch
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.group import WorkerGroup
from stepguard.measure.blocks import Ask, Tainted, timed_blocks
from stepguard.measure.differences import DIFFERENCES, measure_difference
from stepguard.measure.plan import PlannedLaunch, planned_launches
from stepguard.measure.progress import Ticker
from stepguard.measure.warmup import PROTOCOLS, WarmUp
from stepguard.measure.workers import COMPILE_LIMIT_S, Answers, Bench, CaseWorkers, watch

__all__ = ["Bench", "measure"]

Progress = Callable[[str], None]


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
        self.differences: list[Difference] = []
        self.faults: list[Fault] = []
        self.one_rank: Launch | None = None
        self.one_rank_tokens = 0
        self.one_rank_problem = ""
        self.stack = contextlib.ExitStack()
        self.station = CaseWorkers(case, bench, self.progress, None, self.stack)

    def measure(self, wants_more: Callable[[Evidence], bool]) -> None:
        with self.stack:
            self.station.telemetry = watch(self.case, self.bench, self.stack, self.progress)
            self.began = time.monotonic()  # what a wait for the GPU took says nothing of the case
            legs = planned_launches(self.case)
            group: WorkerGroup | None = self._start(legs[0])
            for leg, following in zip(legs, [*legs[1:], None], strict=True):
                assert group is not None
                if leg.alone:
                    self._more_launches(wants_more)  # not after it: the other cards cool meanwhile
                    self._one_rank(group, leg)
                else:
                    group = self._launch(group, leg, following)
            if not legs[-1].alone:
                self._more_launches(wants_more)

    def _one_rank(self, group: WorkerGroup, leg: PlannedLaunch) -> None:
        """One rank alone informs: a workload that cannot do with one is not broken by that."""
        try:
            self._launch(group, leg, None)
        except LaunchFailed as failed:
            self.one_rank_problem = failed.fault.message

    def _more_launches(self, wants_more: Callable[[Evidence], bool]) -> None:
        most = self.case.launches + self.bench.more_launches
        while len(self.launches) < most and wants_more(self.evidence()):
            leg = PlannedLaunch(f"launch {len(self.launches) + 1} (close, one more)", True, False)
            self._launch(self._start(leg), leg, None)

    def _start(self, leg: PlannedLaunch) -> WorkerGroup:
        return self.station.start(leg.label, alone=leg.alone)

    def _launch(
        self, group: WorkerGroup, leg: PlannedLaunch, following: PlannedLaunch | None
    ) -> WorkerGroup | None:
        """Run one launch; the group that was started meanwhile for the next one, if any."""
        began, label, station = time.monotonic(), leg.label, self.station
        self.progress(f"{label}: start")
        group.hello(self.progress.tick)
        group.began = time.monotonic()  # its time limit does not run while it waits its turn
        next_group = self._start(following) if following else None
        station.expect(group)
        ask = station.asker(group)
        self.progress(f"{label}: build")
        told = station.prepare(group, ask)
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
            station.count(ask, time.monotonic)
        station.leave(group, ask)
        wall_s = time.monotonic() - began
        if timed and leg.alone:
            self.one_rank = replace(timed, index=0, wall_s=wall_s)
            self.one_rank_tokens = told[0]["tokens_per_step"]
        elif timed:
            self.launches[-1] = replace(timed, wall_s=wall_s)
        return next_group

    def _timed(
        self, ask: Ask, label: str, next_group: WorkerGroup | None, first: Answers
    ) -> Launch:
        """Warm-up and blocks; how long the whole launch took is not known yet."""
        warmup = self._warm_up(ask, label, next_group)
        blocks, discarded = self._blocks(ask, label, warmup)
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

    def _warm_up(self, ask: Ask, label: str, following: WorkerGroup | None) -> WarmUp:
        ready = following.ready if following else (lambda: True)
        return self.station.warm_up(ask, label, self.protocol, ready)

    def _blocks(self, ask: Ask, label: str, warmup: WarmUp) -> tuple[list[Block], list[Block]]:
        show, annotate = self.station.shown(label), self.station.annotate()
        try:
            return timed_blocks(ask, self.protocol, warmup.step_s, annotate, show, ran=warmup.steps)
        except Tainted as tainted:
            raise LaunchFailed(tainted.fault(f"{label}, block")) from None

    def _difference(self, name: str, ask: Ask, label: str, step_s: float) -> Difference:
        pairs, show = self.case.difference_pairs, self.station.shown(label)
        try:
            annotate = self.station.annotate()
            return measure_difference(name, ask, self.protocol, step_s, pairs, annotate, show)
        except Tainted as tainted:
            raise LaunchFailed(tainted.fault(f"{label}, {DIFFERENCES[name].words}")) from None

    def evidence(self) -> Evidence:
        """What is known so far."""
        return Evidence(
            case_id=self.case.id,
            case=self.station.identity(),
            date=self.date,
            commit=self.bench.revision.commit,
            dirty=self.bench.revision.dirty,
            command=self.bench.command,
            planned_launches=self.case.launches,
            gates=self.case.gates,
            launches=tuple(self.launches),
            counts=self.station.counts,
            differences=tuple(self.differences),
            one_rank=self.one_rank,
            one_rank_tokens_per_step=self.one_rank_tokens,
            one_rank_problem=self.one_rank_problem,
            faults=tuple(self.faults),
            wall_s=time.monotonic() - self.began,
            **self.station.told(),
        )
