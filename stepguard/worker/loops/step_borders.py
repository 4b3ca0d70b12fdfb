"""Finds where a loop's step ends, and lets the loop rest there, so that one step can be asked for.

The loop is a greenlet of the thread that counts. What torch keeps for each thread, such as dispatch
modes and the profiler, is the same inside and outside of the loop. A loop in a thread of its own
would not be seen: no operator of it would be counted, and every change would be ``same``. A rest
and the way back take 3 to 5 us on two busy cores: 0.02 % of a step of 25 ms (2026-11-25).

A step ends in one of three ways: every optimizer that steps in this loop has stepped; the loop
calls ``stepguard.step()``; or a function that the case names has returned. If an optimizer steps
within another one's step, that is part of the outer step.

The loop never rests inside of a ``record_function``. torch runs an optimizer's hooks in one. If a
profile began or ended before the ``record_function`` is left, leaving it is a segmentation fault.
So the loop rests when the outermost one has been left.
"""

import functools
import importlib
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch.autograd.profiler import record_function
from torch.optim import optimizer as torch_optimizer
from torch.overrides import _get_current_function_mode_stack, _len_torch_function_stack
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack,
    _len_torch_dispatch_stack,
)
from torch.utils.hooks import RemovableHandle

from stepguard.core.case import BY_OPTIMIZER, Loop
from stepguard.core.source_marks import hear_steps
from stepguard.worker.workload import BadWorkload

NO_THREAD = 0  # no thread has this number
# An optimizer that does not step is given up once another one has stepped so often: it never steps,
# or others have taken its place. If several step in turn, one may step often between two steps of
# another. Then the limit is PATIENCE times the most steps that one of them took in the last step of
# the loop; before the first such step, PATIENCE are assumed.
PATIENCE = 8


class RestingLoop:
    """A loop that runs until its next border, each time it is told to."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._home, self._thread = getcurrent(), threading.get_ident()
        self._loop = greenlet(run)
        self._resting = self._loop
        # The loop's first greenlet. Callers compare it first, and so mostly do without is_here().
        self.here: greenlet | None = self._loop
        self._traced = False
        # Asking for the process id at each step would be a system call.
        os.register_at_fork(after_in_child=self._be_nowhere)

    def _be_nowhere(self) -> None:
        """Be nowhere in a forked process: its copy of the loop must not rest at borders."""
        self.here, self._thread = None, NO_THREAD

    def run_to_border(self) -> bool:
        """Let the loop run until it rests or ends. Return whether it rests."""
        self._resting.switch()
        return not self._loop.dead

    def rest(self) -> None:
        """Stop here, inside of the loop, until run_to_border() is called again."""
        # If the loop itself uses greenlets, this is the one that ended the step.
        self._resting = getcurrent()
        self._home.switch()
        if (tracer := sys.gettrace()) is not None or self._traced:
            self._trace(tracer)

    def _trace(self, tracer: Any) -> None:
        """Trace the loop too, in the frames that already run; None ends that."""
        self._traced = tracer is not None
        # Python 3.11 keeps for each greenlet whether it is traced.
        sys.settrace(tracer)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            frame.f_trace = tracer(frame, "call", None) if tracer else None
            frame = frame.f_back

    def is_here(self) -> bool:
        """Tell whether the caller is in the loop's thread and process, where it may rest."""
        return getcurrent() is not self._home and threading.get_ident() == self._thread


def modes() -> list[Any]:
    """Return which modes of torch are on in this thread: first those that see functions, then those
    that see operators, each the outermost first. Compare them by identity, while both lists live:
    a new mode often gets the address of one that is gone.
    """
    if not _len_torch_function_stack() and not _len_torch_dispatch_stack():
        return []  # as in each step that is timed
    return [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]


class Cycle:
    """Learns which optimizers step in a loop, and tells when all of them have."""

    def __init__(self) -> None:
        self.missed = 0  # steps that ended before all optimizers of a step were known
        self.only: int | None = None  # the optimizer, once it is known that no other one steps
        self._steps: Counter[int] = Counter()
        self._stepped: Counter[int] = Counter()  # since the last border
        self._steppers: frozenset[int] = frozenset()  # empty: not known yet
        self._patience = PATIENCE  # an optimizer's steps until one that does not step is given up

    @property
    def steps(self) -> int:
        """Return how many steps of optimizers it took to learn which ones step."""
        return self._steps.total()

    def ends_with(self, stepped: int, made: Callable[[], set[int]]) -> bool:
        """Tell whether the loop's step ends now. ``made`` returns optimizers that may step."""
        if stepped == self.only:
            if self._stepped:
                self._stepped.clear()
            return True
        if not self._steppers:
            self._steps[stepped] += 1
            steps = self._steps[stepped]
            if steps < 2 or made() - self._steps.keys() and steps < PATIENCE:
                return False
            # This step begins the next round.
            self._steps[stepped] -= 1
            self.missed = min(self._steps.values())
            self._learn(self._steps)
        self._stepped[stepped] += 1
        missing = self._steppers - self._stepped.keys()
        if missing and missing & made() and self._stepped[stepped] < self._patience:
            return False
        if missing:
            self._learn(self._stepped)
        else:
            self._patience = PATIENCE * max(self._stepped.values())
        self._stepped.clear()
        return True

    def _learn(self, steppers: Iterable[int]) -> None:
        """Let steps end from now on when all of these have stepped."""
        self._steppers = frozenset(steppers)
        self.only = next(iter(self._steppers)) if len(self._steppers) == 1 else None
        self._patience = PATIENCE if self.only is not None else PATIENCE * PATIENCE


