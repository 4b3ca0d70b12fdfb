"""Starts the agents of launches as forks of a process that holds torch: 20 ms, where an import of
torch takes a second of a CPU, and of its compiler up to three. Starts `python -m pytest` and
`python -m stepguard` in the same way, from a process that holds what they import of others.

A run of the tests owns one server, and all that it starts finds the server by an environment
variable. The server holds nothing at first. Each stage of imports (torch, dynamo, inductor; pytest)
is a process of its own, forked from the one before it when somebody first asks for it. So an agent
holds what it would have imported itself, and no more. A command holds pytest and its plugins too.
Both hold the engine if they would import that of this tree, which nobody edits while tests run.

A forked agent has the environment, directory, arguments, import path, streams, session and signals
of a new process. Any other engine and the measured tree are imported after the fork. Three things
differ: STEPGUARD_HOST_PID names the server's process, which is the agent's parent and passes on
that the caller died; agents of one server share a hash seed and the layout of their address space;
and their engine is that of the server's link to it, not of the launch's.

A command is started by quick_python.py. It hands on signals and dies as the command does; if it is
killed, so is the command.

Some tests start cold on purpose: those of what the kernel tells an agent (tests/faults), of the
agent's own imports (tests/worker/test_forked_ranks.py), the demo and the first hour.

Any other launch starts cold, as the product starts it, if the server cannot stand in for a new
process: if a variable differs that Python or torch may have read on import, or if the import path
has a module that the server already holds under the same name.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import marshal
import os
import platform
import runpy
import select
import shlex
import signal
import site
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quick_python import (
    AGENT,
    COMMANDS,
    LARGEST_REQUEST,
    VARIABLE,
    end,
    forked_by,
    inherited,
    is_in_mask,
    request_of,
    send,
    status_of,
)

OWN = (__name__, "quick_python")  # what no fork holds
# A command that begins so may be forked: [*QUICK_PYTHON, "-m", "pytest"].
QUICK_PYTHON = (sys.executable, "-IS", str(Path(__file__).with_name("quick_python.py")))
ENGINE = Path(__file__).resolve().parents[1] / "stepguard"
# What an agent of any launch, or a command, imports of others' code; and of this tree's engine all
# but the plugin, whose assertions pytest rewrites when it imports it.
BASE = {
    "torch": (
        "torch",
        "torch.distributed.elastic.agent.server",
        "torch.distributed.elastic.rendezvous.static_tcp_rendezvous",
        "torch.utils.flop_counter",
    ),
    "pytest": (
        "pytest",
        "concurrent.futures.thread",
        "msgspec",
        "numpy",
        "packaging.requirements",
        "packaging.version",
        "pynvml",
        "scipy.special",
        "tomllib",
    ),
    "torch: engine": ("stepguard.worker.rank_session", "stepguard.worker.ranks"),
    "pytest: engine": (
        "stepguard.judge.guard",
        "stepguard.machine.requirements",
        "stepguard.measure.suite",
        "stepguard.report.baseline_changes",
        "stepguard.report.document_json",
        "stepguard.report.terminal_summary",
    ),
}
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR")
# Variables of a launch or a test that neither Python nor torch reads on import. All others must be
# the server's own.
FREE = (
    VARIABLE,
    "CI",
    "COLUMNS",
    "CUDA_MODULE_LOADING",  # torch 2.8 sets it when it first looks for a GPU
    "GIT",  # of GitHub, too
    "GLOO_SOCKET_IFNAME",
    "HANGS_ON",  # tests/faults
    "HOME",
    "LINES",
    "NCCL_SOCKET_IFNAME",
    "OLDPWD",
    "PATH",
    "PWD",
    "PYTEST_",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    *([] if site.ENABLE_USER_SITE else ["PYTHONUSERBASE"]),  # else for the import path
    "RUNNER_",
    "SHLVL",
    "SLURM_",
    "STEPGUARD_",
    "TERM",
    "TMPDIR",
    "_",
    *CACHES,
)
# What torchrun tells its ranks.
OF_TORCHRUN = (
    "GROUP_",
    "LOCAL_",
    "MASTER_",
    "PYTHON_EXEC",
    "RANK",
    "ROLE_",
    "TORCHELASTIC_",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "WORLD_SIZE",
)
# What every launch on a CPU has (launch/torchrun.py), of what is read on import.
OF_LAUNCHES = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_VISIBLE_DEVICES": "",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
ROOM_BYTES = 1 << 16  # for the environment that /proc shows of an agent
RETRY_MS = 20
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ENVIRONMENT_FIELDS = slice(47, 49)  # of /proc/PID/stat, behind the process's name: env_start, _end


@contextlib.contextmanager
def served(environment: dict[str, str], folder: Path, free: Iterable[str] = ()) -> Iterator[str]:
    """Run a server whose agents get ``environment``'s settings; yield the name of its socket. It
    ends with the block, and with this process. ``folder``: an empty one, for what imports write.
    ``free``: more variables that nobody reads on import.
    """
    name = f"agent-forks-{os.getpid()}-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("\0" + name)
        listener.listen(64)
        main = f"__import__({__name__!r}).main({listener.fileno()}, {os.getpid()}, {[*free]})"
        own = {"PYTHONPATH": str(Path(__file__).parent), "ROOM": "." * ROOM_BYTES}
        places = [folder / name for name in ("temporary", "current")]
        for place in places:
            place.mkdir()
        (folder / "engine").mkdir()
        (folder / "engine" / ENGINE.name).symlink_to(ENGINE)  # as a launch links it
        own |= {"TMPDIR": str(places[0])} | dict.fromkeys(CACHES, str(folder / "caches"))
        theirs = {key: value for key, value in environment.items() if key != VARIABLE}
        server = subprocess.Popen(
            [sys.executable, "-P", "-c", main],
            env=theirs | OF_LAUNCHES | own,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=places[1],
        )
    try:
        yield name
    finally:
        server.kill()
        server.wait()


def interpreter(folder: Path) -> Path:
    """Write a program ``python`` into a new folder, for scripts that call it: see QUICK_PYTHON.
    Beside it are the other programs of this interpreter's environment.
    """
    folder.mkdir()
    for program in Path(sys.executable).parent.iterdir():
        if not program.name.startswith("python"):
            (folder / program.name).symlink_to(program)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join(QUICK_PYTHON)} "$@"\n')
    python.chmod(0o755)
    return python


def forking(start_cold: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of torchrun.spawn: it forks where a server can stand in."""

    def spawn(command: list[str], spec: Any, environment: Mapping[str, str], log: Path) -> Any:
        own = {name: value for name, value in environment.items() if name != VARIABLE}
        name = os.environ.get(VARIABLE)
        if name and command[:4] == [sys.executable, "-P", "-m", AGENT]:
            request = request_of(AGENT, command, str(spec.root.resolve()), own)
            theirs, ours = os.pipe() if spec.standby else (os.open(os.devnull, os.O_RDWR), None)
            with log.open("wb") as file:
                forked = forked_by(name, request, [theirs, file.fileno(), file.fileno()])
            os.close(theirs)
            if forked:
                forked.stdin = os.fdopen(ours, "wb") if ours else None
                return forked
            if ours:
                os.close(ours)
        return start_cold(command, spec, own, log)

    return spawn


