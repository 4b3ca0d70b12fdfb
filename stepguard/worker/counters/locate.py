"""Find places in the source: from a call stack to a line, from a line to its function."""

import ast
import itertools
import linecache
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import msgspec
import torch

from stepguard.core.site import INSTALLED, Site, named_file

TORCH = str(Path(torch.__file__).parent) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_ENGINE = str(Path(__file__).parents[2]) + os.sep  # with links, as the files of frames are named
# Parts of torch that call the operators of a whole phase for one line, such as loss.backward(). A
# change of the model shows at this line, too.
_FOLLOWS = {"optim/": "optimizer", "nn/utils/clip_grad": "optimizer"}
BACKWARD = "backward"
# What starts a backward pass, and what calls a function of the user's in one.
_BACKWARD = {
    (f"{TORCH}autograd/graph.py", "_engine_run_backward"),
    (f"{TORCH}autograd/__init__.py", "backward"),
    (f"{TORCH}autograd/__init__.py", "grad"),
    (f"{TORCH}autograd/function.py", "BackwardCFunction.apply"),
}
_FORWARD = f"{TORCH}nn/modules/module.py", "Module._call_impl"
# The rest of a function with a graph break.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")
_STARTS_BACKWARD = torch.autograd.graph._engine_run_backward.__code__
_RUN_IN_BACKWARD = torch.autograd.function.BackwardCFunction.apply.__code__


_tree = ""  # empty: the working directory


def keep_tree() -> None:
    """Remember the working directory as the measured tree: a script may leave it."""
    global _tree
    _tree = os.getcwd()


class Place(NamedTuple):
    """A line of source. ``file`` is relative to the measured tree if its repository has it."""

    file: str = ""
    line: int = 0
    function: str = ""
    text: str = ""
    via: str = ""  # the library's line that this line calls: "name/file.py:3 in function"


def frames(innermost: FrameType | None) -> Iterator[tuple[str, int, str]]:
    """Yield (file, line, function) from a frame outwards, for ``locate``. A thread in which
    autograd runs a device's backward pass goes on with the call that waits for it.
    """
    waited_for = torch._C._current_graph_task_id() != -1
    while innermost is not None:
        code, line = innermost.f_code, innermost.f_lineno
        yield code.co_filename, line, _RESUMED.sub(r"\1", code.co_qualname.replace(".<locals>", ""))
        # A function of the user's may start a pass of its own, as a checkpoint does.
        waited_for = code is not _STARTS_BACKWARD and (waited_for or code is _RUN_IN_BACKWARD)
        innermost = innermost.f_back
        if innermost is None and waited_for:
            innermost, waited_for = _waiting_for_backward(), False


def _waiting_for_backward() -> FrameType | None:
    """Return the frame that runs autograd's engine; None if several other threads have one."""
    found, own = [], threading.get_ident()
    for thread, frame in sys._current_frames().items():
        outer: FrameType | None = frame if thread != own else None
        while outer is not None and outer.f_code is not _STARTS_BACKWARD:
            outer = outer.f_back
        found += [outer] if outer else []
    return found[0] if len(found) == 1 else None


def torchs_phase(innermost: FrameType | None) -> str:
    """Return "backward" or "optimizer" if that part of torch makes the calls; else ""."""
    within = itertools.takewhile(lambda frame: is_machinery(frame[0]), frames(innermost))
    for file, _, function in within:
        if (file, function) in _BACKWARD:
            return BACKWARD
        for part, phase in _FOLLOWS.items():
            if file.startswith(part, len(TORCH)) and file.startswith(TORCH):
                return phase
    return ""


def phase_at(innermost: FrameType | None) -> str:
    """Return the phase that runs now: "backward", "optimizer", "forward" in a module, or ""."""
    if phase := torchs_phase(innermost):
        return phase
    if torch._C._current_graph_task_id() != -1:  # in a hook, whose frames come first
        return BACKWARD
    around = ((file, function) for file, _, function in frames(innermost))
    return "forward" if _FORWARD in around else ""


def tree_frame(innermost: FrameType) -> FrameType | None:
    """Return the frame of locate()'s place, as fast as it can be found; None if there is none, or
    if the innermost frame is the engine's.
    """
    root, fallback = _tree or os.getcwd(), None
    frame = None if innermost.f_code.co_filename.startswith(_ENGINE) else innermost
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_machinery(file):
            if _in_tree(file, root)[0]:
                return frame
            fallback = fallback or frame
        frame = frame.f_back
    return fallback


def locate(stack: Iterable[tuple[str, int, str]]) -> Place:
    """Return the innermost frame in the measured tree. If a library is called from there, ``via``
    is the library's innermost frame. Without a frame in the tree, return the innermost one outside
    of torch and the engine.

    ``stack`` begins with the innermost frame. The Place is empty if all frames are torch's, the
    standard library's or the engine's.
    """
    root = _tree or os.getcwd()
    fallback = Place()
    for file, line, function in stack:
        if is_machinery(file):
            continue
        inside, shown = _in_tree(file, root)
        if not inside and fallback.file:
            continue
        place = Place(shown, line, function, linecache.getline(file, line).strip())
        if inside:
            return place._replace(via=_via(fallback)) if fallback.file else place
        fallback = place
    return fallback


def site_at(what: str, place: Place, phase: str = "", count: int = 1, allowed: str = "") -> Site:
    """Return the Site of what happens at a place."""
    file, line, function, text, via = place
    return Site(what, file, line, function, text, phase, count, allowed, via or msgspec.UNSET)


