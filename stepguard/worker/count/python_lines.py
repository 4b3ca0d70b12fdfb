"""Count the lines of Python that a step runs, by function, without those of torch.

No operator, FLOP or byte shows a loop of Python over a list, and on a CPU no time is gated. Lines
were the same in six steps and four processes of three models (on a CPU, 2026-11-25), but any
refactoring changes them, so they only inform. If their number rises from each step to the next, it
is judged: such a step gets slower and slower.
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
from stepguard.worker.block_timer import Step
from stepguard.worker.count.locate import is_machinery, locate, site_at
from stepguard.worker.count.tally import Tally

PLACES = 10  # those that run most; in pairs the ones that run more lines explain a slower step
Lines = Counter[CodeType]


class TracedStep:
    """Runs a step and notes the lines that run in its thread. Other counters may be active: their
    lines belong to the engine or to torch.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self.lines: list[Lines] = []  # of each step so far

    def __call__(self) -> object:
        """Run the step. Return what it returns."""
        with _traced() as lines:
            returned = self._step()
        self.lines.append(lines)
        return returned


def count_python(tally: Tally, steps: Sequence[Lines]) -> None:
    """Count growing_python_lines_per_step over at least two consecutive steps. The last step gives
    python_lines_per_step, as information. Both have the functions.
    """
    last = steps[-1]
    tally.information[PYTHON_LINES] = float(last.total())
    tally.sites[PYTHON_LINES] = tuple(_sites(last))
    rises = {code: _rise([lines[code] for lines in steps]) for code in last}
    growing = Counter({code: rise for code, rise in rises.items() if rise > 0})
    tally.add(GROWING_LINES, [growing.total()], sites=[_sites(growing)])


def _rise(counts: Sequence[int]) -> int:
    """Return the smallest rise of a step's count over the step before; 0 or less if one did not
    rise.
    """
    return min(later - earlier for earlier, later in pairwise(counts))


@contextmanager
def _traced() -> Iterator[Lines]:
    lines: Lines = Counter()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return None if is_machinery(frame.f_code.co_filename) else inside

    def inside(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines[frame.f_code] += 1
        return inside

    before, collects = sys.gettrace(), gc.isenabled()
    # A collection comes at any time, and runs finalizers and callbacks.
    gc.disable()
    sys.settrace(enter)
    try:
        yield lines
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
