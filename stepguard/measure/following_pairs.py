"""Pairs that import while another one is built or counted: the next one in its ranks, and the one
after it only in its agents.
"""

from collections.abc import Sequence

from stepguard.measure.case_workers import CaseWorkers
from stepguard.measure.pair import HEAD, Pair, PairTiming


class FollowingPairs:
    """The pairs of a case that are to come, as far as they have started."""

    def __init__(self, sides: Sequence[CaseWorkers], timing: PairTiming) -> None:
        self._sides, self._timing = sides, timing
        self._pairs: list[Pair] = []

    def begin_anew(self) -> None:
        """Let the first pair import, and no other."""
        self.close()
        self._pairs = [Pair(1, self._sides, self._timing)]

    def start(self, number: int, most: int) -> None:
        """Let the ranks of the pair after ``number`` import, and the agents of the one after that.
        ``most`` is the highest number that may come.
        """
        last = min(number + self._timing.ahead, most)
        for later in range(number + 1 + len(self._pairs), last + 1):
            self._pairs.append(Pair(later, self._sides, self._timing, standby=True))
        for launch in self._pairs[0].launches if self._pairs else []:
            launch.release()

    def take(self, number: int) -> Pair:
        """Return the next pair, which has that number, whether it has started or not."""
        return self._pairs.pop(0) if self._pairs else Pair(number, self._sides, self._timing)

    def nobody_imports(self) -> bool:
        """Tell whether all of them have imported, and the next case's launches have, too."""
        launches = (launch for pair in self._pairs for launch in pair.launches)
        return all(launch.ready() for launch in launches) and self._sides[HEAD].ahead.ready()

    def close(self, *others: Pair) -> None:
        """End all of them, and the launches of ``others``."""
        for launch in (launch for pair in (*others, *self._pairs) for launch in pair.launches):
            launch.group.close()
        self._pairs = []
