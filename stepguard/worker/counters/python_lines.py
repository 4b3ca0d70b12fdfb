"""Count the lines of Python that a step runs, by function. Lines of torch, the standard library and
installed packages count for the line of the tree that calls them.

No operator, FLOP or byte shows a loop of Python over a list, and on a CPU cases gate no time by
default. The number of lines was the same in all steps and processes of eight scripts, but not of
those with a progress bar: it draws itself when time has passed (on a CPU, 2026-11-29). Any
refactoring changes it, too. So it is only shown. A number that rises from each step to the next is
judged: such a step gets slower and slower.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any

import torch

from stepguard.core.metrics import GROWING_LINES, PYTHON_LINES
from stepguard.core.site import Site
from stepguard.worker.block_timer import Step
from stepguard.worker.counters.collector import own_collections
from stepguard.worker.counters.locate import locate, site_at, tree_frame
from stepguard.worker.counters.tally import LEAK_STEPS, RankStep, StepCounter, Tally

# The functions that run most lines. Pairs explain a slower step by those that run more of them.
PLACES = 10
# Lines that grow still do so many steps after all counts. A window of 100 losses has filled then.
# On a GPU these steps of the 124M model take 16 s.
FILLING_STEPS = 64
_count = attrgetter("count")
Lines = Counter[tuple[CodeType, int]]  # of a function: the line that calls a library, or 0


def lines_of(step: Step) -> Lines:
    """Run the step. Return the lines that ran in its thread, by function."""
    lines: Lines = Counter()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        if (owner := tree_frame(frame)) is None:
            return None
        place = owner.f_code, 0 if owner is frame else owner.f_lineno

        def inside(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                lines[place] += 1
            return inside

        return inside

    before = sys.gettrace()
    # A garbage collection comes at any time, and the lines of its finalizers would count.
    with own_collections():
        sys.settrace(enter)
        try:
            step()
        finally:
            sys.settrace(before)
    return lines


def count_lines(tally: Tally, counted: RankStep) -> None:
    """Count the lines of LEAK_STEPS steps without the compiler."""
    with torch.compiler.set_stance("force_eager"):
        # Not traced: it may be the launch's first step, which runs more lines than others.
        counted.step()
        lines = [lines_of(counted.step) for _ in range(LEAK_STEPS)]
    count_python(tally, lines)


def count_still_growing(tally: Tally, counted: RankStep) -> None:
    """Count growing lines once more, FILLING_STEPS later. The smaller rise counts."""
    if not counted.any_rank(tally.values[GROWING_LINES] > 0):
        return
    for _ in range(FILLING_STEPS):
        counted.step()
    later = Tally()
    count_lines(later, counted)
    first, again = (
        {site.key: site for site in one.sites.pop(GROWING_LINES, ())} for one in (tally, later)
    )
    both = [min(first[key], again[key], key=_count) for key in first if key in again]
    tally.add(GROWING_LINES, [sum(map(_count, both))], sites=[both])


def count_python(tally: Tally, steps: Sequence[Lines]) -> None:
    """Count growing_python_lines_per_step. The last step gives python_lines_per_step, with a Site
    for each function. Lines of libraries grow at the line that calls them.
    """
    last: Lines = Counter()
    for (function, _), count in steps[-1].items():
        last[function, 0] += count
    tally.information[PYTHON_LINES] = float(last.total())
    tally.sites[PYTHON_LINES] = tuple(_sites(last))
    rises = {place: _rise([lines[place] for lines in steps]) for place in steps[-1]}
    growing = Counter({place: rise for place, rise in rises.items() if rise > 0})
    tally.add(GROWING_LINES, [growing.total()], sites=[_sites(growing)])


def _rise(counts: Sequence[int]) -> int:
    """Return the smallest rise from one step to the next; 0 or less without one."""
    return min(later - earlier for earlier, later in pairwise(counts))


def _sites(lines: Lines) -> list[Site]:
    return [_site(*place, count) for place, count in lines.most_common(PLACES)]


def _site(code: CodeType, line: int, count: int) -> Site:
    name = code.co_qualname.replace(".<locals>", "")
    place = locate([(code.co_filename, line or code.co_firstlineno, name)])
    # A module's first line says nothing about it, unlike a function's "def".
    if name == "<module>" and not line:
        place = place._replace(line=0, text="")
    return site_at("lines of Python", place, count=count)


COUNTER = StepCounter("Python", (GROWING_LINES,), count_lines, count_still_growing)
