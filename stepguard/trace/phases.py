"""Phases of a step: what the host was doing when it launched, from annotations and from autograd.

A phase is a path of annotations, "micro_step_0/forward". Marks of steps and the collectives' own
ranges are not phases. Work that autograd's thread launches outside all annotations is "backward".
The operators before it whose gradients it computes are "forward", whether compiled or not.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepguard.trace.columns import NONE, Differentiated, Floats, Host, Ints, Trace
from stepguard.trace.kernel_classes import Classes
from stepguard.trace.step_windows import marked

# Ranges of libraries, which are no phases:
# * around an exchange, whose kernels have a class of their own;
# * of the compiler, whose names contain hashes and numbers that change with the code.
LIBRARIES = re.compile(
    r"^(nccl|gloo|c10d|ucc):|^nccl[A-Z]|^## Call CompiledFxGraph|_inductor_wrapper_call$"
    r"|^Torch-Compiled Region|^(TorchDynamo|TORCHDYNAMO|AOTDispatcher|Pregraph)\b|\(dynamo_timed\)$"
)
FORWARD, BACKWARD = "forward", "backward"
_JOIN_US = 500.0  # between two operators of one backward pass, if others run in between


@dataclass(frozen=True)
class Pass:
    """One pass through a phase on the host; times in us."""

    path: str
    start_us: float
    end_us: float


def find_passes(trace: Trace, classes: Classes) -> tuple[Pass, ...]:
    """Return the passes through phases, sorted by their begin."""
    ignored = re.compile("|".join((*classes.steps, LIBRARIES.pattern)))
    rows = trace.annotations
    passes = []
    for name, start, end in zip(rows.name, rows.start_us, rows.end_us, strict=True):
        text = trace.names[name]
        if not ignored.search(text):
            passes.append(Pass(classes.phase(text) or text, float(start), float(end)))
    shown = passes + _of_operators(trace, classes)
    return tuple(_nested(shown + _forward(trace, shown)))


def _nested(flat: list[Pass]) -> list[Pass]:
    """Return the passes with their paths. A phase inside itself is one pass."""
    nested: list[Pass] = []
    around: list[Pass] = []
    for span in sorted(flat, key=lambda span: (span.start_us, -span.end_us)):
        while around and around[-1].end_us < span.end_us:
            around.pop()
        if around and around[-1].path.rpartition("/")[2] == span.path:
            continue
        path = f"{around[-1].path}/{span.path}" if around else span.path
        nested.append(Pass(path, span.start_us, span.end_us))
        around.append(nested[-1])
    return nested


def _of_operators(trace: Trace, classes: Classes) -> list[Pass]:
    """Return phases that only operators show, such as autograd's."""
    phase = [classes.phase(name) or "" for name in trace.names]
    rows = trace.operators.where(np.array([bool(text) for text in phase])[trace.operators.name])
    marks = trace.annotations.start_us[marked(trace, classes.steps)]
    columns = rows.name, rows.start_us, rows.end_us, np.searchsorted(marks, rows.start_us)
    by_phase: dict[tuple[str, int], list[Pass]] = {}  # and step: no pass goes on in the next one
    for name, start, end, step in zip(*(column.tolist() for column in columns), strict=True):
        mine = by_phase.setdefault((phase[name], step), [])
        if mine and _is_one(mine[-1].end_us, start, trace.operators.start_us):
            mine[-1] = Pass(phase[name], mine[-1].start_us, max(mine[-1].end_us, end))
        else:
            mine.append(Pass(phase[name], start, end))
    return [span for mine in by_phase.values() for span in mine]


def _is_one(since_us: float, until_us: float, begins: Floats) -> bool:
    """Tell whether operators that end and begin at these moments are of one pass: if they are close
    to each other, or if no other one begins in between. In the latter case the host was stopped.
    """
    if until_us <= since_us + _JOIN_US:
        return True
    following = np.searchsorted(begins, since_us)
    return bool(begins[following] >= until_us)


def _forward(trace: Trace, shown: Sequence[Pass]) -> list[Pass]:
    """Return the forward passes: each from the first to the last operator whose gradient the
    following backward pass computes. It grows over annotations "forward" that it overlaps. It is
    left out if it overlaps others in part: then they are the workload's own, finer phases.
    """
    backward = sorted((span for span in shown if span.path == BACKWARD), key=lambda s: s.start_us)
    mine = _edges([span for span in shown if span.path == FORWARD])
    others = _edges([span for span in shown if span.path not in (FORWARD, BACKWARD)])
    rows = trace.differentiated
    # A backward pass that runs a part of the forward pass again is no forward pass.
    rows = rows.where(pass_at(tuple(backward), rows.start_us) == NONE)
    following = np.searchsorted(_edges(backward)[0], rows.start_us)
    first = np.flatnonzero(np.diff(following, prepend=NONE))
    passes, since_us = [], 0.0
    for begin, end in pairwise([*first.tolist(), len(following)]):
        start_us, _ = _outermost(trace.operators, rows, begin, since_us)
        _, end_us = _outermost(trace.operators, rows, end - 1, since_us)
        since_us = end_us
        mixed = (mine[0] < end_us) & (mine[1] > start_us)
        start_us = min([start_us, *mine[0][mixed].tolist()])
        span = Pass(FORWARD, start_us, max([end_us, *mine[1][mixed].tolist()]))
        if not _overlaps_in_part(span, *others):
            passes.append(span)
    return passes


def _overlaps_in_part(span: Pass, start_us: Floats, end_us: Floats) -> bool:
    """Tell whether a pass and one of the others overlap, and neither contains the other."""
    begun = (start_us < span.start_us) & (span.start_us < end_us) & (end_us < span.end_us)
    ended = (span.start_us < start_us) & (start_us < span.end_us) & (span.end_us < end_us)
    return bool((begun | ended).any())


def _edges(spans: Sequence[Pass]) -> tuple[Floats, Floats]:
    edges = np.array([(span.start_us, span.end_us) for span in spans]).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]


def _outermost(
    operators: Host, rows: Differentiated, row: int, since_us: float
) -> tuple[float, float]:
    """Return begin and end of the outermost operator around a row, of those since then."""
    when = rows.start_us[row]
    lo = np.searchsorted(operators.start_us, since_us)
    hi = np.searchsorted(operators.start_us, when, side="right")
    around = lo + np.flatnonzero(
        (operators.end_us[lo:hi] >= when) & (operators.thread[lo:hi] == rows.thread[row])
    )
    if not len(around):
        return float(when), float(when)
    return float(operators.start_us[around[0]]), float(operators.end_us[around[0]])


def pass_at(passes: tuple[Pass, ...], when_us: Floats) -> Ints:
    """Return the innermost pass at each moment; NONE outside all."""
    order = np.argsort(when_us, kind="stable")
    ordered = when_us[order]
    painted = np.full(len(ordered), NONE, np.int64)
    # Inner passes begin later, so they paint over outer ones.
    for number, span in enumerate(passes):
        painted[slice(*np.searchsorted(ordered, [span.start_us, span.end_us]))] = number
    passes_at = np.empty(len(when_us), np.int64)
    passes_at[order] = painted
    return passes_at
