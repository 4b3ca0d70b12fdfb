"""Ctrl-C for processes that tests start."""

import signal


def heed_interrupts() -> None:
    """Let a child react to SIGINT, which shells have jobs in the background ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
