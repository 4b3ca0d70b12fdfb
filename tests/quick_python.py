"""python -IS tests/quick_python.py -m pytest ...: a fork, where one can stand in (agent_forks).

It is started for each command of a test. So it imports what Python has built in, and no more: that
is a third of the time.
"""

import _socket
import marshal
import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

VARIABLE = "AGENT_FORKS"  # names the server's socket, in the abstract namespace; empty: start cold
AGENT = "stepguard.worker.agent"
LARGEST_REQUEST = 1 << 17
COMMANDS = {  # python -m ..., and the stages that they need
    "pytest": ["pytest", "pytest: engine"],
    "quick_stepguard": ["pytest", "pytest: engine"],
    "stepguard": ["pytest", "pytest: engine"],
    "model.train": ["torch", "torch._dynamo"],
    "benchmarks.build_nanogpt_rank": ["torch", "torch._dynamo"],
    "frozen_leaks": ["torch"],
}


def run_command(arguments: list[str]) -> "NoReturn":
    """Be ``python *arguments``: a fork of a server's if it can stand in, else that process."""
    name = os.environ.get(VARIABLE)
    own = arguments[1:] if arguments[:1] == ["-u"] else arguments  # no fork buffers what it prints
    if name and own[:1] == ["-m"] and own[1] in COMMANDS:
        command = [sys.executable, *arguments]
        request = request_of(own[1], command, os.getcwd(), {**os.environ})
        if forked := forked_by(name, request, [0, 1, 2]):
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, lambda number, frame: _hand_on(forked.pid, number))
            end(forked.wait())
    os.execv(sys.executable, [sys.executable, *arguments])


def _hand_on(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has ended
        pass


def end(status: int) -> "NoReturn":
    """End this process as one did that had this status."""
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def request_of(
    module: str, command: list[str], cwd: str, environment: "Mapping[str, str]"
) -> "dict[str, Any]":
    """Return what a server has to know of a process that it is to fork."""
    return {
        "module": module,
        "command": command,
        "cwd": cwd,
        "environment": environment,
        "process": inherited(),
    }


def forked_by(name: str, request: "dict[str, Any]", streams: list[int]) -> "ForkedAgent | None":
    """Return what a server forked; None if it cannot stand in for a new process."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        connection.connect("\0" + name)
        send(connection, request, streams)
        answer = marshal.loads(connection.recv(LARGEST_REQUEST) or marshal.dumps({}))
    except OSError:
        answer = {}
    if "pid" in answer:
        return ForkedAgent(connection, answer["pid"])
    connection.close()
    return None


class ForkedAgent:
    """What is used of subprocess.Popen, for a process that a server forked."""

    stdin: "Any" = None

    def __init__(self, connection: _socket.socket, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection

    def poll(self) -> int | None:
        """Return its exit status; None as long as it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            try:
                answer = self._connection.recv(LARGEST_REQUEST)
            except OSError:
                answer = b""  # a server that is gone has taken its agents along
            self.returncode = marshal.loads(answer)["status"] if answer else -signal.SIGKILL
            self._connection.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                from subprocess import TimeoutExpired

                raise TimeoutExpired(AGENT, timeout or 0.0)
            self.poll()
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)


def inherited() -> "dict[str, Any]":
    """Return what a new process takes over from its parent, beside its environment."""
    status = status_of(os.getpid())
    return {
        "ignored": [int(n) for n in signal.valid_signals() if is_in_mask(status, "SigIgn", n)],
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "umask": int(status["Umask"], 8),
        "cpus": sorted(os.sched_getaffinity(0)),
        "fixed": [os.nice(0), _text("/proc/self/limits")],
    }


def status_of(pid: int) -> dict[str, str]:
    """Return what /proc says of a process, by field."""
    lines = _text(f"/proc/{pid}/status").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()


def is_in_mask(status: dict[str, str], name: str, signum: int) -> bool:
    """Tell whether a set of signals has one."""
    return bool(int(status[name], 16) >> (signum - 1) & 1)


def send(to: _socket.socket, request: "dict[str, Any]", files: list[int]) -> None:
    """Send a request, with open files."""
    rights = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
    to.sendmsg([marshal.dumps(request)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])


if __name__ == "__main__":
    run_command(sys.argv[1:])
