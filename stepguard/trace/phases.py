"""Phases of a step: what the host was doing when it launched, from annotations and autograd's
thread.

A phase is a path of annotations, "micro_step_0/forward". Marks of steps and the collectives' own
ranges are not phases. Work that autograd's thread launches outside all annotations is "backward".
"""

import re
from dataclasses import dataclass

import numpy as np

from stepguard.trace.columns import NONE, Floats, Ints, Trace
from stepguard.trace.kernel_classes import Classes

# Ranges of libraries, which are no phases:
# * around an exchange, whose kernels have a class of their own;
# * of the compiler, whose names contain hashes and numbers that change with the code.
LIBRARIES = re.compile(
    r"^(nccl|gloo|c10d|ucc):|^nccl[A-Z]|^## Call CompiledFxGraph|_inductor_wrapper_call$"
    r"|^Torch-Compiled Region|^(TorchDynamo|TORCHDYNAMO|AOTDispatcher|Pregraph)\b|\(dynamo_timed\)$"
)
_JOIN_US = 500.0  # between two operators of one backward pass; a forward pass takes longer


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
    return tuple(_nested(passes + _of_operators(trace, classes)))


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
    """Return phases that only operators show, such as autograd's. Operators close to each other are
    one pass.
    """
    phase = [classes.phase(name) or "" for name in trace.names]
    rows = trace.operators.where(np.array([bool(text) for text in phase])[trace.operators.name])
    by_phase: dict[str, list[Pass]] = {}
    for name, start, end in zip(
        rows.name.tolist(), rows.start_us.tolist(), rows.end_us.tolist(), strict=True
    ):
        mine = by_phase.setdefault(phase[name], [])
        if mine and start <= mine[-1].end_us + _JOIN_US:
            mine[-1] = Pass(phase[name], mine[-1].start_us, max(mine[-1].end_us, end))
        else:
            mine.append(Pass(phase[name], start, end))
    return [span for mine in by_phase.values() for span in mine]


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
