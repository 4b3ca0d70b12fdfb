"""Counts the lines of Python that a step runs, by function, without those of torch.

No operator, FLOP or byte shows a loop of Python over a list, and on a CPU no time is gated. Lines
are exact for one version of the source, and any refactoring moves them, so they only inform. That
they become more from each step to the next is another matter: such a step ends up slow.
"""

import gc
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

from stepguard.core.metrics import GROWING_LINES, PYTHON_LINES
from stepguard.core.site import Site
from stepguard.worker.clock import Step
from stepguard.worker.count.locate import is_machinery, locate, site_at
from stepguard.worker.count.tally import Tally

PLACES = 10  # that run most: in pairs those that run more lines say where a slower step is so
Lines = Counter[CodeType]


class TracedStep:
    """Runs a step and notes the lines that it runs in its thread. Others may count it meanwhile:
    theirs are the engine's lines, or torch's.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self.lines: list[Lines] = []  # of each step so far

    def __call__(self) -> object:
        """Run the step; return what it returns."""
        with _traced() as lines:
            returned = self._step()
        self.lines.append(lines)
        return returned


def count_python(tally: Tally, steps: Sequence[Lines]) -> None:
    """Count growing_python_lines_per_step over steps that ran in turn, two at least; of the last
    one python_lines_per_step, as information. Both have the functions.
    """
    last = steps[-1]
    tally.information[PYTHON_LINES] = float(last.total())
    tally.sites[PYTHON_LINES] = tuple(_sites(last))
    rises = {code: _rise([lines[code] for lines in steps]) for code in last}
    growing = Counter({code: rise for code, rise in rises.items() if rise > 0})
    tally.add(GROWING_LINES, [growing.total()], sites=[_sites(growing)])


def _rise(counts: Sequence[int]) -> int:
    """Return the least by which a step's count is above the one before, 0 or less if one is not."""
    return min(later - earlier for earlier, later in pairwise(counts))


@contextmanager
def _traced() -> Iterator[Lines]:
    found: Lines = Counter()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return None if is_machinery(frame.f_code.co_filename) else inside

    def inside(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            found[frame.f_code] += 1
        return inside

    before, collects = sys.gettrace(), gc.isenabled()
    # A collection comes when it comes, and runs finalizers and callbacks.
    gc.disable()
    sys.settrace(enter)
    try:
        yield found
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()


def _sites(lines: Lines) -> list[Site]:
    return [_site(code, count) for code, count in lines.most_common(PLACES)]


def _site(code: CodeType, count: int) -> Site:
    name = code.co_qualname.replace(".<locals>", "")
    place = locate([(code.co_filename, code.co_firstlineno, name)])
    return site_at("lines of Python", place, count=count)
