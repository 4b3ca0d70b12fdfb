"""A clock for time limits that are to pass as soon as a worker hangs, and never before."""

import time
from pathlib import Path

from stepguard.machine.lifeline import pids_by_token

LEAP_S = 1e6  # beyond every limit
LOOKS_EVERY_S = 0.5


class LeapingClock:
    """Stand in for ``time`` where the host waits for ranks. It leaps once a rank of the launch that
    is watched has noted its fault (see factories.fail) and nothing of that launch runs any more:
    every thread sleeps, and none had the processor since the last look.
    """

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.watch("")

    def watch(self, token: str) -> None:
        """Look at another launch from now on."""
        self.token, self._leap_s, self._seen = token, 0.0, {}
        self._look_at = time.monotonic()

    def monotonic(self) -> float:
        """Return the machine's seconds, and LEAP_S more once the launch hangs."""
        now = time.monotonic()
        if not self._leap_s and self.token and now >= self._look_at:
            self._look_at = now + LOOKS_EVERY_S
            seen = threads(self.token)
            if seen and seen == self._seen:
                self._leap_s = LEAP_S
            self._seen = seen
        return now + self._leap_s


def threads(token: str) -> dict[str, str]:
    """Return the processor time of each thread of a launch; nothing while no fault was noted or
    one of them runs. The agent's own are left out: it only polls.
    """
    found: dict[str, str] = {}
    noted = False
    pids = pids_by_token(token)
    for pid in pids:
        try:
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) not in pids:
                continue
            environment = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
            folder = next(x for x in environment if x.startswith(b"STEPGUARD_RUN_DIR="))
            noted |= Path(folder.partition(b"=")[2].decode(), "failed-at").exists()
            for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
                state, *fields = stat.read_text().rpartition(")")[2].split()
                if state != "S":
                    return {}
                found[str(stat)] = " ".join(fields[10:12])  # utime, stime
        except OSError:
            return {}
    return found if noted else {}
