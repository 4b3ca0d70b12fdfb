"""The first launch of each tree, until both have run their first steps.

Usually one of them compiles at a time. So the base takes from the cache what HEAD's launch
compiled, and no trial of a kernel is timed beside another launch. On a GPU both first steps run at
once if the cache had both before (compiled_steps.py), and both fit into memory. Those of a loop
never do.
"""

import time
from collections.abc import Sequence

from stepguard.measure.case_workers import CaseWorkers
from stepguard.measure.pair import BASE, HEAD, Pair, PairTiming, both_fit
from stepguard.measure.running_launch import RunningLaunch

FIRST = "first launch"


class FirstPair(Pair):
    """The first two launches of a case, one of each tree."""

    def __init__(self, sides: Sequence[CaseWorkers], timing: PairTiming) -> None:
        super().__init__(1, sides, timing, label=FIRST)
        self._sides = sides
        # A loop runs its first steps while it is built.
        self._builds_at_once = sides[HEAD].case.loop is None
        self._steps_at_once = False

    def run_first_steps(self) -> None:
        """Build both launches, and run their first steps at once. If both may compile, only HEAD's
        runs its step, and run_base() follows.
        """
        RunningLaunch.expect(*self.launches)
        if self._builds_at_once:
            self.prepare()
            # A step's memory is known before it runs if an earlier run compiled that step.
            known = all(workers.reserved_bytes > 0 for workers in self._sides)
            self._steps_at_once = known and both_fit(self._sides)
        if self._steps_at_once:
            self.first_steps()
        else:
            self._run_first_step(HEAD)

    def run_base(self) -> None:
        """Run the base's first step, unless it ran beside HEAD's."""
        if not self._steps_at_once:
            self._run_first_step(BASE)

    def _run_first_step(self, index: int) -> None:
        began, launch = time.monotonic(), self.launches[index]
        launch.show("build and first step")
        if not self._builds_at_once:
            launch.prepare(quietly=False)
        launch.first_step(quietly=False)
        launch.park()
        self.launches[1 - index].group.grant(time.monotonic() - began)  # which waits meanwhile

    @property
    def may_be_timed(self) -> bool:
        """Tell whether the two can be a pair that is timed. They cannot if one of them compiled
        beside the other, since equal kernels may then run in other forms.
        """
        return not (self._steps_at_once and any(one.compiled_afresh for one in self.launches))
