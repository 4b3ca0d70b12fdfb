"""Cases that tests declare: which test has one, where it cannot run, and how its report ends."""

from dataclasses import dataclass
from typing import Any

import pytest

from stepguard.case import Case
from stepguard.device import CPU, GPU
from stepguard.launch.launcher import Launcher, spread
from stepguard.verdict import Verdict

FIXTURE_MODULE = "stepguard.plugin"  # of our fixture perf
NOTHING_MEASURED = "the test asked for perf and measured nothing: call perf(case)"


class _Declared(list[Any]):
    """The parameters that cases() makes: a class of their own sets a test that has @cases apart
    from one that is parametrized over cases for reasons of its own.
    """


def cases(*items: Case) -> pytest.MarkDecorator:
    """Parametrize a test over cases; markers follow from each case's device and world size."""
    return pytest.mark.parametrize(
        "case", _Declared(pytest.param(c, id=c.name, marks=_marks(c)) for c in items)
    )


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    names = ["smoke" if case.device == CPU else "gpu"]
    names += ["multi_gpu"] if case.device == GPU and case.world_size > 1 else []
    names += ["extended"] if case.extended else []
    return [getattr(pytest.mark, name) for name in names]


def case_of(item: pytest.Item) -> Case | None:
    """Return the case that a test is parametrized with, if it takes the fixture perf."""
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get("case") if callspec else None
    return found if isinstance(found, Case) and "perf" in _fixtures(item) else None


def asks_for_perf(item: pytest.Item) -> bool:
    """Tell whether a test has our fixture, and not one of its own of that name."""
    if "perf" not in _fixtures(item):
        return False
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    definitions = known.get("perf", ())
    # The last definition is the one that pytest uses: the closest to the test.
    ours = not definitions or definitions[-1].func.__module__ == FIXTURE_MODULE
    return ours or case_of(item) is not None


def refuse_without_perf(item: pytest.Item) -> None:
    """Raise UsageError for a test that has @cases and lacks the fixture: it would be green whatever
    its cases do, and no mark of its own, xfail for one, may hide that.
    """
    if "perf" in getattr(item, "fixturenames", ("perf",)):
        return
    parametrized = item.iter_markers("parametrize")
    if any(isinstance(value, _Declared) for mark in parametrized for value in mark.args):
        raise pytest.UsageError(
            f"{item.nodeid} has @cases but not the fixture perf, so it would pass unmeasured: "
            "take perf as an argument and call perf(case)"
        )


def unsuited(case: Case, gpus: int, markers: str, launcher: Launcher | None = None) -> str:
    """Say why a machine with so many GPUs, or the launcher's nodes, are not for the case; empty if
    they are. ``markers`` is the expression that tests were chosen by.
    """
    if case.device == GPU and (nodes := spread(case, launcher)):
        each, count = nodes.fewest_gpus, len(nodes.nodes)
        few = each * count < case.world_size
        need = f"needs {case.world_size} GPU(s), {count} nodes have {each} each"
        return need if few else ""
    if case.device == GPU and gpus < case.world_size:
        return f"needs {case.world_size} GPU(s), this machine shows {gpus}"
    if case.device == CPU and gpus and "smoke" not in markers:
        return "a GPU is here, its cases run instead (or say: -m smoke)"
    return ""


def _fixtures(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


@dataclass(frozen=True)
class Outcome:
    """The changes to the report of a test's call."""

    overridden: bool  # fails, although the test itself passed or was expected to fail
    error: bool  # could not decide: an error, as if its set-up had failed
    names_verdict: bool  # shows the verdict's word instead of PASSED or FAILED


def outcome_of(call: str, xfail: bool, verdict: Verdict | None, refused: bool) -> Outcome:
    """Return what becomes of a call that pytest says has "passed", "failed" or was "skipped".

    ``verdict`` is the case's, if it was measured; ``refused`` says that it could not be, or that a
    test which declares a case measured none. Neither a test that catches the verdict nor, where
    nothing was decided, an ``xfail`` mark hides it.
    """
    own = "error" if refused else "passed"
    if verdict is not None and not verdict.recorded:
        own = verdict.outcome
    # xfail may expect a known regression, but never that nothing is known.
    decided = verdict is not None and own == "failed" and not verdict.undecided
    overridden = own != "passed" and call != "failed" and not (xfail and decided)
    failed = overridden or call == "failed"
    shown = (failed and own != "passed") or (call == "passed" and not overridden)
    return Outcome(overridden, failed and own == "error", verdict is not None and shown)
