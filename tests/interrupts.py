"""Ctrl-C, and a terminal that goes away, for processes that tests start."""

import signal


def heed_interrupts() -> None:
    """Let a child react to SIGINT and SIGHUP: shells have jobs in the background ignore the first,
    and nohup the second.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
