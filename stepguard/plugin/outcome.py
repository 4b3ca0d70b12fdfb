"""How the report of a test that measured a case ends."""

from dataclasses import dataclass

from stepguard.verdict import Verdict


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