class StepBorders:
    """Lets a loop rest at the borders of steps, each ``every``-th of them.

    Code of every step asks ``getcurrent() is here or is_here()``, and calls little else. Code that
    runs once a step is not in the CPU's caches, so a call takes half a microsecond.
    """

    def __init__(self, loop: Loop, resting: RestingLoop) -> None:
        self._passed = 0  # borders
        self._loop, self._resting = loop, resting
        self._cycle = Cycle()
        self._marked = loop.step_at != BY_OPTIMIZER
        self._inside = 0  # of record_function
        self._pending = False
        self.missed_rest = False  # a step ended inside of record_function, and so did the next one
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inner: set[int] = set()  # optimizers that stepped within another one's step
        self._stepping: list[int] = []
        self._hear_begins: RemovableHandle | None = None

    @property
    def has_one_optimizer_step(self) -> bool:
        """Tell whether one optimizer has stepped, and only once."""
        return self._cycle.steps == 1

    @property
    def seen(self) -> int:
        """Return how many steps of the loop have ended."""
        return self._passed + self._cycle.missed

    def watch(self) -> None:
        """Look for borders from now on. Raises BadWorkload without the named function."""
        self._watch_ranges()
        if self._loop.step_at == BY_OPTIMIZER:
            self._watch_optimizers()
            hear_steps(self._mark)
        else:
            self._watch_function(self._loop.step_at)

    def _watch_ranges(self) -> None:
        enter, leave = record_function.__enter__, record_function.__exit__
        loop = self._resting

        def entered(range_: Any) -> Any:
            if getcurrent() is loop.here or loop.is_here():
                self._inside += 1
            return enter(range_)

        def left(range_: Any, kind: Any, error: Any, trace: Any) -> Any:
            result = leave(range_, kind, error, trace)
            if getcurrent() is loop.here or loop.is_here():
                self._inside -= 1
                if self._pending and not self._inside and kind is None:
                    self._pending = False
                    loop.rest()
            return result

        record_function.__enter__, record_function.__exit__ = entered, left

    def _watch_optimizers(self) -> None:
        made = torch.optim.Optimizer.__init__

        @functools.wraps(made)
        def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._optimizers.add(optimizer)
            made(optimizer, *args, **kwargs)

        torch.optim.Optimizer.__init__ = make
        register = torch_optimizer.register_optimizer_step_pre_hook
        self._hear_begins = register(self._step_begins)
        torch_optimizer.register_optimizer_step_post_hook(self._step_ends)

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        if getcurrent() is self._resting.here or self._resting.is_here():
            self._stepping.append(id(optimizer))

    def _step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        if getcurrent() is not self._resting.here and not self._resting.is_here():
            return
        stepped, stepping = id(optimizer), self._stepping
        if stepped in stepping:  # steps that began later and did not end have raised
            del stepping[stepping.index(stepped) :]
        if stepping:
            self._inner.add(stepped)
            return
        # In a backward pass torch's own frames are around the step, and more steps will follow.
        if self._marked or torch._C._current_graph_task_id() != -1:
            return
        if self._cycle.ends_with(stepped, self._outermost):
            if self._hear_begins and stepped == self._cycle.only and not self._inner:
                # Begins matter only if optimizers step within others, and there are no others.
                self._hear_begins.remove()
                self._hear_begins = None
            self._border()

    def _outermost(self) -> set[int]:
        """Return the optimizers of the loop, without those that step within another one's step."""
        return {id(optimizer) for optimizer in self._optimizers} - self._inner

    def _mark(self) -> None:
        """End a step at ``stepguard.step()``. Raises BadWorkload if an optimizer ended some."""
        if not self._resting.is_here():
            return
        if not self._marked and self.seen:
            raise BadWorkload(
                f"stepguard.step() was called after {self.seen} steps had ended at the "
                "optimizer: say that it marks them, with --step-at stepguard:step"
            )
        self._marked = True
        self._border()

    def _watch_function(self, name: str) -> None:
        module_name, _, path = name.partition(":")
        *outer, last = path.split(".")
        try:
            holder: Any = importlib.import_module(module_name)
            for part in outer:
                holder = getattr(holder, part)
            function = getattr(holder, last)
        except (ImportError, AttributeError) as error:
            raise BadWorkload(f"--step-at {name}: {error}") from None

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self._resting.is_here() and torch._C._current_graph_task_id() == -1:
                self._border()
            return result

        setattr(holder, last, called)

    def _border(self) -> None:
        self._passed += 1
        if (self._passed + self._cycle.missed) % self._loop.every == 0:
            if self._inside:
                self.missed_rest = self.missed_rest or self._pending
                self._pending = True
            else:
                self._resting.rest()