def _via(place: Place) -> str:
    """Return a library's line as its readers know it: beginning with the package's folder."""
    return f"{named_file(place.file)}:{place.line} in {place.function}"


def raised_at(error: BaseException) -> Place:
    """Return where an error was raised, as ``locate`` does; for a syntax error its own line."""
    walked = traceback.walk_tb(error.__traceback__)
    stack = [(frame.f_code.co_filename, line, frame.f_code.co_qualname) for frame, line in walked]
    if isinstance(error, SyntaxError):
        stack.append((error.filename or "<string>", error.lineno or 0, ""))
    return locate(reversed(stack))


@lru_cache(maxsize=4096)
def _in_tree(file: str, root: str) -> tuple[bool, str]:
    """Return whether a file is the measured repository's own, and how it is shown from ``root``."""
    path = Path(file).resolve()
    inside = path.is_relative_to(_top(root)) and not any(part in file for part in INSTALLED)
    return inside, os.path.relpath(path, root) if inside else file


@lru_cache(maxsize=16)
def _top(folder: str) -> Path:
    """Return the repository's folder: a script may run in a folder below it."""
    above = (Path(folder), *Path(folder).parents)
    return next((path for path in above if (path / ".git").exists()), Path(folder))


@lru_cache(maxsize=4096)
def is_machinery(file: str) -> bool:
    """Return whether a file is torch's, this engine's or the standard library's, or none."""
    # "<": <string>, <frozen ...> and the like are no files.
    if file.startswith(("<", TORCH, _ENGINE)):
        return True
    # site-packages lies below the standard library's folder.
    return file.startswith(_STDLIB) and not any(part in file for part in INSTALLED)


def call_sources(innermost: FrameType | None) -> Iterator[str]:
    """Yield the source of the calls that run now: torch's own, then the first one outside."""
    while innermost is not None:
        file = innermost.f_code.co_filename
        if not file.startswith(_ENGINE):
            yield _source(innermost.f_code, innermost.f_lasti)
        if not is_machinery(file):
            return
        innermost = innermost.f_back


@lru_cache(maxsize=4096)
def _source(code: CodeType, instruction: int) -> str:
    # co_positions() has an entry for each code unit of two bytes, and f_lasti counts bytes.
    first, last, start, end = list(code.co_positions())[instruction // 2]
    if first is None or last is None:
        return ""
    lines = [linecache.getline(code.co_filename, n) for n in range(first, last + 1)]
    if not all(lines) or start is None or end is None:
        return "".join(lines)
    # Columns count the line's bytes.
    encoded = [line.encode() for line in lines]
    encoded[-1] = encoded[-1][:end]
    encoded[0] = encoded[0][start:]
    return b"".join(encoded).decode(errors="replace")


class Function(NamedTuple):
    """A function in a file."""

    name: str  # dotted: "Block.forward"
    first: int  # the line of its first decorator, if it has one
    line: int  # the line of "def"
    last: int


def enclosing(file: str, line: int) -> Function | None:
    """Return the innermost function around the line; None if there is none, or no source."""
    around = [f for f in _functions(file) if f.first <= line <= f.last]
    return max(around, key=lambda f: f.first, default=None)


def qualified(file: str, line: int, name: str) -> str:
    """Return ``Block.forward`` for ``forward``; the bare name without readable source."""
    name = _RESUMED.sub(r"\1", name)
    function = enclosing(file, line)
    if function is None:
        return name
    if not name or function.name.rpartition(".")[2] == name:
        return function.name
    return f"{function.name}.{name}" if name.startswith("<") else name


@lru_cache(maxsize=256)
def _functions(file: str) -> tuple[Function, ...]:
    try:
        return tuple(_walk(ast.parse("".join(linecache.getlines(file))), ""))
    except (SyntaxError, ValueError):
        return ()


def _walk(node: ast.AST, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        inside = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{prefix}{child.name}."
            if not isinstance(child, ast.ClassDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                yield Function(inside[:-1], first, child.lineno, child.end_lineno or child.lineno)
        yield from _walk(child, inside)


class Origins:
    """Remembers for each node of autograd's graph its operator, and the operator's line in the
    forward pass. The whole backward pass runs for one line, the one that starts it.

    Autograd makes a node right before it dispatches the node's operator, so the newest number of
    its nodes is that of the operator.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[str, Place]] = {}

    def note(self, operator: str) -> None:
        """Note an operator that is being dispatched, "aten.mul.Tensor"."""
        if torch._C._current_autograd_node() is None:
            # An operator without gradient gets no number: the newest one is of an earlier operator.
            number = torch.autograd._get_sequence_nr() - 1
            if number not in self._made:
                self._made[number] = operator, locate(frames(sys._getframe()))

    def made(self) -> tuple[str, Place] | None:
        """Return the forward operator of what runs now, and its line; None if unknown."""
        node = torch._C._current_autograd_node()
        return self._made.get(node._sequence_nr()) if node is not None else None

    def here(self) -> str:
        """Return what runs now, "backward of aten.mul, gpt.py:88 in MLP.forward"; "" without it."""
        if (made := self.made()) is None:
            return ""
        operator, place = made
        where = place.via or f"{place.file}:{place.line} in {place.function}"
        return f"backward of {operator.rpartition('.')[0]}, {where}"
