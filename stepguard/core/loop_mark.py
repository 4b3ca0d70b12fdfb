"""The mark that a training loop may set at the end of each step.

    import stepguard

    for batch in loader:
        ...
        stepguard.step()

It does nothing, in nanoseconds, unless the loop is measured.
"""

from collections.abc import Callable

# One for the process: a rank sets it before it runs a loop.
_listener: Callable[[], None] | None = None


def step() -> None:
    """End a step of the loop if stepguard measures it; else do nothing."""
    if _listener is not None:
        _listener()


def hear_steps(listener: Callable[[], None] | None) -> None:
    """Call ``listener`` at each mark from now on; with None call nobody."""
    global _listener
    _listener = listener