def main(listener: int, owner: int, free: list[str]) -> None:
    """Serve whoever connects, until the owner dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != owner:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the owner's to handle
    room = _room()
    for name in ("ROOM", "PYTHONPATH"):
        os.environ.pop(name)
    sys.path.remove(str(Path(__file__).parent))
    gc.disable()  # as an agent does while it imports
    with socket.socket(fileno=listener) as waiting:
        own = {name: value for name, value in os.environ.items() if name not in free}
        Stage(waiting, own, room, [], free).serve()


def _room() -> tuple[int, int]:
    """Return the addresses between which the kernel finds this process's environment."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, fields[ENVIRONMENT_FIELDS])
    return start, end


class Stage:
    """A process that holds some imports. It forks agents that need no more, and further stages."""

    def __init__(
        self,
        requests: socket.socket,
        environment: dict[str, str],
        room: tuple[int, int],
        held: list[str],
        free: list[str],
    ) -> None:
        self._requests, self._environment, self._room = requests, environment, room
        self._held, self._free = held, free
        self._further: dict[str, socket.socket] = {}
        self._callers: dict[int, socket.socket] = {}  # by agent
        self._ends: dict[int, int] = {}  # agents by what becomes readable at their end
        self._orphans: set[int] = set()  # agents that do not heed yet what tells them
        self._commands: set[int] = set()
        self._paths = _paths(environment["TMPDIR"], os.getcwd())
        # Else each fork's collector would begin with all that is held: 0.2 s, and copies of pages.
        gc.freeze()

    def serve(self) -> None:
        """Answer requests until whoever sends them is gone."""
        while True:
            poll = select.poll()
            for readable in (self._requests, *self._callers.values(), *self._ends):
                poll.register(readable, select.POLLIN)
            readable = {number for number, _ in poll.poll(RETRY_MS if self._orphans else None)}
            for number in readable & self._ends.keys():
                self._reap(number)
            for pid, caller in [*self._callers.items()]:
                if caller.fileno() in readable:  # it says nothing: it has died
                    self._callers.pop(pid).close()
                    if pid in self._commands:
                        os.kill(pid, signal.SIGKILL)
                    else:
                        self._orphans.add(pid)
            self._tell_orphans()
            if self._requests.fileno() in readable and not self._request():
                return

    def _request(self) -> bool:
        """Handle one; return whether more may come."""
        if self._held:
            message, files, _, _ = socket.recv_fds(self._requests, LARGEST_REQUEST, 4)
            if not message:
                return False
            caller, streams = socket.socket(fileno=files[0]), files[1:]
        else:
            caller, _ = self._requests.accept()
            message, streams, _, _ = socket.recv_fds(caller, LARGEST_REQUEST, 3)
        request = marshal.loads(message) if message else {}
        try:
            self._handle(request, caller, streams)
        finally:
            for number in streams:
                os.close(number)
        return True

    def _handle(self, request: dict[str, Any], caller: socket.socket, streams: list[int]) -> None:
        wanted = request.get("environment", {}).get("STEPGUARD_SHARED", "").split()
        agents = ["torch", *(name for name in wanted if name.startswith("torch.")), "torch: engine"]
        stages = COMMANDS.get(request.get("module"), agents)
        if not request or os.path.realpath(_engine(request)) != str(ENGINE):
            stages = [name for name in stages if not name.endswith(": engine")]
        if len(streams) != 3 or not self._held and not self._can_stand_in(request):
            caller.close()
        elif further := stages[len(self._held) :]:
            to = self._further.get(further[0]) or self._new_stage(further[0], caller, streams)
            with caller, contextlib.suppress(OSError):  # it has ended: the launch starts cold
                send(to, request, [caller.fileno(), *streams])
        elif self._shadowed(request):
            caller.close()
        else:
            self._fork(request, caller, streams)

    def _can_stand_in(self, request: dict[str, Any]) -> bool:
        free = FREE if request["module"] == AGENT else (*FREE, *OF_LAUNCHES, *OF_TORCHRUN)
        asked, own = (
            {
                name: value
                for name, value in variables.items()
                if name not in self._free and not name.startswith(free)
            }
            for variables in (request["environment"], self._environment)
        )
        # STEPGUARD_HOST_PID may get some digits more.
        fits = len(_block(request["environment"])) + 16 <= self._room[1] - self._room[0]
        return fits and asked == own and request["process"]["fixed"] == inherited()["fixed"]

    def _shadowed(self, request: dict[str, Any]) -> bool:
        """Tell whether the import path has another module of a name that is held already, or one
        that Python imports by itself.
        """
        held = {name.partition(".")[0] for name in sys.modules} - {"stepguard", *OWN}
        held |= {"sitecustomize", "usercustomize"}
        for folder in map(Path, _import_path(request)):
            if folder.is_file():  # an archive
                return True
            for entry in folder.iterdir() if folder.is_dir() else ():
                module = entry.suffix in (".py", ".pyc", ".so") or (entry / "__init__.py").exists()
                if module and entry.name.partition(".")[0] in held:
                    return True
        return False

    def _new_stage(self, module: str, caller: socket.socket, streams: list[int]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        if os.fork():
            theirs.close()
            self._further[module] = ours
            return ours
        try:
            ours.close()
            self._leave(caller, streams)
            _die_with(parent, signal.SIGKILL)
            link = Path(self._environment["TMPDIR"]).with_name("engine")
            above = {"torch: engine": [str(link)], "pytest: engine": [str(ENGINE.parent)]}
            sys.path[:0] = above.get(module, [])
            with contextlib.suppress(Exception):  # an agent will say what fails
                for name in BASE.get(module, [module]):
                    importlib.import_module(name)
                for folder in above.get(module, []):
                    sys.path.remove(folder)
                if module == "torch: engine":  # where modules came from is looked up once
                    sys.modules["stepguard.worker.rank_fingerprint"].modules("")
                    platform.processor()  # and the CPU, by a command
                if module == "pytest":
                    _import_plugins()
            held = [*self._held, module]
            Stage(theirs, self._environment, self._room, held, self._free).serve()
        finally:
            os._exit(1)

    def _fork(self, request: dict[str, Any], caller: socket.socket, streams: list[int]) -> None:
        host, is_agent = os.getpid(), request["module"] == AGENT
        if pid := os.fork():
            self._callers[pid] = caller
            self._ends[os.pidfd_open(pid)] = pid
            if not is_agent:
                self._commands.add(pid)
            return
        status = 1
        try:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            if is_agent:
                request["environment"]["STEPGUARD_HOST_PID"] = str(host)
            else:
                _die_with(host, signal.SIGKILL)
            _become(request, self._room)
            for names, name, number, rest in self._paths:
                names[name] = (os.environ.get("TMPDIR", "/tmp"), request["cwd"])[number] + rest
            with contextlib.suppress(OSError):  # the caller has died, which serve() notices
                caller.send(marshal.dumps({"pid": os.getpid()}))
            self._leave(caller, streams)
            runpy._run_module_as_main(request["module"])  # as python -m does
            status = 0
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
            if isinstance(leaving.code, str):
                print(leaving.code, file=sys.stderr)
        except BaseException as error:
            traceback.print_exc()
            status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else status
        finally:
            if not is_agent:
                with contextlib.suppress(BaseException):
                    threading._shutdown()
                    atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            end(status)

    def _leave(self, caller: socket.socket, streams: list[int]) -> None:
        """Close what only the process needs that this one was forked from."""
        for one in (self._requests, caller, *self._further.values(), *self._callers.values()):
            one.close()
        for number in (*streams, *self._ends):
            os.close(number)

    def _reap(self, number: int) -> None:
        os.close(number)
        pid = self._ends.pop(number)
        self._orphans.discard(pid)
        self._commands.discard(pid)
        _, status = os.waitpid(pid, 0)
        if caller := self._callers.pop(pid, None):
            with caller, contextlib.suppress(OSError):
                caller.send(marshal.dumps({"status": os.waitstatus_to_exitcode(status)}))

    def _tell_orphans(self) -> None:
        """Tell agents that their caller is gone, as the kernel tells a child that asked for it."""
        for pid in [*self._orphans]:
            if is_in_mask(status_of(pid), "SigCgt", signal.SIGUSR1):
                self._orphans.remove(pid)
                os.kill(pid, signal.SIGUSR1)


def _paths(*folders: str) -> list[tuple[dict[str, Any], str, int, str]]:
    """Return what modules made of these folders on import: where it stands, under which name, of
    which folder, and the rest of the path.
    """
    found = []
    for module in [*sys.modules.values()]:
        places = [vars(module)]
        if isinstance(config := places[0].get("_config"), dict):  # settings of torch's compiler
            places += [vars(entry) for entry in config.values() if hasattr(entry, "default")]
        for names in places:
            for name, value in [*names.items()]:
                for number, folder in enumerate(folders):
                    if type(value) is str and value.startswith(folder):
                        found.append((names, name, number, value.removeprefix(folder)))
    return found


def _die_with(parent: int, signum: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _import_plugins() -> None:
    """Let pytest import what is installed for it, as it does: else it would say of each plugin that
    its assertions could not be rewritten.
    """
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        importlib.import_module("pytest").main(["-p", "no:cacheprovider", "-c", os.devnull, "."])


def _engine(request: dict[str, Any]) -> str:
    """Return the first engine on the import path; empty if there is none."""
    engines = (os.path.join(path, ENGINE.name) for path in _import_path(request))
    return next(filter(os.path.exists, engines), "")


def _import_path(request: dict[str, Any]) -> list[str]:
    """Return PYTHONPATH as the module site leaves it: absolute, each folder once. A command's
    folder comes before it.
    """
    given = request["environment"].get("PYTHONPATH")
    paths = [] if request["module"] == AGENT else ["."]
    paths += given.split(os.pathsep) if given else []
    return [*dict.fromkeys(os.path.normpath(os.path.join(request["cwd"], one)) for one in paths)]


def _become(request: dict[str, Any], room: tuple[int, int]) -> None:
    """Make this fork what a new process would be."""
    process, environment = request["process"], request["environment"]
    os.setsid()
    os.chdir(request["cwd"])
    os.umask(process["umask"])
    os.sched_setaffinity(0, process["cpus"])
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signum in process["ignored"]:
            signal.signal(signum, signal.SIG_IGN)
        elif signal.getsignal(signum) is signal.SIG_IGN:
            plain = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
            signal.signal(signum, plain)
    signal.pthread_sigmask(signal.SIG_SETMASK, process["blocked"])
    os.environ.clear()
    os.environ.update(environment)
    site.USER_BASE = site.USER_SITE = None
    site.getusersitepackages()  # by what the environment says now
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    # Where the kernel looks for a process's environment, and the engine for a launch's token.
    block = _block(environment).ljust(room[1] - room[0], b"\0")
    ctypes.memmove(room[0], block, len(block))
    sys.path[:] = dict.fromkeys([*_import_path(request), *sys.path])
    sys.argv = ["-m", *request["command"][request["command"].index("-m") + 2 :]]
    sys.orig_argv = request["command"]
    for name in OWN:
        del sys.modules[name]
    importlib.invalidate_caches()
    # All forks would draw the same random numbers; Python reseeds its own after each fork.
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if started := sys.modules.get("stepguard.machine.inherited"):
        importlib.reload(started)  # it has read what its process was started with
    if request["module"] == AGENT:
        gc.unfreeze()  # an agent freezes by itself; a command has no use for what is held
    gc.enable()


def _block(environment: dict[str, str]) -> bytes:
    return b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in environment.items())
